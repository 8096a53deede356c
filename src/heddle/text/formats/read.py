"""Reading the tokenizer of a Hugging Face folder, from whatever files are there."""

from pathlib import Path

from heddle.text.formats.assemble import assemble_tokenizer
from heddle.text.formats.bpe import read_byte_level
from heddle.text.formats.end_of_word import read_end_of_word_bpe
from heddle.text.formats.imported import ImportedTokenizer
from heddle.text.formats.marian import read_marian
from heddle.text.formats.sentencepiece_pipelines import read_sentencepiece
from heddle.text.formats.tokenizer_config import read_settings
from heddle.text.formats.tokenizer_json import read_tokenizer_json
from heddle.text.formats.wordpiece import read_wordpiece

FORMATS = (
    read_tokenizer_json,
    read_marian,
    read_end_of_word_bpe,
    read_byte_level,
    read_wordpiece,
    read_sentencepiece,
)  # in this order


def read_tokenizer(folder: Path) -> ImportedTokenizer | None:
    """Read the tokenizer of a folder, the first format of which it has files; None: it has none."""
    settings = read_settings(folder)
    specs = (read(folder, settings) for read in FORMATS)
    spec = next((spec for spec in specs if spec is not None), None)
    return None if spec is None else assemble_tokenizer(spec, settings)

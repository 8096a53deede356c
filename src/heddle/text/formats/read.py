"""Reading the tokenizer of a Hugging Face folder, from whatever files are there."""

from pathlib import Path

from heddle.text.formats.assemble import finish
from heddle.text.formats.byte_level import read_bytelevel
from heddle.text.formats.end_of_word import read_endings
from heddle.text.formats.imported import Found
from heddle.text.formats.marian import read_marian
from heddle.text.formats.sentencepiece_pipelines import read_spieces
from heddle.text.formats.tokenizer_config import read_settings
from heddle.text.formats.tokenizer_json import read_whole
from heddle.text.formats.wordpiece import read_wordpiece

FORMATS = (read_whole, read_marian, read_endings, read_bytelevel, read_wordpiece, read_spieces)  # in this order


def read_tokenizer(folder: Path) -> Found | None:
    """Read the tokenizer of a folder, the first format of which it has files; None: it has none."""
    settings = read_settings(folder)
    drafts = (read(folder, settings) for read in FORMATS)
    draft = next((draft for draft in drafts if draft is not None), None)
    return None if draft is None else finish(draft, settings)

"""BPE within words whose last piece bears a mark, from a vocabulary and its merges (Sennrich 2016; Radford 2018)."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from heddle.core import DataError
from heddle.text.formats.assemble import TokenizerSpec
from heddle.text.formats.bpe import read_merges, read_vocab
from heddle.text.formats.default_special_tokens import NAMED
from heddle.text.formats.imported import check_merges, refuse_damaged
from heddle.text.formats.tokenizer_config import TokenizerSettings

KIND = "OpenAIGPTTokenizer"
FILES = ("vocab.json", "merges.txt")
ENDING = "</w>"  # of a word's last piece


def read_end_of_word_bpe(folder: Path, settings: TokenizerSettings) -> TokenizerSpec | None:
    """Read the vocabulary of GPT (2018) and its merges; None: it is of another class, or there is none."""
    vocab, merges = (folder / name for name in FILES)
    if settings.kind != KIND or not (vocab.is_file() and merges.is_file()):
        return None
    known, pairs = read_vocab(vocab), read_merges(merges)
    check_merges(known, pairs, str(merges))
    named = settings.named.get("unk_token")
    unknown = NAMED[KIND]["unk_token"] if named is None else named.content
    if unknown not in known:
        raise DataError(f"{vocab}: want the token {unknown!r}, which stands for what is unknown")
    with refuse_damaged(str(vocab)):
        model = models.BPE(vocab=known, merges=pairs, unk_token=unknown, end_of_word_suffix=ENDING)
    pipeline = Tokenizer(model)
    pipeline.normalizer = normalizers.BertNormalizer(lowercase=True)
    pipeline.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pipeline.decoder = decoders.BPEDecoder(suffix=ENDING)
    return TokenizerSpec(pipeline, " and ".join(FILES), str(vocab), NAMED[KIND])

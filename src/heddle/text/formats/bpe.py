"""Byte-pair encoding from vocab.json and merges.txt: byte-level BPE (Radford et al. 2019), and GPT's (2018)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from heddle.core import DataError
from heddle.core.system import parse_json
from heddle.text.formats.default_special_tokens import NAMED
from heddle.text.formats.imported import TokenizerSpec, check_ids, check_merges, read_lines, read_utf8, refuse_damaged
from heddle.text.formats.tokenizer_config import TokenizerSettings
from heddle.text.tokenizers import QWEN2

GPT, END_OF_WORD = "OpenAIGPTTokenizer", "</w>"  # the suffix of a word's last token
PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))  # the latter are OpenAI's names


@dataclass(frozen=True)
class ByteLevelClass:
    """The defaults of a tokenizer class."""

    sequence: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    composed: bool = False  # normalizes to NFC first
    pattern: str | None = None  # pre-tokenization other than GPT-2's


BERT_STYLE = ByteLevelClass(sequence=(("cls_token",), ("sep_token",)))
CLASSES = {
    "GPT2Tokenizer": ByteLevelClass(),
    "RobertaTokenizer": BERT_STYLE,
    "BartTokenizer": BERT_STYLE,
    "GPTNeoXTokenizer": ByteLevelClass(composed=True),
    "Qwen2Tokenizer": ByteLevelClass(composed=True, pattern=QWEN2),
}


def read_byte_level(folder: Path, settings: TokenizerSettings) -> TokenizerSpec | None:
    """Read byte-level BPE; None: there are no such files."""
    for names in PAIRS:
        vocab, merges = (folder / name for name in names)
        if vocab.is_file() and merges.is_file():
            known = read_vocab(vocab)
            name = settings.class_of(CLASSES, str(vocab), _guess(known))
            kind = CLASSES[name]
            pairs = read_merges(merges)
            check_merges(known, pairs, str(merges))
            with refuse_damaged(str(vocab)):
                model = models.BPE(vocab=known, merges=pairs)
            pipeline = byte_level_pipeline(model, kind.pattern, prefix=settings.flag("add_prefix_space", False))
            if kind.composed:
                pipeline.normalizer = normalizers.NFC()
            # RoBERTa parts two texts by two tokens; of other classes none stands after a text
            source, where = " and ".join(names), str(vocab)
            return TokenizerSpec(pipeline, source, where, NAMED[name], sequence=kind.sequence, separators=2)
    return None


def read_gpt_bpe(folder: Path, settings: TokenizerSettings) -> TokenizerSpec | None:
    """Read GPT's BPE, whose last token of a word has a suffix (Sennrich et al. 2016); None: there are no such files."""
    vocab, merges = (folder / name for name in PAIRS[0])
    if settings.kind != GPT or not (vocab.is_file() and merges.is_file()):
        return None
    known, pairs = read_vocab(vocab), read_merges(merges)
    check_merges(known, pairs, str(merges))
    named = settings.named.get("unk_token")
    unknown = NAMED[GPT]["unk_token"] if named is None else named.content
    if unknown not in known:
        raise DataError(f"{vocab}: want the token {unknown!r}, the unknown token")
    with refuse_damaged(str(vocab)):
        model = models.BPE(vocab=known, merges=pairs, unk_token=unknown, end_of_word_suffix=END_OF_WORD)
    pipeline = Tokenizer(model)
    pipeline.normalizer = normalizers.BertNormalizer(lowercase=True)
    pipeline.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pipeline.decoder = decoders.BPEDecoder(suffix=END_OF_WORD)
    return TokenizerSpec(pipeline, " and ".join(PAIRS[0]), str(vocab), NAMED[GPT])


def _guess(vocab: Mapping[str, int]) -> str:
    """Guess the tokenizer class of a vocabulary: RoBERTa's has a mask token."""
    return "RobertaTokenizer" if NAMED["RobertaTokenizer"]["mask_token"] in vocab else "GPT2Tokenizer"


def byte_level_pipeline(model: models.Model, pattern: str | None = None, *, prefix: bool = False) -> Tokenizer:
    """Return a byte-level pipeline, pre-tokenized as in GPT-2 or by a pattern."""
    pipeline = Tokenizer(model)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=pattern is None)
    pipeline.pre_tokenizer = to_bytes
    if pattern is not None:
        cut = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        pipeline.pre_tokenizer = pre_tokenizers.Sequence([cut, to_bytes])
    pipeline.decoder = decoders.ByteLevel()
    return pipeline


def read_vocab(path: Path) -> dict[str, int]:
    """Read a vocabulary of tokens and ids."""
    data = parse_json(read_utf8(path), str(path))
    if not isinstance(data, dict):
        raise DataError(f"{path}: want an object of tokens and ids, got {type(data).__name__}")
    return check_ids(data, str(path))


def read_merges(path: Path) -> list[tuple[str, str]]:
    """Read merges, one pair per line, after a line with the version."""
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(read_lines(path), 1):
        if line.startswith("#version"):
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            raise DataError(f"{path}: line {number}: want two tokens and a space between, got {line[:40]!r}")
        merges.append((pair[0], pair[1]))
    return merges

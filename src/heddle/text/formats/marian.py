"""Marian's pair of SentencePiece models over one vocabulary (Junczys-Dowmunt et al. 2018): one reads, the other writes.

The vocabulary numbers the pieces of both. A model of one side must not cut text into pieces that only the other has, so
these bear a mark, which no text contains and decoding drops; but for pieces all of whose characters the side does not
know, which are better than unknown. (The field's own reader takes such a piece only if it is a whole run of unknown
characters, and else nothing of the run.) Pieces that the vocabulary does not number are left out: no id could stand for
them.
"""

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from heddle.core import DataError
from heddle.text.formats.bpe import read_vocab
from heddle.text.formats.default_special_tokens import NAMED
from heddle.text.formats.imported import TokenizerSpec, refuse_damaged
from heddle.text.formats.sentencepiece import UNIGRAM, SentencePieceModel, read_sentencepiece_model
from heddle.text.formats.tokenizer_config import TokenizerSettings
from heddle.text.tokenizers import METASPACE

SOURCE, TARGET, VOCAB = "source.spm", "target.spm", "vocab.json"
HIDDEN = "\ufdd0"  # a code point that will never be a character
BEYOND = 5.0  # how much less probable than any known piece; unknown is less probable still
NAMES = NAMED["MarianTokenizer"]


def read_marian(folder: Path, settings: TokenizerSettings) -> TokenizerSpec | None:
    """Read Marian's three files; None: they are not there."""
    if not all((folder / name).is_file() for name in (SOURCE, TARGET, VOCAB)):
        return None
    path = folder / VOCAB
    if settings.flag("separate_vocabs", False):
        raise DataError(f"{folder}: has a vocabulary for each language; want one for both")
    vocab = read_vocab(path)
    if NAMES["unk_token"] not in vocab or max(vocab.values()) >= len(vocab):
        raise DataError(f"{path}: want the ids from 0 on, each once, and a token {NAMES['unk_token']!r}")
    with refuse_damaged(str(path)):
        source, target = (_pipeline(vocab, read_sentencepiece_model(folder / name)) for name in (SOURCE, TARGET))
    where = str(folder / SOURCE)
    names = f"{SOURCE}, {TARGET} and {VOCAB}"
    return TokenizerSpec(source, names, where, NAMES, sequence=((), ("eos_token",)), target=target)


def _pipeline(vocab: dict[str, int], found: SentencePieceModel) -> Tokenizer:
    """Return the pipeline of one side."""
    if found.model != UNIGRAM:
        raise DataError("want unigram models, got BPE")
    names = sorted(vocab, key=lambda name: vocab[name])
    pipeline = Tokenizer(
        models.Unigram(_scored_pieces(names, found), unk_id=vocab[NAMES["unk_token"]], byte_fallback=False)
    )
    steps: list[normalizers.Normalizer] = [normalizers.Replace(HIDDEN, "\ufffd")]
    if found.charsmap is not None:
        steps.append(normalizers.Precompiled(found.charsmap))
    pipeline.normalizer = normalizers.Sequence(steps)
    marks = pre_tokenizers.Metaspace(METASPACE, prepend_scheme="always")
    pipeline.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marks])
    pipeline.decoder = decoders.Sequence(
        [
            decoders.Replace(HIDDEN, ""),
            decoders.Replace(METASPACE, " "),
            decoders.Fuse(),
            decoders.Replace(Regex(r"\A +| +\z"), ""),
        ]
    )
    codes = [name for name in names if _is_code(name)]
    pipeline.add_tokens([AddedToken(name, special=False, normalized=False) for name in codes])
    return pipeline


def _scored_pieces(names: list[str], found: SentencePieceModel) -> list[tuple[str, float]]:
    """Return the vocabulary's pieces with one side's scores; those of the other side alone are out of reach."""
    scores = {piece.text: piece.score for piece in found.pieces}
    lowest = min(scores.values())
    known = {*NAMES.values(), METASPACE}
    letters = {letter for text in scores for letter in text}
    pieces: list[tuple[str, float]] = []
    for name in names:
        if name in scores:
            pieces.append((name, scores[name]))
        elif name in known or _is_code(name) or letters.isdisjoint(name):
            pieces.append((name, lowest - BEYOND))
        else:
            pieces.append((HIDDEN + name, lowest))
    return pieces


def _is_code(name: str) -> bool:
    """Say whether a name is the code of a language to write, which stands before a text."""
    return name.startswith(">>") and name.endswith("<<")

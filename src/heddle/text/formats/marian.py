"""Marian's two SentencePiece models over one vocabulary (Junczys-Dowmunt et al. 2018): one for source, one for target.

The vocabulary numbers the pieces of both models. One side must not use pieces that only the other has, so these get a
prefix that no text contains and decoding drops. Pieces made only of characters that the side does not know are kept,
since they are better than an unknown token. (transformers uses such a piece only for a whole run of unknown
characters.) Pieces without an id in the vocabulary are left out.
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
HIDDEN = "\ufdd0"  # a code point that is never a character
UNLISTED_PENALTY = 5.0  # how far below the lowest score; unknown is lower still
NAMES = NAMED["MarianTokenizer"]


def read_marian(folder: Path, settings: TokenizerSettings) -> TokenizerSpec | None:
    """Read Marian's three files; None: they are missing."""
    if not all((folder / name).is_file() for name in (SOURCE, TARGET, VOCAB)):
        return None
    path = folder / VOCAB
    settings.class_of(("MarianTokenizer",), str(path), "MarianTokenizer")
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
    """Return the vocabulary's pieces with one side's scores; pieces of the other side are hidden."""
    scores = {piece.text: piece.score for piece in found.pieces}
    lowest = min(scores.values())
    known = {*NAMES.values(), METASPACE}
    letters = {letter for text in scores for letter in text}
    pieces: list[tuple[str, float]] = []
    for name in names:
        if name in scores:
            pieces.append((name, scores[name]))
        elif name in known or _is_code(name) or letters.isdisjoint(name):
            pieces.append((name, lowest - UNLISTED_PENALTY))
        else:
            pieces.append((HIDDEN + name, lowest))
    return pieces


def _is_code(name: str) -> bool:
    """Tell whether a token is a language code, which precedes a text."""
    return name.startswith(">>") and name.endswith("<<")

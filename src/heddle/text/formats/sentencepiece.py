"""SentencePiece models (Kudo & Richardson 2018), read without the library: pieces, and settings of the trainer.

The files are protocol buffers: a key gives the number of a field and the encoding of its value. Only the fields that
tokenization needs are read, and every length is checked.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from heddle.core import DataError
from heddle.text.formats.imported import MAX_TOKENS, read_bytes

UNIGRAM, BPE = 1, 2  # model types; word and character models are not supported
NORMAL, UNKNOWN, CONTROL, OWN, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # piece types
MAX_CHARACTERS = 1 << 10  # characters of a piece; the longest in use have some thirty
WORK = 1 << 28  # limit on characters compared while deriving merges
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

Value = int | bytes


@dataclass(frozen=True, slots=True)
class SentencePiece:
    """A piece with its score and type."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePieceModel:
    """A SentencePiece model: pieces by id, and how text is normalized."""

    pieces: tuple[SentencePiece, ...]
    model: int
    fallback: bool  # byte fallback
    unknown: int
    named: Mapping[str, str]  # special tokens
    charsmap: bytes | None  # the precompiled normalization of characters
    prefix: bool  # a space is added before a text

    def of_kind(self, *kinds: int) -> list[SentencePiece]:
        """Return the pieces of some types."""
        return [piece for piece in self.pieces if piece.kind in kinds]


def read_sentencepiece_model(path: Path) -> SentencePieceModel:
    """Read a SentencePiece model file; refuse anything else in one line."""
    try:
        return parse_sentencepiece(read_bytes(path))
    except (ValueError, struct.error) as error:
        raise DataError(f"{path}: not a SentencePiece model: {error}") from None


def parse_sentencepiece(data: bytes) -> SentencePieceModel:
    """Parse the bytes of a SentencePiece model."""
    pieces: list[SentencePiece] = []
    trainer: dict[int, Value] = {}
    normalizer: dict[int, Value] = {}
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            pieces.append(_piece(value, len(pieces)))
            if len(pieces) > MAX_TOKENS:
                raise ValueError(f"more than {MAX_TOKENS} pieces")
        elif number == 2 and isinstance(value, bytes):
            trainer.update(_fields(value))
        elif number == 3 and isinstance(value, bytes):
            normalizer.update(_fields(value))
    if not pieces:
        raise ValueError("it has no pieces")
    if len({piece.text for piece in pieces}) < len(pieces):
        raise ValueError("two of its pieces are the same")
    model = _number(trainer, 3, UNIGRAM)
    if model not in (UNIGRAM, BPE):
        raise ValueError(f"want a unigram or BPE model, got kind {model}")
    charsmap = normalizer.get(2, b"")
    return SentencePieceModel(
        pieces=tuple(pieces),
        model=model,
        fallback=bool(_number(trainer, 35, 0)),
        unknown=_unknown(pieces),
        named=_named(trainer, pieces),
        charsmap=charsmap if isinstance(charsmap, bytes) and charsmap else None,
        prefix=bool(_number(normalizer, 3, 1)),
    )


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yield the number and value of each field of a protocol-buffer message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, form = key >> 3, key & 7
        value: Value
        if form == VARINT:
            value, at = _varint(data, at)
        elif form in (FIXED32, FIXED64, BYTES):
            length, at = _varint(data, at) if form == BYTES else (4 if form == FIXED32 else 8, at)
            if length > len(data) - at:
                raise ValueError(f"it ends within field {number}")
            value, at = data[at : at + length], at + length
        else:
            raise ValueError(f"field {number} has an unknown encoding: {form}")
        yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint, and where it ends."""
    value = 0
    for count in range(10):
        if at >= len(data):
            raise ValueError("it ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, at
    raise ValueError("a number has more than ten bytes")


def _piece(data: bytes, id: int) -> SentencePiece:
    text, score, kind = b"", 0.0, NORMAL
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            text = value
        elif number == 2 and isinstance(value, bytes) and len(value) == 4:
            score = struct.unpack("<f", value)[0]
        elif number == 3 and isinstance(value, int):
            kind = value
    name = text.decode()  # invalid UTF-8 is a ValueError too
    if not 0 < len(name) <= MAX_CHARACTERS:
        raise ValueError(f"piece {id}: want from 1 to {MAX_CHARACTERS} characters, got {len(name)}")
    if not math.isfinite(score) or not NORMAL <= kind <= BYTE:
        raise ValueError(f"piece {id}: want a finite score and a kind from 1 to 6, got {score} and {kind}")
    return SentencePiece(name, score, kind)


def _number(fields: Mapping[int, Value], number: int, default: int) -> int:
    value = fields.get(number, default)
    if not isinstance(value, int):
        raise ValueError(f"setting {number}: want a number")
    return value


def _unknown(pieces: list[SentencePiece]) -> int:
    found = [id for id, piece in enumerate(pieces) if piece.kind == UNKNOWN]
    if len(found) != 1:
        raise ValueError(f"want one unknown piece, got {len(found)}")
    return found[0]


def _named(trainer: Mapping[int, Value], pieces: list[SentencePiece]) -> dict[str, str]:
    """Return the special tokens by the ids in the trainer's settings; -1, read as a large number: none."""
    places = {"unk_token": (40, 0), "bos_token": (41, 1), "eos_token": (42, 2), "pad_token": (43, -1)}
    ids = {key: _number(trainer, number, default) for key, (number, default) in places.items()}
    known = {key: pieces[id] for key, id in ids.items() if 0 <= id < len(pieces)}
    return {key: piece.text for key, piece in known.items() if piece.kind in (CONTROL, UNKNOWN)}


def merges_of(vocab: Mapping[str, int], scores: Mapping[str, float] | None = None) -> list[tuple[str, str]]:
    """Derive BPE merges from a vocabulary: every split of a token into two, in the order of ids or scores.

    Ties are in the order of transformers' converters.
    """
    if sum(len(name) ** 2 for name in vocab) > WORK:
        raise ValueError("its tokens are too long to find their merges again")
    found: list[tuple[float, str, str]] = []
    for name in vocab if scores is None else scores:
        rank = vocab[name] if scores is None else scores[name]
        halves = [(name[:at], name[at:]) for at in range(1, len(name))]
        known = [pair for pair in halves if pair[0] in vocab and pair[1] in vocab]
        found += [(rank, *pair) for pair in sorted(known, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))]
    found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=scores is not None)
    return [(left, right) for _, left, right in found]

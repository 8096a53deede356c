"""Tokenizer: one final class around a `tokenizers` pipeline; control tokens live apart from what text can spell."""

import hashlib
import json
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models

from heddle.core import DataError, UsageError, first_line, hint
from heddle.core.system import parse_json, read_table, read_text, write_json
from heddle.text.tokenizers.chunks import METASPACE, ChunkBoundaries, chunk_boundaries, split_into_chunks
from heddle.text.tokenizers.special_tokens import (
    SpecialTokens,
    heddle_special_tokens,
    special_tokens_from_json,
    special_tokens_to_json,
)

END = "<|end|>"  # begins and ends every document
MASK = "<|mask|>"  # hides a token from a model that is asked what stood there
UNKNOWN = "\ufffd"  # what a kind without bytes writes for what it cannot spell: Unicode's replacement character
UNIGRAM_UNKNOWN = "<unk>"  # the custom of unigram models, whose own word the library does not tell
LARGEST = 1 << 28  # bytes of a tokenizer file; a quarter of a million tokens take a tenth of it
TOKENIZER = "tokenizer.json"  # in the folder of a run, or of a model's makers
TARGET = "tokenizer_target.json"  # beside a tokenizer's file: what cuts texts that are written, where that differs
TOKENIZER_CONFIG = "tokenizer_config.json"  # beside a tokenizer's file: what it does not tell itself
TOKENIZER_FILES = (TOKENIZER, TARGET, TOKENIZER_CONFIG)  # all that `save` may write
SPECIAL_TOKENS_KEY = "heddle_roles"  # the key of a tokenizer's config under which they lie
BATCH = 1 << 20  # characters handed to the library at once: its encodings take some thirty bytes for each
MAX_EXPANSION = 1000  # how much longer a tokenizer may make a text; those in use stay below ten

Pipeline = tokenizers.Tokenizer


@final
class Tokenizer:
    """Turns text into token ids and back, linear in the text's length.

    Text never becomes a control token, whatever it spells. A lone surrogate is not Unicode text and is refused. Which
    control tokens do what is told by `roles`; None: they are ours, by their names. A few cut a text that is written
    otherwise than one that is read, into the same ids: `target` is the pipeline for those, and `writes` the tokenizer.
    """

    def __init__(
        self, pipeline: Pipeline, special_tokens: SpecialTokens | None = None, target: Pipeline | None = None
    ) -> None:
        pipeline.encode_special_tokens = True  # the library's words for: text stays text
        pipeline.no_padding()
        pipeline.no_truncation()
        known = pipeline.get_vocab(with_added_tokens=True)
        added = dict(pipeline.get_added_tokens_decoder())
        special = {t.content: i for i, t in added.items() if t.special}
        self._pipeline = pipeline
        self._is_byte_level = isinstance(pipeline.decoder, tokenizers.decoders.ByteLevel)
        self._is_plain_bytes = self._is_byte_level and _ids_are_bytes(pipeline, known.items() - special.items())
        self._has_metaspace = pipeline.decoder is not None and METASPACE in pipeline.decoder.__getstate__().decode()
        self._boundaries: ChunkBoundaries = "words" if special_tokens is None else chunk_boundaries(pipeline)
        self.vocab: int = 1 + max(known.values())
        self.special_tokens: SpecialTokens = (
            _heddle_special_tokens(special) if special_tokens is None else special_tokens
        )
        self.special_tokens.check(self.vocab, "tokenizer: roles")
        self.end: int = self.special_tokens.end
        self.special: Mapping[str, int] = MappingProxyType(special)
        self.added: Mapping[int, tokenizers.AddedToken] = MappingProxyType(added)  # the special ones and others
        known_as = END if special_tokens is None else json.dumps(special_tokens_to_json(special_tokens), sort_keys=True)
        self.unknown: int | None = None if self._is_byte_level else known.get(_unknown(pipeline))
        self.for_target: Tokenizer = self if target is None else Tokenizer(target, special_tokens)
        whole = [known_as, pipeline.to_str(), *([] if target is None else [target.to_str()])]
        self.fingerprint: str = hashlib.sha256("\n".join(whole).encode()).hexdigest()[:32]

    def encode(self, text: str) -> list[int]:
        """Return the ids of one text, without control tokens."""
        ids: list[int] = []
        with catch_panics([text]):
            if self._is_plain_bytes:
                return list(text.encode())
            for chunk in split_into_chunks(text, self._boundaries):
                ids += self._pipeline.encode(chunk, add_special_tokens=False).ids
        return ids

    def opened(self, text: str) -> list[int]:
        """Return the ids of a text as a language model goes on from it: at the beginning of a document."""
        return [*self.special_tokens.text.before, *self.encode(text)]

    def whole(self, text: str) -> list[int]:
        """Return the ids of a text as an encoder reads it."""
        return self.special_tokens.text.apply(self.encode(text))

    def source(self, text: str) -> list[int]:
        """Return the ids of a text as the encoder of an encoder-decoder reads it."""
        return self.special_tokens.source.apply(self.encode(text))

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of many texts, encoded in parallel; equal to `encode` of each."""
        return [ids.tolist() for ids in self.encode_arrays(texts)]

    def encode_arrays(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """Return the ids of many texts as arrays: `encode_many` without the lists."""
        rows = [array("I") for _ in texts]
        with catch_panics(texts):
            if self._is_plain_bytes:  # the library would take far longer to say the same
                return [np.frombuffer(text.encode(), np.uint8).astype(np.uint32) for text in texts]
            for owners, batch in _batches(texts, self._boundaries):
                found = self._pipeline.encode_batch_fast(batch, add_special_tokens=False)
                for owner, encoding in zip(owners, found, strict=True):
                    rows[owner].fromlist(encoding.ids)
        return [np.frombuffer(row, dtype=np.uint32) if row else np.empty(0, np.uint32) for row in rows]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return which characters of a text each token of `encode` stands for; those of half a character share it."""
        found: list[tuple[int, int]] = []
        with catch_panics([text]):
            if self._is_plain_bytes:
                return [(i, i + 1) for i, character in enumerate(text) for _ in character.encode()]
            at = 0
            for chunk in split_into_chunks(text, self._boundaries):
                spans = self._pipeline.encode(chunk, add_special_tokens=False).offsets
                found += [(at + start, at + stop) for start, stop in spans]
                at += len(chunk)
        return found

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Return the text of ids; control tokens are left out unless asked for, broken UTF-8 is shown as U+FFFD."""
        known = [int(i) for i in ids]
        for i in known:
            self._check(i)
        with catch_panics([]):
            return str(self._pipeline.decode(known, skip_special_tokens=not special))

    def token(self, id: int) -> str:
        """Return how to show one token: its text, and bytes that are no character alone as `\\xe2`."""
        self._check(id)
        name = self._pipeline.id_to_token(id)
        if name is None:
            return ""  # a hole in an imported vocabulary
        if name in self.special:
            return str(name)
        if not self._is_byte_level:
            return str(name).replace(METASPACE, " ") if self._has_metaspace else str(name)
        table = byte_symbols()
        if any(symbol not in table for symbol in name):
            return str(name)
        return bytes(table[symbol] for symbol in name).decode("utf-8", errors="backslashreplace")

    def names(self) -> list[str | None]:
        """Return what the library calls each id; None: a hole in an imported vocabulary."""
        known = {i: name for name, i in self._pipeline.get_vocab(with_added_tokens=True).items()}
        return [known.get(i) for i in range(self.vocab)]

    def decoder(self) -> object:
        """Return how the library joins names to text, in the words of its own format; None: not at all."""
        decoder = self._pipeline.decoder
        return None if decoder is None else parse_json(decoder.__getstate__().decode())

    def save(self, path: Path) -> None:
        """Write a tokenizer's file, in the library's own format, and its roles beside it where they are not ours."""
        write_json(path, self.plain())
        if self.for_target is not self:
            write_json(path.with_name(TARGET), self.for_target.plain())
        if self.papers():
            write_json(path.with_name(TOKENIZER_CONFIG), self.papers())

    def plain(self) -> dict[str, object]:
        """Return the tokenizer in the library's own format, as plain data."""
        return dict(parse_json(self._pipeline.to_str()))

    def papers(self) -> dict[str, object]:
        """Return what a tokenizer's file does not tell of it; nothing where it is ours."""
        ours = END in self.special and self.special_tokens == _heddle_special_tokens(self.special)
        return {} if ours else {SPECIAL_TOKENS_KEY: special_tokens_to_json(self.special_tokens)}

    def _check(self, id: int) -> None:
        if not 0 <= id < self.vocab:
            raise UsageError(f"token id: want 0 to {self.vocab - 1}, got {id}")


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer that `save` wrote, refusing in one line what is not one."""
    beside, target = path.with_name(TOKENIZER_CONFIG), path.with_name(TARGET)
    told = read_table(beside, LARGEST).get(SPECIAL_TOKENS_KEY) if beside.is_file() else None
    special_tokens = None if told is None else special_tokens_from_json(told, str(beside))
    try:
        with catch_panics([]):
            return Tokenizer(_pipeline(path), special_tokens, _pipeline(target) if target.is_file() else None)
    except UsageError as error:
        raise error if str(path.parent) in str(error) else UsageError(f"{path}: {error}") from None
    except ValueError as error:
        raise UsageError(f"{path}: not a tokenizer: {first_line(error)}") from None


def _pipeline(path: Path) -> Pipeline:
    text = read_text(path, LARGEST)
    data = parse_json(text, str(path))
    if not isinstance(data, dict) or "model" not in data:
        raise UsageError(f"{path}: not a tokenizer: it has no model")
    check_expansion(data, str(path))
    try:
        with catch_panics([]):
            return Pipeline.from_str(text)
    except Exception as error:  # the library raises no narrower class
        raise UsageError(f"{path}: not a tokenizer: {first_line(error)}") from None


def check_expansion(data: Mapping[str, Any], where: str) -> None:
    """Refuse replacements that blow a text up one after another: a few lines of them fill all memory."""
    for part in ("normalizer", "decoder"):
        if _expansion(data.get(part)) > MAX_EXPANSION:
            raise DataError(f"{where}: its {part} makes texts more than {MAX_EXPANSION} times as long")


def _expansion(step: object) -> float:
    """Return by what a step, in the library's own words, multiplies the length of a text at most."""
    match step:
        case {"type": "Sequence", "normalizers": list(inner)} | {"type": "Sequence", "decoders": list(inner)}:
            return math.prod(map(_expansion, inner), start=1.0)
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if pattern:
            return max(1.0, len(content) / len(pattern))
        case {"type": "Replace", "content": str(content)}:  # an expression may match between any two letters
            return 1.0 + len(content)
        case {"type": "Prepend", "prepend": str(text)}:
            return 1.0 + len(text)
    return 1.0


def _unknown(pipeline: Pipeline) -> str:
    """Return the name of the token for what cannot be spelt; of ours, and where none is named, U+FFFD."""
    model = pipeline.model
    if isinstance(model, models.BPE | models.WordPiece | models.WordLevel):
        return model.unk_token or UNKNOWN
    return UNKNOWN if pipeline.token_to_id(UNIGRAM_UNKNOWN) is None else UNIGRAM_UNKNOWN


def _heddle_special_tokens(special: Mapping[str, int]) -> SpecialTokens:
    """Return the roles of control tokens that bear our names."""
    if END not in special:
        names = ", ".join(special) or "none"
        raise UsageError(f"tokenizer: want a special token {END!r}, got {names}{hint(END, special)}")
    return heddle_special_tokens(special[END], special.get(MASK))


def _batches(texts: Sequence[str], boundaries: ChunkBoundaries) -> Iterator[tuple[list[int], list[str]]]:
    """Group the pieces of texts into batches of bounded size, each piece with its text's number."""
    owners: list[int] = []
    batch: list[str] = []
    size = 0
    for number, text in enumerate(texts):
        for chunk in split_into_chunks(text, boundaries):
            owners.append(number)
            batch.append(chunk)
            size += len(chunk)
            if size >= BATCH:
                yield owners, batch
                owners, batch, size = [], [], 0
    if batch:
        yield owners, batch


@contextmanager
def catch_panics(texts: Sequence[str]) -> Iterator[None]:
    """Turn the library's panics, and its refusal of lone surrogates, into errors of one line."""
    try:
        yield
    except (TypeError, UnicodeEncodeError):
        for text in texts:
            refuse_surrogates(text)
        raise
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # Rust's panic derives from BaseException and has no import
            raise
        raise DataError(f"tokenizer: the library failed: {first_line(error)}") from None


def refuse_surrogates(text: str) -> None:
    """Refuse a text that holds half of a UTF-16 pair, which no encoding of Unicode can write."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"U+{ord(text[error.start]):04X} at character {error.start}"
        raise DataError(f"text: want Unicode text, got a lone surrogate ({found})") from None


def _ids_are_bytes(pipeline: Pipeline, vocab: Set[tuple[str, int]]) -> bool:
    """Say whether ids are the bytes of the text as it stands, so that the library need not be asked."""
    plain = pipeline.normalizer is None and vocab == byte_symbols().items()
    return plain and pipeline.encode("A b", add_special_tokens=False).ids == list(b"A b")


@cache
def byte_symbols() -> dict[str, int]:
    """Return which byte each printable stand-in of a byte-level vocabulary means (Radford et al. 2019)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(moved)}

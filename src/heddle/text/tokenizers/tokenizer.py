"""Tokenizer: one class around a pipeline of the `tokenizers` library; text never becomes a special token."""

import hashlib
import json
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models

from heddle.core import DataError, UsageError, brief, first_line, hint
from heddle.core.system import parse_json, parse_table, read_text, write_json
from heddle.text.tokenizers.chunks import METASPACE, ChunkBoundaries, chunk_boundaries, split_into_chunks
from heddle.text.tokenizers.special_tokens import (
    SpecialTokens,
    heddle_special_tokens,
    special_tokens_from_json,
    special_tokens_to_json,
)

END = "<|end|>"  # begins and ends every document
MASK = "<|mask|>"  # replaces a token to be predicted
UNKNOWN = "\ufffd"  # the unknown token of tokenizers without bytes: Unicode's replacement character
UNIGRAM_UNKNOWN = "<unk>"  # usual for unigram models; the library does not tell which it is
MAX_BYTES = 1 << 28  # bytes of a tokenizer file; a quarter of a million tokens take a tenth of it
TOKENIZER = "tokenizer.json"  # in a run's folder, or a Hugging Face folder
TARGET = "tokenizer_target.json"  # beside it: the tokenizer of target texts, if it differs
TOKENIZER_CONFIG = "tokenizer_config.json"  # beside it: special tokens and other settings
TOKENIZER_FILES = (TOKENIZER, TARGET, TOKENIZER_CONFIG)  # all files that `save` may write
SPECIAL_TOKENS_KEY = "heddle_roles"  # their key in the tokenizer's config
BATCH = 1 << 20  # characters encoded at once: the library takes about 30 bytes for each
MAX_EXPANSION = 1000  # how much longer a tokenizer may make a text; those in use stay below ten

Pipeline = tokenizers.Tokenizer


@final
class Tokenizer:
    """Turns text into token ids and back, in time linear in the text's length.

    Text never becomes a special token. A lone surrogate is refused, since it is not Unicode text. `tokens` is None for
    a tokenizer of Heddle, whose special tokens are known by name. Some models tokenize target texts differently, into
    the same ids: `target` is the pipeline for those, and `for_target` their tokenizer.
    """

    def __init__(self, pipeline: Pipeline, tokens: SpecialTokens | None = None, target: Pipeline | None = None) -> None:
        pipeline.encode_special_tokens = True  # the library's option to treat them as text
        pipeline.no_padding()
        pipeline.no_truncation()
        known = pipeline.get_vocab(with_added_tokens=True)
        added = dict(pipeline.get_added_tokens_decoder())
        special_ids = {t.content: i for i, t in added.items() if t.special}
        self._pipeline = pipeline
        self._is_byte_level = isinstance(pipeline.decoder, tokenizers.decoders.ByteLevel)
        self._is_plain_bytes = self._is_byte_level and _ids_are_bytes(pipeline, known.items() - special_ids.items())
        self._has_metaspace = pipeline.decoder is not None and METASPACE in pipeline.decoder.__getstate__().decode()
        self._boundaries: ChunkBoundaries = "words" if tokens is None else chunk_boundaries(pipeline)
        self.vocab: int = 1 + max(known.values())
        self.special_tokens: SpecialTokens = _heddle_special_tokens(special_ids, known) if tokens is None else tokens
        self.special_tokens.check(self.vocab, "tokenizer: special tokens")
        self.end: int = self.special_tokens.end
        self.special: Mapping[str, int] = MappingProxyType(special_ids)
        self.added: Mapping[int, tokenizers.AddedToken] = MappingProxyType(added)  # special and other added tokens
        known_as = END if tokens is None else _fingerprinted(tokens)
        self.unknown: int | None = None if self._is_byte_level else known.get(_unknown(pipeline))
        self.for_target: Tokenizer = self if target is None else Tokenizer(target, tokens)
        whole = [known_as, pipeline.to_str(), *([] if target is None else [target.to_str()])]
        self.fingerprint: str = hashlib.sha256("\n".join(whole).encode()).hexdigest()[:32]

    def encode(self, text: str) -> list[int]:
        """Return the ids of one text, without special tokens."""
        ids: list[int] = []
        if not isinstance(text, str):  # callers may have no type checker
            raise UsageError(f"encode: want a text, got {brief(text)}")
        with catch_panics([text]):
            if self._is_plain_bytes:
                return list(text.encode())
            for chunk in split_into_chunks(text, self._boundaries):
                ids += self._pipeline.encode(chunk, add_special_tokens=False).ids
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """Return the ids of a prompt: a text that begins a document, for a language model to continue."""
        return [*self.special_tokens.text.before, *self.encode(text)]

    def encode_with_special_tokens(self, text: str) -> list[int]:
        """Return the ids of a text for an encoder, with its special tokens."""
        return self.special_tokens.text.apply(self.encode(text))

    def pair(self, first: Sequence[int], second: Sequence[int]) -> list[int]:
        """Return the ids of two texts, given as ids, for an encoder that reads them together."""
        known = self.special_tokens
        return known.text.apply([*first, *known.separator, *second])

    def source(self, text: str, prototype: str | None = None) -> list[int]:
        """Return the ids of a source for an encoder-decoder, with its special tokens; an editor's has a prototype."""
        known, ids = self.special_tokens, self.encode(text)
        return known.source.apply(ids if prototype is None else [*ids, *known.separator, *self.encode(prototype)])

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of many texts, encoded in parallel; equal to `encode` of each."""
        return [ids.tolist() for ids in self.encode_arrays(texts)]

    def encode_arrays(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """Return the ids of many texts as arrays: `encode_many` without the lists."""
        rows = [array("I") for _ in texts]
        with catch_panics(texts):
            if self._is_plain_bytes:  # far faster than the library
                return [np.frombuffer(text.encode(), np.uint8).astype(np.uint32) for text in texts]
            for owners, batch in _batches(texts, self._boundaries):
                found = self._pipeline.encode_batch_fast(batch, add_special_tokens=False)
                for owner, encoding in zip(owners, found, strict=True):
                    rows[owner].fromlist(encoding.ids)
        return [np.frombuffer(row, dtype=np.uint32) if row else np.empty(0, np.uint32) for row in rows]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the character offsets of each token of `encode`; tokens of parts of one character share them."""
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

    def lost_bytes(self, text: str) -> int:
        """Count the bytes of a text that its unknown tokens stand for: what the ids do not tell."""
        if self.unknown is None:
            return 0
        spans = [span for id, span in zip(self.encode(text), self.spans(text), strict=True) if id == self.unknown]
        return sum(len(text[start:stop].encode()) for start, stop in spans)

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Return the text of ids, without special tokens unless `special`; invalid UTF-8 becomes U+FFFD."""
        known = [int(i) for i in ids]
        for i in known:
            self._check(i)
        with catch_panics([]):
            return str(self._pipeline.decode(known, skip_special_tokens=not special))

    def token(self, id: int) -> str:
        """Return one token as text to show; bytes that are not a whole character are escaped as `\\xe2`."""
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
        """Return the token of each id in the library's form; None: a hole in an imported vocabulary."""
        known = {i: name for name, i in self._pipeline.get_vocab(with_added_tokens=True).items()}
        return [known.get(i) for i in range(self.vocab)]

    def decoder(self) -> object:
        """Return the library's decoder as JSON data, or None."""
        decoder = self._pipeline.decoder
        return None if decoder is None else parse_json(decoder.__getstate__().decode())

    def with_special(self, names: Sequence[str]) -> "Tokenizer":
        """Return the tokenizer with further special tokens, whose ids follow its own."""
        sides = [self] if self.for_target is self else [self, self.for_target]
        pipelines = [Pipeline.from_str(side._pipeline.to_str()) for side in sides]
        for pipeline in pipelines:
            pipeline.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in names])
        tokens = self.special_tokens if self.special_tokens_config() else None
        if tokens is not None and tokens.mask is None and MASK in names:
            tokens = replace(tokens, mask=pipelines[0].token_to_id(MASK))
        return Tokenizer(pipelines[0], tokens, *pipelines[1:])

    def with_source_prefix(self, text: str) -> "Tokenizer":
        """Return the tokenizer that puts a text before each source, as T5 has one for each task."""
        before = (*self.special_tokens.source.before, *self.encode(text.strip()))
        tokens = replace(self.special_tokens, source=replace(self.special_tokens.source, before=before))
        target = [] if self.for_target is self else [self.for_target._pipeline]
        return Tokenizer(self._pipeline, tokens, *target)

    def save(self, path: Path) -> None:
        """Save the tokenizer in the library's format, with a config of its special tokens if it was imported."""
        write_json(path, self.to_json())
        if self.for_target is not self:
            write_json(path.with_name(TARGET), self.for_target.to_json())
        if self.special_tokens_config():
            write_json(path.with_name(TOKENIZER_CONFIG), self.special_tokens_config())

    def to_json(self) -> dict[str, object]:
        """Return the tokenizer in the library's format, as JSON data."""
        return dict(parse_json(self._pipeline.to_str()))

    def special_tokens_config(self) -> dict[str, object]:
        """Return the config of special tokens to save next to the tokenizer; empty for one of Heddle's."""
        ours = END in self.special and self.special_tokens == _heddle_special_tokens(self.special, self.special)
        return {} if ours else {SPECIAL_TOKENS_KEY: special_tokens_to_json(self.special_tokens)}

    def _check(self, id: int) -> None:
        if not 0 <= id < self.vocab:
            raise UsageError(f"token id: want 0 to {self.vocab - 1}, got {id}")


def _fingerprinted(tokens: SpecialTokens) -> str:
    """Return special tokens as text; further names of them, and what parts two texts, change no ids of a text."""
    return json.dumps(special_tokens_to_json(replace(tokens, named=None, between=())), sort_keys=True)


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a saved tokenizer; refuse anything else in one line."""
    texts = {TOKENIZER: read_text(path, MAX_BYTES)}
    for config_path in (path.with_name(name) for name in (TARGET, TOKENIZER_CONFIG)):
        if config_path.is_file():
            texts[config_path.name] = read_text(config_path, MAX_BYTES)
    return parse_tokenizer(texts, path)


def parse_tokenizer(texts: Mapping[str, str], path: Path) -> Tokenizer:
    """Return the tokenizer in the texts of its files; `path` is where its own is, for messages."""
    config_path, target = path.with_name(TOKENIZER_CONFIG), path.with_name(TARGET)
    config = parse_table(texts[TOKENIZER_CONFIG], str(config_path)) if TOKENIZER_CONFIG in texts else {}
    found = config.get(SPECIAL_TOKENS_KEY)
    special = None if found is None else special_tokens_from_json(found, str(config_path))
    try:
        with catch_panics([]):
            other = _pipeline(texts[TARGET], target) if TARGET in texts else None
            return Tokenizer(_pipeline(texts[TOKENIZER], path), special, other)
    except UsageError as error:
        raise error if str(path.parent) in str(error) else UsageError(f"{path}: {error}") from None
    except ValueError as error:
        raise UsageError(f"{path}: not a tokenizer: {first_line(error)}") from None


def _pipeline(text: str, path: Path) -> Pipeline:
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
    """Refuse a chain of replacements that expands a text without bound: a few lines could fill all memory."""
    for part in ("normalizer", "decoder"):
        if _expansion(data.get(part)) > MAX_EXPANSION:
            raise DataError(f"{where}: its {part} makes texts more than {MAX_EXPANSION} times as long")


def _expansion(step: object) -> float:
    """Return the largest factor by which a step, given as JSON data, lengthens a text."""
    match step:
        case {"type": "Sequence", "normalizers": list(inner)} | {"type": "Sequence", "decoders": list(inner)}:
            return math.prod(map(_expansion, inner), start=1.0)
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if pattern:
            return max(1.0, len(content) / len(pattern))
        case {"type": "Replace", "content": str(content)}:  # a regex may match between any two characters
            return 1.0 + len(content)
        case {"type": "Prepend", "prepend": str(text)}:
            return 1.0 + len(text)
    return 1.0


def _unknown(pipeline: Pipeline) -> str:
    """Return the unknown token: U+FFFD unless the model names another."""
    model = pipeline.model
    if isinstance(model, models.BPE | models.WordPiece | models.WordLevel):
        return model.unk_token or UNKNOWN
    return UNKNOWN if pipeline.token_to_id(UNIGRAM_UNKNOWN) is None else UNIGRAM_UNKNOWN


def _heddle_special_tokens(special: Mapping[str, int], known: Mapping[str, int]) -> SpecialTokens:
    """Return the special tokens of a tokenizer of Heddle, by their names; none may share its id with text."""
    taken = {id: name for name, id in known.items() if name not in special}
    for name, id in special.items():
        if id in taken:
            raise UsageError(f"tokenizer: {name} and {taken[id]!r} share the id {id}; train the tokenizer anew")
    if END not in special:
        names = ", ".join(special) or "none"
        raise UsageError(f"tokenizer: want a special token {END!r}, got {names}{hint(END, special)}")
    return heddle_special_tokens(special[END], special.get(MASK))


def _batches(texts: Sequence[str], boundaries: ChunkBoundaries) -> Iterator[tuple[list[int], list[str]]]:
    """Group the chunks of texts into batches of bounded size, each chunk with its text's number."""
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
    """Turn the library's panics, and its errors about lone surrogates, into errors of one line."""
    try:
        yield
    except (TypeError, AttributeError, UnicodeEncodeError):
        for text in texts:
            if not isinstance(text, str):
                raise UsageError(f"encode: want texts, got {brief(text)} among them") from None
            refuse_surrogates(text)
        raise
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # Rust's panic derives from BaseException and has no import
            raise
        raise DataError(f"tokenizer: the library failed: {first_line(error)}") from None


def refuse_surrogates(text: str) -> None:
    """Refuse a text with a lone surrogate, half of a UTF-16 pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"U+{ord(text[error.start]):04X} at character {error.start}"
        raise DataError(f"text: want Unicode text, got a lone surrogate ({found})") from None


def _ids_are_bytes(pipeline: Pipeline, vocab: Set[tuple[str, int]]) -> bool:
    """Tell whether ids are simply the bytes of the text, so that the library is not needed."""
    plain = pipeline.normalizer is None and vocab == byte_symbols().items()
    return plain and pipeline.encode("A b", add_special_tokens=False).ids == list(b"A b")


@cache
def byte_symbols() -> dict[str, int]:
    """Return the byte of each printable symbol in a byte-level vocabulary (Radford et al. 2019)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(moved)}

"""Token bytes: the bytes that each token adds to a text, used by constrained decoding.

Joined, the bytes of ids are the text that they decode to, as far as they are valid UTF-8. Byte tokens may break a
character, and decoding then shows U+FFFD.
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heddle.core import UsageError
from heddle.text.tokenizers.chunks import METASPACE
from heddle.text.tokenizers.tokenizer import Tokenizer, byte_symbols

WORD_DECODER = [  # of word tokenizers: words are joined by one space, except at line ends
    {"type": "WordPiece", "prefix": "\0", "cleanup": False},
    {"type": "Fuse"},
    {"type": "Replace", "pattern": {"Regex": " ?\n ?"}, "content": "\n"},
]
BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
BYTE_FALLBACK_DECODER = [  # of Gemma: some pieces are single bytes, written as `<0xE2>`
    {"type": "Replace", "pattern": {"String": METASPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
LLAMA_DECODER = [*BYTE_FALLBACK_DECODER, _STRIP]  # drops the space that Llama adds before a text
CLEANUP = (  # clean_up_tokenization_spaces, in this order
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


@dataclass(frozen=True)
class TokenBytes:
    """The bytes that each id adds to a text; `inside` and `first` are the same object where they do not differ."""

    inside: tuple[bytes, ...]  # after other text
    first: tuple[bytes, ...]  # at the beginning
    fresh: frozenset[int]  # ids after which the next one counts as first
    silent: frozenset[int]  # ids that add nothing: special tokens and holes in a vocabulary


def token_bytes_of(tokenizer: Tokenizer) -> TokenBytes:
    """Return the bytes of a tokenizer's ids; an unknown decoder is refused."""
    names = tokenizer.names()
    silent = frozenset(i for i, name in enumerate(names) if name is None or name in tokenizer.special)
    known = ["" if name is None or i in silent else name for i, name in enumerate(names)]
    decoder = tokenizer.decoder()
    match decoder:
        case {"type": "ByteLevel"}:
            return _uniform([_from_byte_symbols(name) for name in known], silent)
        case {"type": "Fuse"}:
            return _uniform([name.encode() for name in known], silent)
        case {"type": "WordPiece", "prefix": str(prefix), "cleanup": bool(shorten)}:
            inside, first = _wordpiece_bytes(known, prefix), _plain(known)
            if shorten:
                inside, first = tuple(map(_cleaned_up, inside)), tuple(map(_cleaned_up, first))
            return TokenBytes(inside, first, frozenset(), silent)
        case {"type": "BPEDecoder", "suffix": str(ending)}:
            first = _plain([name.replace(ending, "") for name in known])
            unfinished = frozenset(i for i, name in enumerate(known) if ending not in name)
            inside = tuple(b"" if i in silent else b" " + word for i, word in enumerate(first))
            return TokenBytes(inside, first, unfinished - silent, silent)
        case {"type": "Metaspace", "replacement": str(mark), "prepend_scheme": str(scheme)}:
            inside = _plain([name.replace(mark, " ") for name in known])
            first = inside if scheme == "never" else _plain([name.replace(mark, "") for name in known])
            return TokenBytes(inside, first, frozenset(), silent)
        case {"type": "Sequence", "decoders": steps} if steps == WORD_DECODER:
            inside = tuple(
                b"\n" if name == "\n" else word for name, word in zip(known, _wordpiece_bytes(known), strict=True)
            )
            return TokenBytes(inside, _plain(known), frozenset(i for i, n in enumerate(known) if n == "\n"), silent)
        case {"type": "Sequence", "decoders": steps} if steps == BYTE_FALLBACK_DECODER:
            return _uniform([_from_metaspace(name) for name in known], silent)
        case {"type": "Sequence", "decoders": steps} if steps == LLAMA_DECODER:
            inside = tuple(_from_metaspace(name) for name in known)
            return TokenBytes(inside, tuple(word.removeprefix(b" ") for word in inside), frozenset(), silent)
    found = decoder["type"] if isinstance(decoder, dict) else "none"
    raise UsageError(f"tokenizer: want one whose tokens have known bytes, got decoder {found}")


def token_lengths(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Return how many bytes each id adds to a text, about: a word with the space before it."""
    try:
        words = token_bytes_of(tokenizer).inside
    except UsageError:  # a decoder of another library
        words = tuple(tokenizer.token(id).encode() for id in range(tokenizer.vocab))
    return np.array([len(word) for word in words], np.int64)


def uses_byte_fallback(tokenizer: Tokenizer) -> bool:
    """Tell whether a tokenizer has byte fallback: runs of byte tokens, which one wrong byte makes invalid."""
    match tokenizer.decoder():
        case {"type": "Sequence", "decoders": list(steps)}:
            return {"type": "ByteFallback"} in steps
    return False


def decodes_locally(tokenizer: Tokenizer) -> bool:
    """Tell whether the text of an id depends on the id before it at most."""
    match tokenizer.decoder():
        case {"type": "ByteLevel" | "Fuse" | "WordPiece" | "Metaspace" | "BPEDecoder"}:
            return True
        case {"type": "Sequence", "decoders": steps}:
            return steps in (WORD_DECODER, BYTE_FALLBACK_DECODER, LLAMA_DECODER)
    return False


def _uniform(words: list[bytes], silent: frozenset[int]) -> TokenBytes:
    same = tuple(words)
    return TokenBytes(same, same, frozenset(), silent)


def _plain(names: list[str]) -> tuple[bytes, ...]:
    return tuple(name.encode() for name in names)


def _wordpiece_bytes(names: list[str], prefix: str = "\0") -> tuple[bytes, ...]:
    """Return the bytes of WordPiece tokens: a space before a word, none before a continuation."""
    return tuple(
        name.removeprefix(prefix).encode() if not name or name.startswith(prefix) else f" {name}".encode()
        for name in names
    )


def _cleaned_up(word: bytes) -> bytes:
    for long, short in CLEANUP:
        word = word.replace(long.encode(), short.encode())
    return word


def _from_byte_symbols(name: str) -> bytes:
    """Return the bytes of a byte-level token; one with other characters is taken literally."""
    table = byte_symbols()
    if any(symbol not in table for symbol in name):
        return name.encode()
    return bytes(table[symbol] for symbol in name)


def _from_metaspace(name: str) -> bytes:
    """Return the bytes of a SentencePiece token, or the one byte that it names."""
    if BYTE.fullmatch(name):
        return bytes.fromhex(name[3:5])
    return name.replace(METASPACE, " ").encode()

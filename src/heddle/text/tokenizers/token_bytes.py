"""Spelling: the bytes that each token adds to a text, for those who follow a text while its tokens are chosen.

The bytes of ids, one after the other, are the text that they decode to, wherever they are UTF-8. Kinds with tokens for
bytes may break a character, and then decoding shows U+FFFD in their place.
"""

import re
from dataclasses import dataclass

from heddle.core import UsageError
from heddle.text.tokenizers.chunks import METASPACE
from heddle.text.tokenizers.tokenizer import Tokenizer, byte_symbols

WORDS = [  # how the word kind joins its words: by one space, but for the ends of lines
    {"type": "WordPiece", "prefix": "\0", "cleanup": False},
    {"type": "Fuse"},
    {"type": "Replace", "pattern": {"Regex": " ?\n ?"}, "content": "\n"},
]
BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
BYTE_FALLBACK_DECODER = [  # how Gemma's tokenizers join their pieces, of which some are bytes written as `<0xE2>`
    {"type": "Replace", "pattern": {"String": METASPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
LLAMA_DECODER = [
    *BYTE_FALLBACK_DECODER,
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
]  # Llama's first: a text begins with one
CLEANUP = (  # what BERT's way of joining takes out of a word and the space before it, in this order
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
    """What each id adds to a text; one object for both cases where the case makes no difference."""

    inside: tuple[bytes, ...]  # after other text
    first: tuple[bytes, ...]  # where nothing stands before
    fresh: frozenset[int]  # ids after which the next one is spelt as the first is
    silent: frozenset[int]  # ids that add nothing: control tokens, and holes in a vocabulary


def token_bytes_of(tokenizer: Tokenizer) -> TokenBytes:
    """Return how a tokenizer's ids are spelt; one that joins them in a way not known here is refused."""
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
            inside, first = _gradient_sync(known, prefix), _plain(known)
            if shorten:
                inside, first = tuple(map(_cleaned_up, inside)), tuple(map(_cleaned_up, first))
            return TokenBytes(inside, first, frozenset(), silent)
        case {"type": "BPEDecoder", "suffix": str(ending)}:
            first = _plain([name.replace(ending, "") for name in known])
            going_on = frozenset(i for i, name in enumerate(known) if ending not in name)
            inside = tuple(b"" if i in silent else b" " + word for i, word in enumerate(first))
            return TokenBytes(inside, first, going_on - silent, silent)
        case {"type": "Metaspace", "replacement": str(mark), "prepend_scheme": str(scheme)}:
            inside = _plain([name.replace(mark, " ") for name in known])
            first = inside if scheme == "never" else _plain([name.replace(mark, "") for name in known])
            return TokenBytes(inside, first, frozenset(), silent)
        case {"type": "Sequence", "decoders": steps} if steps == WORDS:
            inside = tuple(
                b"\n" if name == "\n" else word for name, word in zip(known, _gradient_sync(known), strict=True)
            )
            return TokenBytes(inside, _plain(known), frozenset(i for i, n in enumerate(known) if n == "\n"), silent)
        case {"type": "Sequence", "decoders": steps} if steps == BYTE_FALLBACK_DECODER:
            return _uniform([_from_metaspace(name) for name in known], silent)
        case {"type": "Sequence", "decoders": steps} if steps == LLAMA_DECODER:
            inside = tuple(_from_metaspace(name) for name in known)
            return TokenBytes(inside, tuple(word.removeprefix(b" ") for word in inside), frozenset(), silent)
    found = decoder["type"] if isinstance(decoder, dict) else "none"
    raise UsageError(f"tokenizer: want one whose tokens have bytes of their own to follow a text, got decoder {found}")


def uses_byte_fallback(tokenizer: Tokenizer) -> bool:
    """Say whether some ids stand for one byte each and are read as a run, which one wrong byte breaks as a whole."""
    match tokenizer.decoder():
        case {"type": "Sequence", "decoders": list(steps)}:
            return {"type": "ByteFallback"} in steps
    return False


def decodes_locally(tokenizer: Tokenizer) -> bool:
    """Say whether what an id adds to a text depends on no more than the id before it."""
    match tokenizer.decoder():
        case {"type": "ByteLevel" | "Fuse" | "WordPiece" | "Metaspace" | "BPEDecoder"}:
            return True
        case {"type": "Sequence", "decoders": steps}:
            return steps in (WORDS, BYTE_FALLBACK_DECODER, LLAMA_DECODER)
    return False


def _uniform(words: list[bytes], silent: frozenset[int]) -> TokenBytes:
    same = tuple(words)
    return TokenBytes(same, same, frozenset(), silent)


def _plain(names: list[str]) -> tuple[bytes, ...]:
    return tuple(name.encode() for name in names)


def _gradient_sync(names: list[str], prefix: str = "\0") -> tuple[bytes, ...]:
    """Return words with a space before, and pieces that go on with a word without their prefix."""
    return tuple(
        name.removeprefix(prefix).encode() if not name or name.startswith(prefix) else f" {name}".encode()
        for name in names
    )


def _cleaned_up(word: bytes) -> bytes:
    for long, short in CLEANUP:
        word = word.replace(long.encode(), short.encode())
    return word


def _from_byte_symbols(name: str) -> bytes:
    """Return the bytes that a byte-level name stands for; a name with other characters stands for itself."""
    table = byte_symbols()
    if any(symbol not in table for symbol in name):
        return name.encode()
    return bytes(table[symbol] for symbol in name)


def _from_metaspace(name: str) -> bytes:
    """Return the bytes of a piece with marks for spaces, or the one byte that it names."""
    if BYTE.fullmatch(name):
        return bytes.fromhex(name[3:5])
    return name.replace(METASPACE, " ").encode()

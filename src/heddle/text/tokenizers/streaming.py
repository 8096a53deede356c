"""Streaming detokenization: ids one by one to text, never half a character and never part of a stop string."""

import copy
from collections.abc import Sequence
from typing import final

from heddle.text.tokenizers.token_bytes import BYTE, decodes_locally, uses_byte_fallback
from heddle.text.tokenizers.tokenizer import Tokenizer

REPLACEMENT_CHARACTER = "\ufffd"  # decoded for bytes that are not, or not yet, a character
CHARACTER = 4  # bytes at most
WINDOW = 32  # ids decoded at once: the text of a token can depend on those before
UNSTABLE_CHARACTERS = 40  # last characters that later ids may change, where decoding cleans up spaces


@final
class TextStream:
    """Turns new ids into new text; all results joined, including that of `flush`, are the text of all ids.

    `after` are the ids before the first one, which decide whether a space comes first. The text ends before a stop
    string, and `stopped` is then true.
    """

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int] = (), stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._falls_back = uses_byte_fallback(tokenizer)
        self._in_place = decodes_locally(tokenizer)
        self._stop = tuple(s for s in stop if s)
        self._ids = self._context(after)
        self._sent = len(tokenizer.decode(self._ids))
        self._held = ""  # text that may begin a stop string
        self.stopped = False

    def fork(self) -> "TextStream":
        """Return a copy of the stream in its current state."""
        other = copy.copy(self)
        other._ids = list(self._ids)
        return other

    def push(self, id: int) -> str:
        """Add one id; return the text that is now certain."""
        if self.stopped or self._is_control(id):
            return ""
        self._ids.append(id)
        if self._is_byte(id):
            return ""  # a run of bytes is valid or invalid as a whole
        text = self._tokenizer.decode(self._ids)
        if not self._in_place:
            return self._until_stop(self._advance(text[:-UNSTABLE_CHARACTERS]))
        whole = not text.endswith(REPLACEMENT_CHARACTER)
        chunk = self._advance(text if whole else text[:-1])
        if len(self._ids) > WINDOW:
            self._shorten(text, whole)
        return self._until_stop(chunk)

    def flush(self) -> str:
        """Return the text that was held back, after the last id."""
        if self.stopped:
            return ""
        text = self._until_stop(self._advance(self._tokenizer.decode(self._ids)))
        text, self._held = text + self._held, ""
        return text

    def _context(self, after: Sequence[int]) -> list[int]:
        """Return the preceding ids on which the text of the first one depends."""
        if not self._in_place:
            return list(after)
        kept = len(after) - 1
        while kept > 0 and self._is_byte(after[kept]):
            kept -= 1
        return list(after[max(0, kept) :])

    def _is_control(self, id: int) -> bool:
        token = self._tokenizer.added.get(id)
        return token is not None and bool(token.special)

    def _is_byte(self, id: int) -> bool:
        return self._falls_back and BYTE.fullmatch(self._tokenizer.token(id)) is not None

    def _shorten(self, text: str, whole: bool) -> None:
        """Drop ids on which later text does not depend; of invalid bytes, keep the last few."""
        if whole:
            self._ids = self._ids[-1:]
            self._sent = len(self._tokenizer.decode(self._ids))
            return
        for kept in range(1, CHARACTER + 1):
            before, after = (self._tokenizer.decode(part) for part in (self._ids[:-kept], self._ids[-kept:]))
            if before + after == text:  # no character spans both
                self._ids, self._sent = self._ids[-kept:], self._sent - len(before)
                return

    def _advance(self, text: str) -> str:
        chunk, self._sent = text[self._sent :], max(self._sent, len(text))
        return chunk

    def _until_stop(self, chunk: str) -> str:
        text = self._held + chunk
        found = [at for at in (text.find(s) for s in self._stop) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, s) for s in self._stop), default=0)
        cut = len(text) - keep
        self._held = text[cut:]
        return text[:cut]


def _overlap(text: str, stop: str) -> int:
    """Return how many last characters of a text are the beginning of a stop string."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)

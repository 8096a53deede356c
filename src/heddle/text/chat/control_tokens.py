"""Control tokens in chats: rendered text is encoded so that only the template, never a message, yields them."""

import re
from collections.abc import Iterable, Iterator
from typing import final

from heddle.text.template import TRUSTED, MarkedText
from heddle.text.tokenizers import Tokenizer

SPACE = re.compile(r"\s*")
NOTHING = "(?!)"  # matches nowhere


@final
class ControlTokens:
    """Finds control tokens whose characters are all from the template; the text between two of them is encoded at once.

    Ordinary messages so get the ids of encoding the whole rendered text, including merges across the borders of
    messages, and a message that spells a control token gets the ids of its characters. (Except for tokenizers that mark
    the beginning of a text, as some of SentencePiece do: each text between control tokens begins anew.)

    Added tokens that are not special, such as `<think>`, are guarded in the same way if the template contains them.
    """

    def __init__(self, tokenizer: Tokenizer, template: str) -> None:
        self._tokenizer = tokenizer
        self._special = _any_of(tokenizer.special)
        added = {i: token.content for i, token in tokenizer.added.items() if not token.special}
        guarded = {i: name for i, name in added.items() if name in template and not name.isspace()}
        self._guarded_ids = frozenset(guarded)
        self._guarded = _any_of(guarded.values()) if guarded else None

    def encode(self, text: MarkedText) -> list[int]:
        """Return the ids of a rendered text."""
        ids: list[int] = []
        at = 0
        for start, stop, id in self.find(text):
            ids += self._encode_text(text[at:start])
            ids.append(id)
            at = stop
        return ids + self._encode_text(text[at:])

    def find(self, text: MarkedText) -> Iterator[tuple[int, int, int]]:
        """Yield every control token of the template: where it starts and stops, and its id.

        Some tokens include the whitespace beside them.
        """
        last = 0
        for start, stop, trusted in text.spans(TRUSTED):
            for match in self._special.finditer(text.plain, start, stop) if trusted else ():
                id = self._tokenizer.special[match.group()]
                token = self._tokenizer.added[id]
                first, end = match.start(), match.end()
                if token.lstrip:
                    first = last + len(text.plain[last:first].rstrip())
                if token.rstrip:
                    end = _past_space(text.plain, end)
                yield first, end, id
                last = end

    def strip(self, text: MarkedText) -> str:
        """Return a rendered text without its control tokens."""
        kept: list[str] = []
        at = 0
        for start, stop, _ in self.find(text):
            kept.append(text.plain[at:start])
            at = stop
        return "".join([*kept, text.plain[at:]])

    def _encode_text(self, text: MarkedText) -> list[int]:
        """Return the ids of text between control tokens, split inside guarded tokens that a message spells."""
        ids: list[int] = []
        start = at = count = 0
        while self._guarded is not None and (match := self._guarded.search(text.plain, at)):
            if all(mark & TRUSTED for mark in text.marks[match.start() : match.end()]):
                at, count = match.end(), count + 1
                continue
            ids += self._encode_guarded(text.plain[start : match.start() + 1], count)
            start = at = match.start() + 1
            count = 0
        return ids + self._encode_guarded(text.plain[start:], count)

    def _encode_guarded(self, plain: str, count: int) -> list[int]:
        """Return the ids of a text with at most `count` guarded tokens.

        A normalizer may produce more of them, from similar characters; the text is then encoded character by character.
        """
        ids = self._tokenizer.encode(plain)
        if sum(i in self._guarded_ids for i in ids) <= count:
            return ids
        return [i for letter in plain for i in self._tokenizer.encode(letter)]


def _past_space(text: str, at: int) -> int:
    found = SPACE.match(text, at)
    return at if found is None else found.end()


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of any of some names, the longest first."""
    return re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) or NOTHING)

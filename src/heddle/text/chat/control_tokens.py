"""Controls: rendered text -> ids; a control token comes from the template's own words, and from nothing else."""

import re
from collections.abc import Iterable, Iterator
from typing import final

from heddle.text.template import TRUSTED, MarkedText
from heddle.text.tokenizers import Tokenizer

SPACE = re.compile(r"\s*")
NOTHING = "(?!)"  # matches nowhere


@final
class ControlTokens:
    """Finds control tokens where all characters are trusted; what stands between two of them is encoded as one text.

    So ordinary messages get the very ids that encoding the whole rendered text would give, merges across the borders
    of messages included, and a message that spells a control token gets the ids of its letters. (Not so of a tokenizer
    that marks the beginning of a text and no other place, as some of SentencePiece's do: each stretch begins anew.)

    Some tokenizers have added tokens that are not special, such as `<think>`: those that the template writes are
    guarded as control tokens too.
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
            ids += self._encode_text(text.between(at, start))
            ids.append(id)
            at = stop
        return ids + self._encode_text(text.between(at, len(text)))

    def find(self, text: MarkedText) -> Iterator[tuple[int, int, int]]:
        """Yield every control token that the template wrote: where it starts and stops, and its id.

        A token may take the whitespace beside it along, as some models have it.
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
        """Return the ids of what is no control token, cut inside each guarded token that the template did not write."""
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
        """Return the ids of a text with so many guarded tokens.

        A tokenizer that normalises may find more of them, in letters that look alike: it then gets letter by letter.
        """
        ids = self._tokenizer.encode(plain)
        if sum(i in self._guarded_ids for i in ids) <= count:
            return ids
        return [i for letter in plain for i in self._tokenizer.encode(letter)]


def _past_space(text: str, at: int) -> int:
    find = SPACE.match(text, at)
    return at if find is None else find.end()


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Return what finds the first of some texts, the longest where several begin; of none, nothing."""
    return re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) or NOTHING)

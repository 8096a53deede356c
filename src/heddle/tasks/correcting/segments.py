"""Slots: the words of a text that may be changed, in pieces that a model reads at once, with what is chosen so far."""

from dataclasses import dataclass

from heddle.tasks.correcting.suggestions import Suggestion

AFTER = 32  # characters to the right of a word that are weighed with it


@dataclass
class CorrectionSlot:
    """A word that may be changed: its options, the first of them as it is written, and what is chosen so far."""

    options: list[Suggestion]
    known: bool
    scores: list[float]
    chosen: int = 0
    context: list[float] | None = None  # what the language model says of each option; None: it was not asked

    @classmethod
    def of(cls, options: list[Suggestion], known: bool) -> "CorrectionSlot":
        """Return a slot in which nothing but the options themselves was weighed."""
        return cls(options, known, [option.base for option in options])

    @property
    def option(self) -> Suggestion:
        """Return what is chosen."""
        return self.options[self.chosen]

    def set_context_scores(self, context: list[float], weight: float) -> None:
        """Take what the language model says of each option."""
        self.context = context
        self.scores = [option.base + weight * p for option, p in zip(self.options, context, strict=True)]

    def choose(self, margin: float) -> None:
        """Choose the best option where it beats what is written by the margin."""
        best = max(range(len(self.options)), key=self.scores.__getitem__)
        self.chosen = best if best and self.scores[best] - self.scores[0] >= margin else 0


@dataclass
class Segment:
    """A stretch of a text that is read at once."""

    text: str
    offset: int
    text_index: int
    slots: list[CorrectionSlot]

    def written(self, start: int, end: int, but: CorrectionSlot | None = None) -> str:
        """Return a stretch with all that is chosen in it, but for one slot."""
        made, at = "", start
        for slot in self.slots:
            option = slot.option
            if slot is not but and slot.chosen and option.start >= at and option.end <= end:
                made += self.text[at : option.start] + option.text
                at = option.end
        return made + self.text[at:end]

    def drop_overlaps(self, slot: CorrectionSlot) -> None:
        """Take back what is chosen where it overlaps with a slot's choice: words may become one."""
        new = slot.option
        for other in self.slots:
            old = other.option
            if slot.chosen and other is not slot and old.start < new.end and new.start < old.end:
                other.chosen = 0

    def variants(self, slot: CorrectionSlot, after: int = AFTER) -> list[str]:
        """Return the piece up to some way behind a slot, once with each of its options."""
        start, end = min(o.start for o in slot.options), max(o.end for o in slot.options)
        left = self.written(0, start, slot)
        stop = self.text.find(" ", min(len(self.text), end + after))
        right = self.written(end, len(self.text) if stop < 0 else stop, slot)
        return [left + self.text[start : o.start] + o.text + self.text[o.end : end] + right for o in slot.options]

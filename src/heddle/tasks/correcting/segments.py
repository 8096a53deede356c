"""Segments of a text that a model scores at once, and the slots in them: words that may be corrected."""

from dataclasses import dataclass

from heddle.tasks.correcting.suggestions import Suggestion

AFTER = 32  # characters after a word that are scored with it


@dataclass
class CorrectionSlot:
    """A word that may be corrected: its suggestions, the first as written, and the current choice."""

    options: list[Suggestion]
    known: bool
    scores: list[float]
    chosen: int = 0
    context: list[float] | None = None  # log-probability of each suggestion by the language model; None: not scored

    @classmethod
    def unscored(cls, options: list[Suggestion], known: bool) -> "CorrectionSlot":
        """Return a slot that has only the scores of its suggestions, without context."""
        return cls(options, known, [option.base for option in options])

    @property
    def option(self) -> Suggestion:
        """Return the current choice."""
        return self.options[self.chosen]

    def set_context_scores(self, context: list[float], weight: float) -> None:
        """Add the weighted log-probabilities of the language model to the scores."""
        self.context = context
        self.scores = [option.base + weight * p for option, p in zip(self.options, context, strict=True)]

    def choose(self, margin: float) -> None:
        """Choose the best suggestion if it beats the text as written by the margin."""
        best = max(range(len(self.options)), key=self.scores.__getitem__)
        self.chosen = best if best and self.scores[best] - self.scores[0] >= margin else 0


@dataclass
class Segment:
    """A part of a text that is scored at once."""

    text: str
    offset: int
    text_index: int
    slots: list[CorrectionSlot]

    def render(self, start: int, end: int, without: CorrectionSlot | None = None) -> str:
        """Return a span with all choices applied, except that of one slot."""
        made, at = "", start
        for slot in self.slots:
            option = slot.option
            if slot is not without and slot.chosen and option.start >= at and option.end <= end:
                made += self.text[at : option.start] + option.text
                at = option.end
        return made + self.text[at:end]

    def drop_overlaps(self, slot: CorrectionSlot) -> None:
        """Undo choices that overlap with the choice of a slot, which may join two words."""
        new = slot.option
        for other in self.slots:
            old = other.option
            if slot.chosen and other is not slot and old.start < new.end and new.start < old.end:
                other.chosen = 0

    def suggestion_texts(self, slot: CorrectionSlot, after: int = AFTER) -> list[str]:
        """Return the segment up to `after` characters behind a slot, once with each of its suggestions."""
        start, end = min(o.start for o in slot.options), max(o.end for o in slot.options)
        left = self.render(0, start, slot)
        stop = self.text.find(" ", min(len(self.text), end + after))
        right = self.render(end, len(self.text) if stop < 0 else stop, slot)
        return [left + self.text[start : o.start] + o.text + self.text[o.end : end] + right for o in slot.options]

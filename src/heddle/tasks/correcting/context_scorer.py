"""Language-model scores of spelling suggestions in their context."""

from collections.abc import Sequence
from typing import final

from heddle.decoding.scoring import SharedPrefix, TokenQueries, score_continuations, score_tokens
from heddle.models.networks import LanguageModel
from heddle.tasks.correcting.segments import CorrectionSlot, Segment
from heddle.text.normalize import NormalizerConfig, normalize_text
from heddle.text.tokenizers import Tokenizer

Ids = list[int]


@final
class ContextScorer:
    """Scores suggestions with a language model, on text normalized as in its training."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, form: NormalizerConfig | None) -> None:
        self._model, self._tokenizer, self._form = model, tokenizer, form
        self._context = model.context

    def score_suggestions(self, slots: Sequence[tuple[Segment, CorrectionSlot]]) -> list[list[float]]:
        """Return the log-probability of each suggestion of each slot with the text after it, given the text before."""
        forks = []
        for rows in self._encoded([segment.suggestion_texts(slot) for segment, slot in slots]):
            shared = min(_shared_prefix(rows), min(map(len, rows)) - 1)  # a continuation has at least one token
            ends = [row[shared : shared + self._context - 1] for row in rows]
            start = rows[0][max(0, shared - (self._context - max(map(len, ends)))) : shared]
            forks.append(SharedPrefix(start, ends))
        return score_continuations(self._model, forks)

    def score_first_tokens(self, segments: Sequence[Segment]) -> list[list[list[float]]]:
        """Return, for each known word, the log-probability gain of each suggestion at its first differing token.

        Only that token is scored, so that one forward pass over a segment serves all of its words.
        """
        slots = [(at, slot) for at, segment in enumerate(segments) for slot in segment.slots if slot.known]
        rows = [row for (row,) in self._encoded([[segment.render(0, len(segment.text))] for segment in segments])]
        places: list[list[tuple[int, Ids]]] = [[] for _ in segments]
        looks: list[
            list[tuple[int, int]]
        ] = []  # of each suggestion: the segment, and the index of its place there, or -1
        texts = [segments[at].suggestion_texts(slot, after=0) for at, slot in slots]
        for (at, _), ids in zip(slots, self._encoded(texts), strict=True):
            looks.append([])
            for other in ids:
                shared = _shared_prefix([ids[0], other])
                inside = shared < min(len(ids[0]), len(other), self._context) and rows[at][:shared] == ids[0][:shared]
                looks[-1].append((at, len(places[at]) if inside else -1))
                if inside:
                    places[at].append((shared, [other[shared], ids[0][shared]]))
        queries = [TokenQueries(r[: self._context], p) for r, p in zip(rows, places, strict=True)]
        found = score_tokens(self._model, queries)
        gains = [[one - other for one, other in segment] for segment in found]
        by_slot = iter([[0.0 if place < 0 else gains[at][place] for at, place in look] for look in looks])
        return [[next(by_slot) for slot in segment.slots if slot.known] for segment in segments]

    def _encoded(self, texts: Sequence[Sequence[str]]) -> list[list[Ids]]:
        """Return the ids of groups of texts, each with the tokens that begin a document."""
        flat = [text for group in texts for text in group]
        if self._form is not None:
            flat = [normalize_text(text, self._form) for text in flat]
        ids = iter(self._tokenizer.encode_many(flat))
        return [[[*self._tokenizer.special_tokens.document_start, *next(ids)] for _ in group] for group in texts]


def _shared_prefix(rows: Sequence[Ids]) -> int:
    """Return the length of the prefix that all rows share."""
    first, last = min(rows), max(rows)
    return next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))

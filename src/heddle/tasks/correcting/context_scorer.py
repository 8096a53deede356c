"""Reading: a language model says how probable the options of a word are among the words around it."""

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
    """Asks a language model, of texts in the form that it learnt from."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, form: NormalizerConfig | None) -> None:
        self._model, self._tokenizer, self._form = model, tokenizer, form
        self._room = model.context

    def score_suggestions(self, asked: Sequence[tuple[Segment, CorrectionSlot]]) -> list[list[float]]:
        """Return the log-probability of each option of each slot with what follows, after what comes before."""
        forks = []
        for rows in self._encoded([piece.variants(slot) for piece, slot in asked]):
            shared = min(_shared_prefix(rows), min(map(len, rows)) - 1)  # an end has one token or more
            ends = [row[shared : shared + self._room - 1] for row in rows]
            start = rows[0][max(0, shared - (self._room - max(map(len, ends)))) : shared]
            forks.append(SharedPrefix(start, ends))
        return score_continuations(self._model, forks)

    def score_first_tokens(self, pieces: Sequence[Segment]) -> list[list[list[float]]]:
        """Return, of each known word, how much more probable than itself each option begins, after what is before.

        Only the first token that differs is looked at, so that one reading of a piece serves all of its words.
        """
        asked = [(at, slot) for at, piece in enumerate(pieces) for slot in piece.slots if slot.known]
        rows = [row for (row,) in self._encoded([[piece.written(0, len(piece.text))] for piece in pieces])]
        places: list[list[tuple[int, Ids]]] = [[] for _ in pieces]
        looks: list[list[tuple[int, int]]] = []  # of each option: the piece, and which of its places, or none
        texts = [pieces[at].variants(slot, after=0) for at, slot in asked]
        for (at, _), ids in zip(asked, self._encoded(texts), strict=True):
            looks.append([])
            for other in ids:
                shared = _shared_prefix([ids[0], other])
                inside = shared < min(len(ids[0]), len(other), self._room) and rows[at][:shared] == ids[0][:shared]
                looks[-1].append((at, len(places[at]) if inside else -1))
                if inside:
                    places[at].append((shared, [other[shared], ids[0][shared]]))
        found = score_tokens(self._model, [TokenQueries(r[: self._room], p) for r, p in zip(rows, places, strict=True)])
        gains = [[one - other for one, other in piece] for piece in found]
        by_slot = iter([[0.0 if place < 0 else gains[at][place] for at, place in look] for look in looks])
        return [[next(by_slot) for slot in piece.slots if slot.known] for piece in pieces]

    def _encoded(self, texts: Sequence[Sequence[str]]) -> list[list[Ids]]:
        """Return the ids of groups of texts, each begun as a document begins."""
        flat = [text for group in texts for text in group]
        if self._form is not None:
            flat = [normalize_text(text, self._form) for text in flat]
        ids = iter(self._tokenizer.encode_many(flat))
        return [[[*self._tokenizer.special_tokens.document_start, *next(ids)] for _ in group] for group in texts]


def _shared_prefix(rows: Sequence[Ids]) -> int:
    """Return how many first ids all rows share."""
    first, last = min(rows), max(rows)
    return next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))

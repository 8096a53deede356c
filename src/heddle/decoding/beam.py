"""Beam search: several sequences of each prompt grow side by side, and the best that end are kept (Lowerre 1976).

Each step ranks what all live sequences of a prompt could become. A candidate that ends (at a stop, or where the row
must) is kept when it is among the best `beams` of the step; the best `beams` that do not end live on. Finished
sequences compete by log-probability over length to a power, where a length counts new tokens only: neither padding,
prompt nor source has a say. The search of a prompt is over when no live sequence can still change the list that is
asked for, so the result is that of searching to the last allowed length. One beam without length penalty is greedy.
"""

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.decoding.how import How
from heddle.decoding.opening import Opening, Prompt, Reason, opening, with_room
from heddle.decoding.reach import at_rest
from heddle.decoding.sampling import refuse_nan
from heddle.models import Predictor

Candidate = tuple[float, int, int]  # log-probability of the whole, which live sequence it continues, new id


@dataclass(frozen=True)
class Hypothesis:
    """A finished sequence: its new ids, the stop included, how probable it is, and why it ended."""

    ids: list[int]
    logprob: float  # nats, of all new ids
    score: float  # by which it was ranked
    reason: Reason


@dataclass(frozen=True)
class _Leaf:
    """The last id of a live sequence, which goes back to the prompt."""

    logprob: float = 0.0
    id: int = -1
    before: "_Leaf | None" = None

    def ids(self) -> list[int]:
        leaf, found = self, list[int]()
        while leaf.before is not None:
            found.append(leaf.id)
            leaf = leaf.before
        return found[::-1]


@dataclass
class _Beam:
    """The search of one prompt: what still grows, best first, and the best of what has ended."""

    how: How
    most: int  # new tokens that a sequence may have
    cut: Reason  # why it may have no more
    new: int = 0  # new tokens of the live sequences
    live: list[_Leaf] = field(default_factory=lambda: [_Leaf()])
    ended: list[Hypothesis] = field(default_factory=list)

    def take(self, candidates: Iterable[Candidate]) -> list[int]:
        """Grow by one token, given the best candidates in order; return which sequence each live one came from."""
        self.new += 1
        before, self.live, parents = self.live, [], []
        for rank, (logprob, parent, id) in enumerate(candidates):
            leaf = _Leaf(logprob, id, before[parent])
            if id in self.how.stop or self.new == self.most:
                if rank < self.how.beams:
                    self._end(leaf, Reason.STOP if id in self.how.stop else self.cut)
            elif len(self.live) < self.how.beams:
                self.live.append(leaf)
                parents.append(parent)
        if self._settled():
            self.live, parents = [], []
        return parents

    def _end(self, leaf: _Leaf, reason: Reason) -> None:
        score = self.how.rank(leaf.logprob, self.new)
        bisect.insort(self.ended, Hypothesis(leaf.ids(), leaf.logprob, score, reason), key=lambda h: -h.score)
        del self.ended[self.how.samples :]

    def _settled(self) -> bool:
        """Tell whether no live sequence can come into the list any more.

        A sequence only loses probability as it grows. Given its log-probability, its score rises or falls steadily with
        its length, so the best that can come of it lies at the next length or at the last.
        """
        if not self.live or len(self.ended) < self.how.samples:
            return False
        best = self.live[0].logprob
        hope = max(self.how.rank(best, length) for length in (self.new + 1, self.most))
        return hope <= self.ended[-1].score


@torch.inference_mode()
def search(
    model: Predictor, prompts: Sequence[Prompt], how: How, sources: Sequence[Prompt] | None = None
) -> list[list[Hypothesis]]:
    """Return the best `how.samples` sequences of each prompt, best first; fewer only where there are no more."""
    if not prompts:
        return []
    start = opening(model, prompts, how, sources)
    beams = _beams(start, how)
    alive = beams
    with at_rest(model):
        scores, state = start.read(model)
        while True:
            rows, first = list[int](), 0
            for beam, candidates in zip(alive, _candidates(scores, alive, how), strict=True):
                width = len(beam.live)
                rows += [first + parent for parent in beam.take(candidates)]
                first += width
            alive = [beam for beam in alive if beam.live]
            if not alive:
                return [beam.ended for beam in beams]
            length = max(len(p) + beam.new for p, beam in zip(start.prompts, beams, strict=True) if beam.live)
            state = with_room(model, state.select(torch.tensor(rows, device=scores.device)), length, start.most)
            newest = torch.tensor([[leaf.id] for beam in alive for leaf in beam.live], device=scores.device)
            vectors, state = model.step(newest, state)
            scores = model.head.logits(vectors[:, -1])


def _beams(start: Opening, how: How) -> list[_Beam]:
    return [
        _Beam(how, end - len(prompt), cut)
        for prompt, end, cut in zip(start.prompts, start.ends, start.cuts, strict=True)
    ]


def _candidates(scores: Float[Tensor, "rows vocab"], alive: list[_Beam], how: How) -> list[list[Candidate]]:
    """Return the best continuations of each prompt's live sequences, enough that `beams` of them do not end."""
    refuse_nan(scores)
    wanted = how.beams * (1 + len(set(how.stop)))
    best, ids = scores.topk(min(wanted, scores.shape[-1]))
    odds = best.double() - scores.double().logsumexp(-1, keepdim=True)
    before = torch.tensor([leaf.logprob for beam in alive for leaf in beam.live], dtype=odds.dtype, device=odds.device)
    widths = torch.tensor([len(beam.live) for beam in alive], device=odds.device)
    filled = torch.arange(int(widths.max()), device=odds.device) < widths[:, None]
    # one line for each prompt, in which its sequences stand side by side, and what is missing can never win
    table = odds.new_full((*filled.shape, ids.shape[-1]), float("-inf"))
    names = ids.new_zeros(table.shape)
    table[filled], names[filled] = odds + before[:, None], ids
    ranked, order = table.flatten(1).sort(descending=True, stable=True)
    ranked, order = ranked[:, :wanted], order[:, :wanted]
    names, parents = names.flatten(1).gather(1, order), order // ids.shape[-1]
    lines = zip(ranked.tolist(), parents.tolist(), names.tolist(), strict=True)
    return [[c for c in zip(*line, strict=True) if c[0] > float("-inf")] for line in lines]

"""The loop of beam search: pools of candidates, live and ended sequences, and when a search is settled.

Each step ranks all continuations of the live sequences of a prompt. A candidate that ends (at a stop id, or at the
maximum length) is kept if it is among the best `beams` of the step; the best `beams` that do not end stay alive. The
search of a prompt ends when no live sequence can change the result any more (`PromptSearch.settled` has the proof), so
the result is that of searching to the maximum length.
"""

import bisect
import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from heddle.decoding.constraints import Constraint
from heddle.decoding.generation import Completion, GenerationConfig, process_logits
from heddle.decoding.runtime import (
    Deadline,
    FinishReason,
    Prefill,
    PrefixCache,
    Request,
    eval_mode,
    prepare_prefill,
    with_capacity,
)
from heddle.decoding.sampling import History, Logits
from heddle.decoding.search.candidates import BeamCandidate, CandidatePool, StepScores, candidate_pools
from heddle.decoding.search.coverage import AttentionRecorder, Coverage, coverage_penalties, record_attention
from heddle.models.networks import AutoregressiveModel
from heddle.nn.state import CrossKVCache, State


class BeamNode(NamedTuple):
    """The last id of a live sequence, linked to the ids before it."""

    total: float = 0.0
    logprob: float = 0.0
    id: int = -1
    before: "BeamNode | None" = None
    constraint: Constraint | None = None

    def ids(self) -> list[int]:
        """Return all new ids of the sequence."""
        node, found = self, list[int]()
        while node.before is not None:
            found.append(node.id)
            node = node.before
        return found[::-1]


@dataclass(frozen=True)
class SearchSettings:
    """The settings of a search, the same for all its prompts; `BeamSearch` explains them."""

    config: GenerationConfig
    stop: frozenset[int]
    beams: int
    length_penalty: float
    coverage: float
    groups: int
    diversity: float

    @property
    def width(self) -> int:
        """Return the number of live sequences of a group."""
        return self.beams // self.groups

    @property
    def rewards(self) -> bool:
        """Tell whether penalties can make a step score positive, so that a sequence gains by growing."""
        penalties = self.config.penalties
        return penalties.presence < 0 or penalties.frequency < 0 or any(value > 0 for _, value in penalties.bias)

    def rank(self, total: float, length: int) -> float:
        """Return the score by which a sequence of this many new tokens is ranked."""
        return total / float(length**self.length_penalty)


@dataclass
class PromptSearch:
    """The search of one prompt: its live sequences, by groups, and the best that have ended."""

    settings: SearchSettings
    max_tokens: int  # new tokens that a sequence may have
    end_reason: FinishReason  # why it may have no more
    live: list[list[BeamNode]]
    new: int = 0  # new tokens of the live sequences
    ended: list[tuple[bool, float, Completion]] = field(default_factory=list)  # (cut off, -score), in order

    def advance(self, pools: Sequence[CandidatePool], coverage: Sequence[float], late: bool) -> list[int]:
        """Grow by one token, given a pool for each group; return the parent of each live sequence."""
        self.new += 1
        if late and self.new < self.max_tokens:
            self.max_tokens, self.end_reason = self.new, FinishReason.TIME
        before, self.live = self.live, []
        parents, taken, first = list[int](), Counter[int](), 0
        for group, pool in zip(before, pools, strict=True):
            penalties = {id: count * self.settings.diversity for id, count in taken.items()}
            kept = self._grow(group, pool.ranked(penalties), coverage[first:])
            self.live.append([node for _, node in kept])
            parents += [first + parent for parent, _ in kept]
            taken.update(node.id for _, node in kept)
            first += len(group)
        if not parents and not self.ended:
            self._give_up([node for group in before for node in group], coverage)
        if self.settled():
            self.live, parents = [[] for _ in self.live], []
        return parents

    def _grow(
        self, group: list[BeamNode], candidates: Iterator[BeamCandidate], coverage: Sequence[float]
    ) -> list[tuple[int, BeamNode]]:
        """End the candidates that end; return the best of the others, each with the number of its parent."""
        kept: list[tuple[int, BeamNode]] = []
        width, last = self.settings.width, self.new == self.max_tokens
        for rank, (total, logprob, parent, id) in enumerate(candidates):
            if rank >= width and (last or len(kept) == width):
                break
            constraint = group[parent].constraint
            finished = id in self.settings.stop
            if constraint is not None and not finished:
                constraint = constraint.advance(id)
                finished = constraint.finished
            node = BeamNode(total, logprob, id, group[parent], constraint)
            if not finished and not last:
                kept += [(parent, node)] if len(kept) < width else []
            elif rank < width:
                self._end(node, FinishReason.STOP if finished else self.end_reason, coverage[parent])
        return kept

    def _end(self, node: BeamNode, reason: FinishReason, coverage: float) -> None:
        """Insert a sequence into the list, if it is good enough; those cut off where they may not end come last."""
        ids = node.ids()
        if self.settings.groups > 1 and any(other.ids == ids for _, _, other in self.ended):
            return  # an earlier group has found it
        score = self.settings.rank(node.total, max(1, len(ids))) + coverage
        completion = Completion(ids, reason, logprob=node.logprob, score=score)
        entry = reason is not FinishReason.STOP and self._cut_off(node), -score, completion
        bisect.insort(self.ended, entry, key=lambda e: e[:2])
        del self.ended[self.settings.config.samples :]

    def _cut_off(self, node: BeamNode) -> bool:
        """Tell whether a constraint does not let the sequence end here."""
        allowed = None if node.constraint is None else node.constraint.allowed()
        return allowed is not None and not any(bool(allowed[id]) for id in self.settings.stop if id < len(allowed))

    def _give_up(self, nodes: list[BeamNode], coverage: Sequence[float]) -> None:
        """End sequences that no token may follow, since there are no others."""
        for node, penalty in zip(nodes, coverage, strict=True):
            finished = node.constraint is not None and node.constraint.finished
            self._end(node, FinishReason.STOP if finished else FinishReason.STUCK, penalty)

    def settled(self) -> bool:
        """Tell whether no live sequence can enter the list any more.

        Proof. Let `best` be the highest total of the live sequences. No step score is positive (unless penalties reward
        tokens: then the search continues to the maximum length), so whatever ends later has a total of at most `best`.
        It ends at a length L between the next one and the maximum. Dividing by L ** length_penalty, a positive number,
        keeps the order of totals, and coverage adds nothing above 0, so its score is at most `best` /
        L ** length_penalty. As `best` is not positive, this is monotonic in L: its maximum lies at one end. If even the
        maximum does not exceed the last score of a full list, nothing can enter, since ties keep the earlier sequence
        in front. This must hold for the live sequences of every group, whose tokens are penalties of later groups.
        """
        live = [node.total for group in self.live for node in group]
        if not live or len(self.ended) < self.settings.config.samples or self.settings.rewards:
            return not live
        bound = max(self.settings.rank(max(live), length) for length in (self.new + 1, self.max_tokens))
        return bound <= -self.ended[-1][1]


class BeamBatch:
    """The live sequences of all prompts side by side: their state, history and coverage."""

    def __init__(
        self,
        model: AutoregressiveModel,
        prefill: Prefill,
        settings: SearchSettings,
        recorder: AttentionRecorder | None,
    ) -> None:
        self.model, self.prefill, self.settings, self.recorder = model, prefill, settings, recorder
        logits, state = prefill.run(model)
        self.owners = [row for row in range(len(logits)) for _ in range(settings.groups)]  # number of the prompt
        self.logits, self.state = logits[self.owners], state.select(self.owners)
        prompts = [prefill.prompts[owner] for owner in self.owners]
        penalties = settings.config.penalties
        self.history = History.from_prompts(prompts, logits.device) if penalties.needs_history else None
        self.coverage: Coverage | None = None if recorder is None else recorder.take()[self.owners]

    def pools(self, searches: Sequence[PromptSearch]) -> list[CandidatePool]:
        """Return a pool of candidates for each group of each prompt."""
        nodes = [node for search in searches for group in search.live for node in group]
        settings, config = self.settings, self.settings.config
        half = self.logits.dtype in (torch.bfloat16, torch.float16)
        logprobs: Logits = (self.logits.float() if half else self.logits).log_softmax(-1)
        constraints = [node.constraint for node in nodes]
        processed = process_logits(logprobs, config, searches[0].new, self.history, constraints)
        sums = torch.tensor([node[:2] for node in nodes], dtype=torch.float64, device=processed.device)
        widths = [len(group) for search in searches for group in search.live]
        exact = settings.width * (1 + len(settings.stop))
        spare = settings.beams if settings.groups > 1 else 0
        return candidate_pools(StepScores(processed, logprobs, *sums.T), widths, exact, spare)

    def coverage_scores(self) -> list[float]:
        """Return what coverage adds to the score of each row if it ends now."""
        if self.coverage is None or self.state.memory is None:
            return [0.0] * len(self.owners)
        found: list[float] = coverage_penalties(self.coverage, self.state.memory.allowed).tolist()
        return [self.settings.coverage * penalty for penalty in found]

    def advance(self, rows: list[int], owners: list[int], ids: list[int], new: int) -> None:
        """Continue from the given rows, each by an id, after which all have `new` new ones."""
        device = self.logits.device
        state = self.state.select(rows) if owners != self.owners else _reorder(self.state, rows)
        picked, newest = torch.tensor(rows, device=device), torch.tensor(ids, device=device)
        length = new + max(len(self.prefill.prompts[owner]) for owner in owners)
        state = with_capacity(self.model, state, length, self.prefill.max_length)
        vectors, self.state = self.model.step(newest[:, None], state)
        self.logits = self.model.head.logits(vectors[:, -1])
        self.owners = owners
        if self.history is not None:
            self.history = self.history.select(picked).append(newest)
        if self.coverage is not None and self.recorder is not None:
            self.coverage = self.coverage.index_select(0, picked) + self.recorder.take()


def _reorder(state: State, rows: list[int]) -> State:
    """Return the state of rows that change places within their own prompt; what they share of the source stays."""
    shared = {key: slot for key, slot in state.slots.items() if isinstance(slot, CrossKVCache)}
    own = {key: slot for key, slot in state.slots.items() if key not in shared}
    moved = dataclasses.replace(state, slots=own, memory=None).select(rows)
    return dataclasses.replace(moved, slots={**moved.slots, **shared}, memory=state.memory)


@torch.inference_mode()
def run_search(
    model: AutoregressiveModel,
    requests: Sequence[Request],
    settings: SearchSettings,
    prefix_cache: PrefixCache | None = None,
) -> list[list[Completion]]:
    """Return the best `samples` sequences of each request, best first; fewer only where no more were found."""
    config, deadline = settings.config, Deadline.after(settings.config.seconds)
    if not requests:
        return []
    covering = bool(settings.coverage)  # counts the attention of all tokens, so none may come from a cache
    prefill = prepare_prefill(model, requests, config.prefill, None if covering else prefix_cache)
    searches = [
        PromptSearch(
            settings,
            end - len(prompt),
            reason,
            [[BeamNode(constraint=r.constraint)] for _ in range(settings.groups)],
        )
        for prompt, end, reason, r in zip(prefill.prompts, prefill.ends, prefill.end_reasons, requests, strict=True)
    ]
    recording = record_attention(model) if covering else contextlib.nullcontext()
    with eval_mode(model), recording as recorder:
        batch = BeamBatch(model, prefill, settings, recorder)
        alive = dict(enumerate(searches))
        while alive:
            alive = _grow(alive, batch, deadline.passed())
    return [[completion for _, _, completion in search.ended] for search in searches]


def _grow(searches: dict[int, PromptSearch], batch: BeamBatch, late: bool) -> dict[int, PromptSearch]:
    """Grow all searches by one token; return those that continue."""
    groups, first = batch.settings.groups, 0
    pools, coverage = batch.pools(list(searches.values())), batch.coverage_scores()
    picked: list[int] = []
    owners: list[int] = []
    for at, (owner, search) in enumerate(searches.items()):
        width = sum(map(len, search.live))
        parents = search.advance(pools[at * groups : (at + 1) * groups], coverage[first : first + width], late)
        picked += [first + parent for parent in parents]
        owners += [owner] * len(parents)
        first += width
    alive = {owner: search for owner, search in searches.items() if any(search.live)}
    if alive:
        ids = [node.id for search in alive.values() for group in search.live for node in group]
        batch.advance(picked, owners, ids, next(iter(alive.values())).new)
    return alive

"""Beam search: several sequences of each prompt grow side by side, and the best that end are kept (Lowerre 1976).

Each step ranks all continuations of the live sequences of a prompt. A candidate that ends (at a stop id, or at the
maximum length) is kept if it is among the best `beams` of the step; the best `beams` that do not end stay alive. The
search of a prompt ends when no live sequence can change the result any more (`PromptSearch.is_final` has the proof), or
earlier, by `early_stopping`.

Finished sequences are ranked by the sum of their step scores over length to the power of `length_penalty` (GNMT, Wu et
al. 2016), where the length counts new tokens alone, plus the coverage penalty (`coverage.py`). A step score is the
log-probability of a token by the model; penalties change it, and constraints remove tokens, but the remaining ones are
not renormalized: the most probable of the allowed sequences wins.

Diverse beam search (Vijayakumar et al. 2016): groups of beams search in turn. A token costs a group `diversity` for
each live sequence of the earlier groups that took it at this step. This cost ranks candidates and is then dropped. One
beam is greedy search, unless a length penalty lets it continue after an end, for a better one.
"""

import bisect
import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, cast, get_args

import torch

import heddle.decoding.runtime as runtime
from heddle.core import ConfigError, UsageError, check_at_least, part
from heddle.decoding.constraints import Constraint
from heddle.decoding.generation import (
    BatchOutputs,
    Completion,
    DecodingStrategy,
    GenerationConfig,
    GenerationJob,
    StepOutput,
    TokenLogprobs,
    all_samples,
    check_rows,
    chosen_logprobs,
    process_logits,
)
from heddle.decoding.sampling import History, Logits
from heddle.decoding.search.candidates import BeamCandidate, CandidatePool, StepScores, candidate_pools
from heddle.decoding.search.coverage import AttentionRecorder, Coverage, coverage_penalties, record_attention
from heddle.models.networks import AutoregressiveModel
from heddle.nn.state import CrossKVCache, State

EarlyStop = Literal["never", "heuristic", "full"]
Watch = Callable[[Sequence["PromptSearch"]], None]
Steps = Generator[list[StepOutput], None, list[list[Completion]]]


@part("beams")
class BeamSearch(DecodingStrategy):
    """Beam search: the most probable sequence of each prompt, by `beams` sequences that grow side by side."""

    streams = False
    compiles = False

    beams: int = 4
    length_penalty: float = 0.0  # rank by log-probability / length ** this: 0 the sum, 1 the mean over tokens
    coverage: float = 0.0  # weight of the coverage penalty; 0: none
    groups: int = 1  # groups of beams, for diverse beam search
    diversity: float = 0.0  # what a token costs for each sequence of earlier groups that takes it at the same step
    early_stopping: EarlyStop = "never"  # full: when `beams` sequences ended; heuristic: when none live is better now

    def __post_init__(self) -> None:
        check_at_least(1, beams=self.beams)
        check_rows(beams=self.beams)
        if not abs(self.length_penalty) <= 10:  # beyond it, long rows overflow
            raise ConfigError("length_penalty", want="a number from -10 to 10, such as 1", got=self.length_penalty)
        if not 0 <= self.coverage < math.inf:
            raise ConfigError("coverage", want="0 or more", got=self.coverage)
        if self.groups < 1 or self.beams % self.groups:
            raise ConfigError("groups", want=f"a number that divides the {self.beams} beams", got=self.groups)
        if not 0 <= self.diversity < math.inf:
            raise ConfigError("diversity", want="0 or more", got=self.diversity)
        if self.diversity and self.groups == 1:
            raise ConfigError("diversity", want="0 where all beams are one group", got=self.diversity)
        if self.groups > 1 and not self.diversity:
            raise ConfigError("diversity", want="above 0, because otherwise all groups find the same", got=0)
        if self.early_stopping not in get_args(EarlyStop):
            raise ConfigError(
                "early_stopping", want=f"one of {', '.join(get_args(EarlyStop))}", got=self.early_stopping
            )

    @property
    def max_samples(self) -> int:
        return self.beams

    @property
    def width(self) -> int:
        """Return the number of live sequences of a group."""
        return self.beams // self.groups

    def check(self, config: GenerationConfig) -> None:
        """Refuse more samples than beams."""
        if config.samples > self.beams:
            raise ConfigError("samples", want=f"at most the {self.beams} beams", got=config.samples)

    def check_source(self, has_source: bool) -> None:
        """Refuse coverage of a source, where there is none."""
        if self.coverage and not has_source:
            raise ConfigError("coverage", want="0, since a language model has no source", got=self.coverage)

    def decode(self, job: GenerationJob) -> BatchOutputs:
        """Yield nothing while the search goes on, so that a caller may do other work, then the best sequences."""
        for row, found in enumerate(all_samples((yield from self._complete(job)), job.config.samples)):
            last, logprobs = len(found.ids) - 1, found.token_logprobs
            steps = [
                StepOutput(row, id, found.reason if i == last else None, logprobs[i] if logprobs else None)
                for i, id in enumerate(found.ids)
            ]
            yield steps or [StepOutput(row, None, found.reason)]

    def complete(self, job: GenerationJob) -> list[list[Completion]]:
        """Return the best sequences of each request, best first; fewer than `samples` where no more were found."""
        return _drain(self._complete(job))

    def _complete(self, job: GenerationJob) -> Steps:
        """Return what `complete` does; yield nothing after each step."""
        if job.should_stop is not None:
            raise UsageError("stop: not supported by beam search, which ends at the end token only")
        found = yield from _search(job, self)
        if job.config.logprobs is None:
            return found
        flat = [(request, best.ids) for request, each in zip(job.requests, found, strict=True) for best in each]
        logprobs = iter(_compute_logprobs(job.model, flat, job.config))
        return [[dataclasses.replace(best, token_logprobs=next(logprobs)) for best in each] for each in found]

    def rank(self, total: float, length: int) -> float:
        """Return the score by which a sequence of this many new tokens is ranked."""
        return total / float(length**self.length_penalty)


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


@dataclass
class PromptSearch:
    """The search of one prompt: its live sequences, by groups, and the best that have ended."""

    search: BeamSearch
    config: GenerationConfig
    max_tokens: int  # new tokens that a sequence may have
    end_reason: runtime.FinishReason  # why it may have no more
    live: list[list[BeamNode]]
    new: int = 0  # new tokens of the live sequences
    ended: list[tuple[bool, float, Completion]] = field(default_factory=list)  # (cut off, -score), in order

    def advance(self, pools: Sequence[CandidatePool], coverage: Sequence[float], timed_out: bool) -> list[int]:
        """Grow by one token, given a pool for each group; return the parent of each live sequence."""
        self.new += 1
        if timed_out and self.new < self.max_tokens:
            self.max_tokens, self.end_reason = self.new, runtime.FinishReason.TIME
        before, self.live = self.live, []
        parents, taken, first = list[int](), Counter[int](), 0
        for group, pool in zip(before, pools, strict=True):
            penalties = {id: count * self.search.diversity for id, count in taken.items()}
            kept = self._extend(group, pool.ranked(penalties), coverage[first:])
            self.live.append([node for _, node in kept])
            parents += [first + parent for parent, _ in kept]
            taken.update(node.id for _, node in kept)
            first += len(group)
        if not parents and not self.ended:
            self._end_stuck([node for group in before for node in group], coverage)
        if self.is_final():
            self.live, parents = [[] for _ in self.live], []
        return parents

    def _extend(
        self, group: list[BeamNode], candidates: Iterator[BeamCandidate], coverage: Sequence[float]
    ) -> list[tuple[int, BeamNode]]:
        """End the candidates that end; return the best of the others, each with the number of its parent."""
        kept: list[tuple[int, BeamNode]] = []
        width, last = self.search.width, self.new == self.max_tokens
        for rank, (total, logprob, parent, id) in enumerate(candidates):
            if rank >= width and (last or len(kept) == width):
                break
            constraint = group[parent].constraint
            finished = id in self.config.stop
            if constraint is not None and not finished:
                constraint = constraint.advance(id)
                finished = constraint.finished
            node = BeamNode(total, logprob, id, group[parent], constraint)
            if not finished and not last:
                kept += [(parent, node)] if len(kept) < width else []
            elif rank < width:
                self._end(node, runtime.FinishReason.STOP if finished else self.end_reason, coverage[parent])
        return kept

    def _end(self, node: BeamNode, reason: runtime.FinishReason, coverage: float) -> None:
        """Insert a sequence into the list, if it is good enough; those cut off where they may not end come last."""
        ids = node.ids()
        if self.search.groups > 1 and any(other.ids == ids for _, _, other in self.ended):
            return  # an earlier group has found it
        score = self.search.rank(node.total, max(1, len(ids))) + coverage
        completion = Completion(ids, reason, logprob=node.logprob, score=score)
        entry = reason is not runtime.FinishReason.STOP and self._cut_off(node), -score, completion
        bisect.insort(self.ended, entry, key=lambda e: e[:2])
        del self.ended[self.kept :]

    def _cut_off(self, node: BeamNode) -> bool:
        """Tell whether a constraint does not let the sequence end here."""
        allowed = None if node.constraint is None else node.constraint.allowed()
        return allowed is not None and not any(bool(allowed[id]) for id in self.config.stop if id < len(allowed))

    def _end_stuck(self, nodes: list[BeamNode], coverage: Sequence[float]) -> None:
        """End sequences that no token may follow, since there are no others."""
        for node, penalty in zip(nodes, coverage, strict=True):
            finished = node.constraint is not None and node.constraint.finished
            self._end(node, runtime.FinishReason.STOP if finished else runtime.FinishReason.STUCK, penalty)

    @property
    def kept(self) -> int:
        """Return how many sequences that ended are kept: to stop early, one of each beam."""
        return self.config.samples if self.search.early_stopping == "never" else self.search.beams

    @property
    def rewards(self) -> bool:
        """Tell whether penalties can make a step score positive, so that a sequence gains by growing."""
        penalties = self.config.penalties
        return penalties.presence < 0 or penalties.frequency < 0 or any(value > 0 for _, value in penalties.bias)

    def is_final(self) -> bool:
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
        if live and self.search.early_stopping != "never":
            full = len(self.ended) == self.kept
            behind = full and self.search.rank(max(live), self.new) <= -self.ended[-1][1]
            return full if self.search.early_stopping == "full" else behind
        if not live or len(self.ended) < self.config.samples or self.rewards:
            return not live
        bound = max(self.search.rank(max(live), length) for length in (self.new + 1, self.max_tokens))
        return bound <= -self.ended[-1][1]


class BeamBatch:
    """The live sequences of all prompts side by side: their state, history and coverage."""

    def __init__(
        self, job: GenerationJob, search: BeamSearch, prefill: runtime.Prefill, recorder: AttentionRecorder | None
    ) -> None:
        self.model, self.config, self.search = job.model, job.config, search
        self.prefill, self.recorder = prefill, recorder
        logits, state = prefill.run(self.model)
        self.owners = [row for row in range(len(logits)) for _ in range(search.groups)]  # number of the prompt
        self.logits, self.state = logits[self.owners], state.select(self.owners)
        prompts = [prefill.prompts[owner] for owner in self.owners]
        needed = self.config.penalties.needs_history
        self.history = History.from_prompts(prompts, logits.device) if needed else None
        self.coverage: Coverage | None = None if recorder is None else recorder.take()[self.owners]

    def pools(self, searches: Sequence[PromptSearch]) -> list[CandidatePool]:
        """Return a pool of candidates for each group of each prompt."""
        nodes = [node for each in searches for group in each.live for node in group]
        config, search = self.config, self.search
        half = self.logits.dtype in (torch.bfloat16, torch.float16)
        logprobs: Logits = (self.logits.float() if half else self.logits).log_softmax(-1)
        constraints = [node.constraint for node in nodes]
        processed = process_logits(logprobs, config, searches[0].new, self.history, constraints)
        sums = torch.tensor([node[:2] for node in nodes], dtype=torch.float64, device=processed.device)
        widths = [len(group) for each in searches for group in each.live]
        exact = search.width * (1 + len(set(config.stop)))
        spare = search.beams if search.groups > 1 else 0
        return candidate_pools(StepScores(processed, logprobs, *sums.T), widths, exact, spare)

    def coverage_scores(self) -> list[float]:
        """Return what coverage adds to the score of each row if it ends now."""
        if self.coverage is None or self.state.memory is None:
            return [0.0] * len(self.owners)
        found: list[float] = coverage_penalties(self.coverage, self.state.memory.allowed).tolist()
        return [self.search.coverage * penalty for penalty in found]

    def advance(self, rows: list[int], owners: list[int], ids: list[int], new: int) -> None:
        """Continue from the given rows, each by an id, after which all have `new` new ones."""
        device = self.logits.device
        state = self.state.select(rows) if owners != self.owners else _reorder(self.state, rows)
        picked, newest = torch.tensor(rows, device=device), torch.tensor(ids, device=device)
        length = new + max(len(self.prefill.prompts[owner]) for owner in owners)
        state = runtime.with_capacity(self.model, state, length, self.prefill.max_length)
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
def _search(job: GenerationJob, search: BeamSearch, watch: Watch | None = None) -> Steps:
    """Return the best `samples` sequences of each request, best first; yield nothing after each step."""
    config, deadline = job.config, runtime.Deadline.after(job.config.seconds)
    if not job.requests:
        return []
    covering = bool(search.coverage)  # counts the attention of all tokens, so none may come from a cache
    prefill = runtime.prepare_prefill(job.model, job.requests, config.prefill, None if covering else job.prefix_cache)
    ends = zip(prefill.prompts, prefill.ends, prefill.end_reasons, job.requests, strict=True)
    searches = [
        PromptSearch(search, config, end - len(prompt), reason, [[BeamNode(constraint=r.constraint)]] * search.groups)
        for prompt, end, reason, r in ends
    ]
    recording = record_attention(job.model) if covering else contextlib.nullcontext()
    with runtime.eval_mode(job.model), recording as recorder:
        batch = BeamBatch(job, search, prefill, recorder)
        alive = dict(enumerate(searches))
        while alive:
            alive = _extend(alive, batch, deadline.passed())
            if watch is not None:
                watch(searches)
            if not covering:  # the recorder must see this search alone
                yield []
    return [[completion for _, _, completion in one.ended[: config.samples]] for one in searches]


def run_search(job: GenerationJob, search: BeamSearch, watch: Watch) -> list[list[Completion]]:
    """Return the best sequences of each request, best first; `watch` sees the searches after every step."""
    return _drain(_search(job, search, watch))


def _drain(steps: Steps) -> list[list[Completion]]:
    """Take all steps of a search; return what it found."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(list[list[Completion]], end.value)


def _extend(searches: dict[int, PromptSearch], batch: BeamBatch, timed_out: bool) -> dict[int, PromptSearch]:
    """Grow all searches by one token; return those that continue."""
    groups, first = batch.search.groups, 0
    pools, coverage = batch.pools(list(searches.values())), batch.coverage_scores()
    picked: list[int] = []
    owners: list[int] = []
    for at, (owner, search) in enumerate(searches.items()):
        width = sum(map(len, search.live))
        parents = search.advance(pools[at * groups : (at + 1) * groups], coverage[first : first + width], timed_out)
        picked += [first + parent for parent in parents]
        owners += [owner] * len(parents)
        first += width
    alive = {owner: search for owner, search in searches.items() if any(search.live)}
    if alive:
        ids = [node.id for search in alive.values() for group in search.live for node in group]
        batch.advance(picked, owners, ids, next(iter(alive.values())).new)
    return alive


@torch.inference_mode()
def _compute_logprobs(
    model: AutoregressiveModel, found: Sequence[tuple[runtime.Request, Sequence[int]]], config: GenerationConfig
) -> list[list[TokenLogprobs]]:
    """Return the log-probabilities of all new ids of each request, read once more in parallel."""
    prefill = runtime.prepare_prefill(model, [request for request, _ in found], config.prefill)
    rows = [[*prompt, *ids[:-1]] for prompt, (_, ids) in zip(prefill.prompts, found, strict=True)]
    computed = []
    with runtime.eval_mode(model):
        vectors, _, _ = runtime.read_all(model, prefill, rows)
        for row, prompt, (_, ids) in zip(vectors, prefill.prompts, found, strict=True):
            logits = model.head.logits(row[len(prompt) - 1 : len(prompt) - 1 + len(ids)])
            chosen = torch.tensor(ids, dtype=torch.long, device=logits.device)
            each = chosen_logprobs(logits, chosen, config.logprobs)
            computed.append([one for one in each if one is not None])
    return computed

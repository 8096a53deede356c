"""Beam search: several sequences of each prompt grow side by side, and the best that end are kept (Lowerre 1976).

Each step ranks what all live sequences of a prompt could become. A candidate that ends (at a stop, or where the row
must) is kept when it is among the best `beams` of the step; the best `beams` that do not end live on. Finished
sequences compete by the sum of their step scores over length to a power, where a length counts new tokens only: neither
padding, prompt nor source has a say; then by how much of the source they cover (`coverage.py`). A step score is the
log-probability of a token by the model's own odds; penalties change it, and guides leave tokens out, but what is left
is not divided up anew: of the sequences that obey, the most probable wins.

Groups of beams search apart (Vijayakumar et al. 2016): a token costs a group `diversity` for each live sequence of the
groups before it that took the token at this step. The fine decides who lives on, and then is forgotten.

The search of a prompt is over when no live sequence can still change the list that is asked for (`Beam.settled` has the
proof), so the result is that of searching to the last allowed length. One beam is greedy, unless a length penalty lets
it go on after an end, in the hope of a better one.
"""

import bisect
import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from heddle.core import ConfigError
from heddle.decoding.constraints import Constraint
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
from heddle.decoding.sampling import BeamSearch, GenerationConfig, History, Logits, process_logits
from heddle.decoding.search.candidates import Candidate, Contest, Gains, contests_of
from heddle.decoding.search.coverage import Cover, Watch, penalties_of, watching
from heddle.models.networks import AutoregressiveModel
from heddle.nn.state import CrossKVCache, State


@dataclass(frozen=True)
class Hypothesis:
    """A finished sequence: its new ids, the stop included, how probable it is, and why it ended."""

    ids: list[int]
    logprob: float  # nats, of all new ids, by the model's own odds
    score: float  # by which it was ranked
    reason: FinishReason


class Leaf(NamedTuple):
    """The last id of a live sequence, which goes back to the prompt."""

    total: float = 0.0
    logprob: float = 0.0
    id: int = -1
    before: "Leaf | None" = None
    constraint: Constraint | None = None

    def ids(self) -> list[int]:
        """Return all new ids of the sequence."""
        leaf, found = self, list[int]()
        while leaf.before is not None:
            found.append(leaf.id)
            leaf = leaf.before
        return found[::-1]


@dataclass(frozen=True)
class Rules:
    """What a search goes by, the same for all its prompts."""

    config: GenerationConfig
    choice: BeamSearch
    stop: frozenset[int]

    @classmethod
    def of(cls, config: GenerationConfig) -> "Rules":
        """Read them from the wishes, or say that the wishes are no search."""
        if not isinstance(config.choice, BeamSearch):
            raise ConfigError("choice", want="beams, to search with", got=config.choice.kind)
        return cls(config, config.choice, frozenset(config.stop))

    @property
    def width(self) -> int:
        """Return how many sequences of a group live."""
        return self.choice.beams // self.choice.groups

    @property
    def lifts(self) -> bool:
        """Tell whether penalties can make a step score positive, so that a sequence gains by growing."""
        penalties = self.config.penalties
        return penalties.presence < 0 or penalties.frequency < 0 or any(value > 0 for _, value in penalties.bias)


@dataclass
class Beam:
    """The search of one prompt: what still grows, by groups, and the best of what has ended."""

    rules: Rules
    most: int  # new tokens that a sequence may have
    cut: FinishReason  # why it may have no more
    live: list[list[Leaf]]
    new: int = 0  # new tokens of the live sequences
    ended: list[tuple[bool, float, Hypothesis]] = field(default_factory=list)  # broken off, less the score: in order

    def take(self, contests: Sequence[Contest], covers: Sequence[float], late: bool) -> list[int]:
        """Grow by one token, given a contest for each group; return which sequence each live one came from."""
        self.new += 1
        if late and self.new < self.most:
            self.most, self.cut = self.new, FinishReason.TIME
        before, self.live = self.live, []
        parents, taken, first = list[int](), Counter[int](), 0
        for group, contest in zip(before, contests, strict=True):
            fines = {id: count * self.rules.choice.diversity for id, count in taken.items()}
            kept = self._grow(group, contest.ranked(fines), covers[first:])
            self.live.append([leaf for _, leaf in kept])
            parents += [first + parent for parent, _ in kept]
            taken.update(leaf.id for _, leaf in kept)
            first += len(group)
        if not parents and not self.ended:
            self._give_up([leaf for group in before for leaf in group], covers)
        if self.settled():
            self.live, parents = [[] for _ in self.live], []
        return parents

    def _grow(
        self, group: list[Leaf], candidates: Iterator[Candidate], covers: Sequence[float]
    ) -> list[tuple[int, Leaf]]:
        """End those among the best that end; return the best that do not, each after its parent's number."""
        kept: list[tuple[int, Leaf]] = []
        width, last = self.rules.width, self.new == self.most
        for rank, (total, logprob, parent, id) in enumerate(candidates):
            if rank >= width and (last or len(kept) == width):
                break
            constraint = group[parent].constraint
            over = id in self.rules.stop
            if constraint is not None and not over:
                constraint = constraint.take(id)
                over = constraint.finished
            leaf = Leaf(total, logprob, id, group[parent], constraint)
            if not over and not last:
                kept += [(parent, leaf)] if len(kept) < width else []
            elif rank < width:
                self._end(leaf, FinishReason.STOP if over else self.cut, covers[parent])
        return kept

    def _end(self, leaf: Leaf, reason: FinishReason, cover: float) -> None:
        """Put a sequence into the list, if it is good enough; one broken off where it may not end comes last."""
        ids = leaf.ids()
        if self.rules.choice.groups > 1 and any(h.ids == ids for _, _, h in self.ended):
            return  # an earlier group has found it
        score = self.rules.choice.rank(leaf.total, max(1, len(ids))) + cover
        entry = (
            reason is not FinishReason.STOP and self._broken(leaf),
            -score,
            Hypothesis(ids, leaf.logprob, score, reason),
        )
        bisect.insort(self.ended, entry, key=lambda e: e[:2])
        del self.ended[self.rules.config.samples :]

    def _broken(self, leaf: Leaf) -> bool:
        """Tell whether a guide does not let the sequence end here."""
        allowed = None if leaf.constraint is None else leaf.constraint.allowed()
        return allowed is not None and not any(bool(allowed[id]) for id in self.rules.stop if id < len(allowed))

    def _give_up(self, leaves: list[Leaf], covers: Sequence[float]) -> None:
        """End sequences after which nothing may follow, for there are no others."""
        for leaf, cover in zip(leaves, covers, strict=True):
            over = leaf.constraint is not None and leaf.constraint.finished
            self._end(leaf, FinishReason.STOP if over else FinishReason.STUCK, cover)

    def settled(self) -> bool:
        """Tell whether no live sequence can come into the list any more.

        Proof. Let `best` be the highest total of those that live. No step score is positive (unless penalties lift
        it: then the search goes on to the last length), so whatever ends later has a total of at most `best`. It ends
        at a length L from the next to the last allowed one; dividing by L ** penalty, a positive number, keeps the
        order of totals, and coverage adds nothing above 0, so its score is at most `best` / L ** penalty. As `best` is
        not positive, that rises or falls steadily with L: its highest value lies at one end. Where even this is not
        above the last score of a full list, nothing enters any more, since of equals the earlier one stays in front.
        Those that live must all be in vain, of every group: what a group takes is a fine to the groups after it.
        """
        live = [leaf.total for group in self.live for leaf in group]
        if not live or len(self.ended) < self.rules.config.samples or self.rules.lifts:
            return not live
        hope = max(self.rules.choice.rank(max(live), length) for length in (self.new + 1, self.most))
        return hope <= -self.ended[-1][1]


class Rows:
    """What the live sequences of all prompts hold side by side: the state, what was said and what was covered."""

    def __init__(self, model: AutoregressiveModel, start: Prefill, rules: Rules, watch: Watch | None) -> None:
        self.model, self.start, self.rules, self.watch = model, start, rules, watch
        scores, state = start.read(model)
        self.owners = [row for row in range(len(scores)) for _ in range(rules.choice.groups)]  # number of the prompt
        self.scores, self.state = scores[self.owners], state.select(self.owners)
        prompts = [start.prompts[owner] for owner in self.owners]
        self.history = History.of(prompts, scores.device) if rules.config.penalties.remember else None
        self.cover: Cover | None = None if watch is None else watch.take()[self.owners]

    def contests(self, beams: Sequence[Beam]) -> list[Contest]:
        """Return a contest for each group of each prompt."""
        leaves = [leaf for beam in beams for group in beam.live for leaf in group]
        config, choice = self.rules.config, self.rules.choice
        half = self.scores.dtype in (torch.bfloat16, torch.float16)
        logprobs: Logits = (self.scores.float() if half else self.scores).log_softmax(-1)
        judged = process_logits(logprobs, config, beams[0].new, self.history, [leaf.constraint for leaf in leaves])
        sums = torch.tensor([leaf[:2] for leaf in leaves], dtype=torch.float64, device=judged.device)
        widths = [len(group) for beam in beams for group in beam.live]
        exact = self.rules.width * (1 + len(self.rules.stop))
        return contests_of(Gains(judged, logprobs, *sums.T), widths, exact, choice.beams if choice.groups > 1 else 0)

    def covers(self) -> list[float]:
        """Return what each row's coverage adds to its score if it ends now."""
        if self.cover is None or self.state.memory is None:
            return [0.0] * len(self.owners)
        found: list[float] = penalties_of(self.cover, self.state.memory.allowed).tolist()
        return [self.rules.choice.coverage * penalty for penalty in found]

    def advance(self, rows: list[int], owners: list[int], ids: list[int], new: int) -> None:
        """Let rows go on from the given ones, each by an id, after which it has so many new ones."""
        device = self.scores.device
        state = self.state.select(rows) if owners != self.owners else _among_themselves(self.state, rows)
        picked, newest = torch.tensor(rows, device=device), torch.tensor(ids, device=device)
        length = new + max(len(self.start.prompts[owner]) for owner in owners)
        state = with_capacity(self.model, state, length, self.start.most)
        vectors, self.state = self.model.step(newest[:, None], state)
        self.scores = self.model.head.logits(vectors[:, -1])
        self.owners = owners
        if self.history is not None:
            self.history = self.history.select(picked).push(newest)
        if self.cover is not None and self.watch is not None:
            self.cover = self.cover.index_select(0, picked) + self.watch.take()


def _among_themselves(state: State, rows: list[int]) -> State:
    """Return the state of rows that change places within their own prompt, whose source all of them share."""
    shared = {key: slot for key, slot in state.slots.items() if isinstance(slot, CrossKVCache)}
    own = {key: slot for key, slot in state.slots.items() if key not in shared}
    moved = dataclasses.replace(state, slots=own, memory=None).select(rows)
    return dataclasses.replace(moved, slots={**moved.slots, **shared}, memory=state.memory)


@torch.inference_mode()
def search(
    model: AutoregressiveModel,
    requests: Sequence[Request],
    config: GenerationConfig,
    prefix_cache: PrefixCache | None = None,
) -> list[list[Hypothesis]]:
    """Return the best `how.samples` sequences of each request, best first; fewer only where no more were found."""
    rules, clock = Rules.of(config), Deadline.start(config.seconds)
    if not requests:
        return []
    covering = bool(rules.choice.coverage)
    start = prepare_prefill(
        model, requests, config, None if covering else prefix_cache
    )  # coverage counts all that is looked at
    beams = [
        Beam(rules, end - len(prompt), cut, [[Leaf(constraint=request.constraint)] for _ in range(rules.choice.groups)])
        for prompt, end, cut, request in zip(start.prompts, start.ends, start.cuts, requests, strict=True)
    ]
    watched = watching(model) if covering else contextlib.nullcontext()
    with eval_mode(model), watched as watch:
        rows = Rows(model, start, rules, watch)
        alive = dict(enumerate(beams))
        while alive:
            alive = _grow(alive, rows, clock.over())
    return [[h for _, _, h in beam.ended] for beam in beams]


def _grow(beams: dict[int, Beam], rows: Rows, late: bool) -> dict[int, Beam]:
    """Grow all searches by one token; return those that go on."""
    groups, first = rows.rules.choice.groups, 0
    contests, covers = rows.contests(list(beams.values())), rows.covers()
    picked: list[int] = []
    owners: list[int] = []
    for at, (owner, beam) in enumerate(beams.items()):
        width = sum(map(len, beam.live))
        parents = beam.take(contests[at * groups : (at + 1) * groups], covers[first : first + width], late)
        picked += [first + parent for parent in parents]
        owners += [owner] * len(parents)
        first += width
    alive = {owner: beam for owner, beam in beams.items() if any(beam.live)}
    if alive:
        ids = [leaf.id for beam in alive.values() for group in beam.live for leaf in group]
        rows.advance(picked, owners, ids, next(iter(alive.values())).new)
    return alive

"""Generation: prompts -> new ids. All prompts are read at once, then every row grows by one token a step."""

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Int
from torch import Tensor

from heddle.core import UsageError, replace
from heddle.decoding.constraints import Constraint
from heddle.decoding.generation.contrastive import ContrastiveDecoder, shortened
from heddle.decoding.generation.logprobs import Alternatives, TokenLogprobs, chosen_logprobs, recompute_logprobs
from heddle.decoding.generation.static_decoder import PendingTokens, StaticDecoder
from heddle.decoding.runtime import (
    Deadline,
    FinishReason,
    Prefill,
    PrefixCache,
    Prompt,
    Request,
    capture_mode,
    eval_mode,
    make_requests,
    prepare_prefill,
    with_capacity,
)
from heddle.decoding.sampling import (
    NO_TOKEN,
    BeamSearch,
    ContrastiveSearch,
    GenerationConfig,
    GreedySearch,
    History,
    Logits,
    MultinomialSampling,
    NextTokens,
    RowPosition,
    check_token_ids,
    choose,
    greedy_tokens,
    hash_ids,
    process_logits,
)
from heddle.decoding.search import search
from heddle.models.networks import AutoregressiveModel

StopCriterion = Callable[[int, int], bool]  # (row, new id) -> whether the row is finished, beyond the ids to stop at


@dataclass(frozen=True)
class Completion:
    """What one row gave: its new ids, the stop included, why it ended, and how probable each id was if asked for."""

    ids: list[int]
    reason: FinishReason
    odds: list[TokenLogprobs] = field(default_factory=list)

    @classmethod
    def of(cls, steps: "Sequence[StepOutput]") -> "Completion":
        """Join all steps of one row."""
        reason = steps[-1].reason
        if reason is None:
            raise UsageError("completion: want all steps of a row, got a row that goes on")
        odds = [step.odds for step in steps if step.id is not None and step.odds is not None]
        return cls([step.id for step in steps if step.id is not None], reason, odds)

    @property
    def logprobs(self) -> list[float]:
        """Return the log-probability of each id in nats, by the model's own odds."""
        return [each.logprob for each in self.odds]

    @property
    def alternatives(self) -> list[Alternatives]:
        """Return the most probable ids in the place of each, with their log-probabilities."""
        return [each.alternatives for each in self.odds]


class StepOutput(NamedTuple):
    """What one row did: its new id, and why it ended if it did; None: it ended without one more."""

    row: int
    id: int | None
    reason: FinishReason | None
    odds: TokenLogprobs | None = None


StepOutputs = Generator[StepOutput, None, None]


def generate(
    model: AutoregressiveModel,
    prompts: Sequence[Prompt],
    config: GenerationConfig,
    sources: Sequence[Prompt] | None = None,
) -> list[list[int]]:
    """Return the new ids of each prompt, a stop included; with several samples, those of a prompt side by side.

    An encoder-decoder is given a source for each prompt, which is then how the target begins, and mostly empty.
    """
    return [completion.ids for completion in complete(model, make_requests(prompts, sources), config)]


def complete(
    model: AutoregressiveModel,
    requests: Sequence[Request],
    config: GenerationConfig,
    should_stop: StopCriterion | None = None,
    prefix_cache: PrefixCache | None = None,
) -> list[Completion]:
    """Return the new ids of each request and why each ended; a row's ids never depend on the other rows.

    With prefixes, beginnings that were read before are not read again, which changes nothing else.
    """
    if isinstance(config.choice, BeamSearch):
        return _best(model, requests, config, should_stop, prefix_cache)
    rows: list[list[StepOutput]] = [[] for _ in range(len(requests) * config.samples)]
    for together in _grow(model, requests, config, should_stop, prefix_cache):
        for step in together:
            rows[step.row].append(step)
    return [Completion.of(row) for row in rows]


def follow(
    model: AutoregressiveModel,
    requests: Sequence[Request],
    config: GenerationConfig,
    should_stop: StopCriterion | None = None,
    prefix_cache: PrefixCache | None = None,
) -> StepOutputs:
    """Yield every new id of every row as it is chosen, row by row within a step; beams are known at the end only."""
    if not isinstance(config.choice, BeamSearch):
        with contextlib.closing(_grow(model, requests, config, should_stop, prefix_cache)) as grown:
            for together in grown:
                yield from together
        return
    for row, found in enumerate(_best(model, requests, config, should_stop, prefix_cache)):
        if not found.ids:
            yield StepOutput(row, None, found.reason)
        for i, id in enumerate(found.ids):
            last = i + 1 == len(found.ids)
            yield StepOutput(row, id, found.reason if last else None, found.odds[i] if found.odds else None)


def stream(
    model: AutoregressiveModel, prompt: Prompt, config: GenerationConfig, source: Prompt | None = None
) -> Iterator[int]:
    """Yield the ids of the first sample one by one, as they are chosen; beams are known at the end only."""
    with contextlib.closing(follow(model, [Request(prompt, source)], replace(config, samples=1))) as steps:
        yield from (step.id for step in steps if step.id is not None)


def _best(
    model: AutoregressiveModel,
    requests: Sequence[Request],
    config: GenerationConfig,
    should_stop: StopCriterion | None,
    prefix_cache: PrefixCache | None,
) -> list[Completion]:
    """Return the best sequences that beams find, as many for each prompt as are asked for."""
    if should_stop is not None:
        raise UsageError("stop: want none with several beams, which end at the end token alone")
    found = search(model, requests, config, prefix_cache)
    for best in found:
        if len(best) < config.samples:
            raise UsageError(
                f"samples: want at most {len(best)}, all the sequences that there are, got {config.samples}"
            )
    ended = [(request, h) for request, best in zip(requests, found, strict=True) for h in best]
    if config.alternatives is None:
        return [Completion(h.ids, h.reason) for _, h in ended]
    odds = recompute_logprobs(model, [(request, h.ids) for request, h in ended], config)
    return [Completion(h.ids, h.reason, each) for (_, h), each in zip(ended, odds, strict=True)]


def max_new_tokens(model: AutoregressiveModel, request: Request, config: GenerationConfig) -> int:
    """Return how many new tokens a request may come to have at most."""
    start = prepare_prefill(model, [request], config)
    return start.ends[0] - len(start.prompts[0])


# --- rows that grow ---------------------------------------------------------------------------------------------------


class StepDecoder(Protocol):
    """How rows go on: it chooses an id for each, then reads the ids of those that are kept."""

    scores: Logits  # of the first new token

    def choose(self, scores: Logits, places: list[RowPosition]) -> NextTokens:
        """Return an id for each row by its prepared scores; `NONE` where nothing can be chosen."""

    def advance(self, chosen: NextTokens, kept: Int[Tensor, " kept"] | None, length: int) -> Logits:
        """Read the chosen ids of the rows that are kept (None: all), so many tokens long; return the next scores."""


class DynamicDecoder:
    """Rows that grow by what is best or drawn: a `Walk`."""

    def __init__(self, model: AutoregressiveModel, start: Prefill, config: GenerationConfig) -> None:
        self.model, self.config, self.most = model, config, start.most
        self.scores, self.state = start.read(model)
        if config.samples > 1:
            each = torch.arange(len(self.scores), device=self.scores.device).repeat_interleave(config.samples)
            self.scores, self.state = self.scores[each], self.state.select(each)

    def choose(self, scores: Logits, places: list[RowPosition]) -> NextTokens:
        return choose(scores, self.config, places)

    def advance(self, chosen: NextTokens, kept: Int[Tensor, " kept"] | None, length: int) -> Logits:
        if kept is not None:
            chosen, self.state = chosen[kept], self.state.select(kept)
        self.state = with_capacity(self.model, self.state, length, self.most)
        vectors, self.state = self.model.step(chosen[:, None], self.state)
        return self.model.head.logits(vectors[:, -1])


@dataclass
class ActiveRow:
    """A row that still grows."""

    number: int
    place: RowPosition  # after the prompt and the new tokens
    end: int  # the length at which it must stop
    cut: FinishReason  # why it must stop there
    constraint: Constraint | None

    def take(
        self, id: int, stop: frozenset[int], should_stop: StopCriterion | None, late: bool
    ) -> tuple[int | None, FinishReason | None]:
        """Return the id as it counts, and why the row ends if it does."""
        if id == NO_TOKEN:
            over = self.constraint is not None and self.constraint.finished
            return None, FinishReason.STOP if over else FinishReason.STUCK
        self.place = self.place.then(id)
        halted = should_stop is not None and should_stop(self.number, id)
        if halted or id in stop:
            return id, FinishReason.STOP
        if self.constraint is not None:
            self.constraint = self.constraint.take(id)
            if self.constraint.finished:
                return id, FinishReason.STOP
        return id, self.cut if self.place.length == self.end else FinishReason.TIME if late else None


@dataclass(frozen=True)
class StopConditions:
    """What ends rows beside their length."""

    clock: Deadline
    stop: frozenset[int]
    should_stop: StopCriterion | None

    def take(self, rows: Sequence[ActiveRow], ids: Sequence[int]) -> list[tuple[int | None, FinishReason | None]]:
        """Give each row its id; return the ids as they count, and why rows end that do."""
        late = self.clock.over()
        return [row.take(id, self.stop, self.should_stop, late) for row, id in zip(rows, ids, strict=True)]


def active_rows(start: Prefill, requests: Sequence[Request], config: GenerationConfig) -> list[ActiveRow]:
    """Return the rows of all prompts, the samples of a prompt side by side."""
    drawn = isinstance(config.choice, MultinomialSampling)  # else nobody asks for the past
    pasts = [hash_ids(prompt, source) if drawn else None for prompt, source in start.rows()]
    each = zip(start.prompts, start.ends, start.cuts, requests, pasts, strict=True)
    return [
        ActiveRow(
            number * config.samples + sample, RowPosition(sample, len(prompt), past), end, cut, request.constraint
        )
        for number, (prompt, end, cut, request, past) in enumerate(each)
        for sample in range(config.samples)
    ]


@torch.inference_mode()
def _grow(
    model: AutoregressiveModel,
    requests: Sequence[Request],
    config: GenerationConfig,
    should_stop: StopCriterion | None,
    prefix_cache: PrefixCache | None,
) -> Generator[list[StepOutput], None, None]:
    """Yield what all rows do, step by step; together, for what torch does at each yield costs more than a row."""
    if not requests:
        return
    ends = StopConditions(Deadline.start(config.seconds), frozenset(config.stop), should_stop)
    start = prepare_prefill(model, requests, config, prefix_cache)
    kind = capture_mode(model, start, config)
    with eval_mode(model):
        if isinstance(config.choice, ContrastiveSearch):
            start = shortened(start, model)
            walk: StepDecoder = ContrastiveDecoder(model, start, config.choice)
        elif kind is None:
            walk = DynamicDecoder(model, start, config)
        else:
            walk = StaticDecoder(model, start, config, kind)
        rows, history = active_rows(start, requests, config), _history(start, config, walk.scores.device)
        try:
            if isinstance(walk, StaticDecoder) and history is None and _foreseen(rows, config):
                yield from _ahead(walk, rows, ends, config)
            else:
                yield from _one_by_one(walk, rows, ends, config, history)
        finally:
            if isinstance(walk, StaticDecoder):
                walk.close()


def _one_by_one(
    walk: StepDecoder, rows: list[ActiveRow], ends: StopConditions, config: GenerationConfig, history: History | None
) -> Generator[list[StepOutput], None, None]:
    """Choose, tell, read; and again."""
    scores, new = walk.scores, 0
    while True:
        ready = process_logits(scores, config, new, history, [row.constraint for row in rows])
        chosen = walk.choose(ready, [row.place for row in rows])
        odds = chosen_logprobs(scores, chosen, config.alternatives)
        taken = ends.take(rows, chosen.tolist())
        yield [StepOutput(row.number, *one, o) for row, one, o in zip(rows, taken, odds, strict=True)]
        kept = [i for i, (_, reason) in enumerate(taken) if reason is None]
        if not kept:
            return
        alive = None if len(kept) == len(rows) else torch.tensor(kept, device=chosen.device)
        rows, new = [rows[i] for i in kept], new + 1
        if history is not None:
            history = history.push(chosen) if alive is None else history.push(chosen).select(alive)
        scores = walk.advance(chosen, alive, max(row.place.length for row in rows))


def _foreseen(rows: list[ActiveRow], config: GenerationConfig) -> bool:
    """Tell whether each next token follows from the scores alone, so that nobody need wait for the host."""
    free = config.alternatives is None and all(row.constraint is None for row in rows)
    return free and isinstance(config.choice, GreedySearch)


def _ahead(
    walk: StaticDecoder, rows: list[ActiveRow], ends: StopConditions, config: GenerationConfig
) -> Generator[list[StepOutput], None, None]:
    """Let the device read each token while the host still waits to be told of it."""
    chosen = greedy_tokens(process_logits(walk.scores, config, 0))
    walk.set(chosen)
    told, new, alive = PendingTokens(chosen), 0, list(enumerate(rows))
    while True:
        new += 1  # the next step chooses a token after so many
        if new <= max(config.min_tokens, 1):
            walk.lean(new)
        ahead = None
        if any(row.place.length + 1 < row.end for _, row in alive):
            walk.reach(max(row.place.length for _, row in alive) + 1)
            ahead = walk.run()
        ids = told.ids()
        check_token_ids([ids[i] for i, _ in alive])
        taken = ends.take([row for _, row in alive], [ids[i] for i, _ in alive])
        yield [StepOutput(row.number, *one) for (_, row), one in zip(alive, taken, strict=True)]
        alive = [each for each, (_, reason) in zip(alive, taken, strict=True) if reason is None]
        if not alive:
            return
        assert ahead is not None
        told = ahead


def _history(start: Prefill, config: GenerationConfig, device: torch.device) -> History | None:
    """Return what the rows hold so far, where a penalty asks for it."""
    if not config.penalties.remember:
        return None
    return History.of([prompt for prompt in start.prompts for _ in range(config.samples)], device)

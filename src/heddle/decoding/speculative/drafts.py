"""Drafts: what guesses the next few tokens of each row: a smaller model, or what followed the same tokens before."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.core import ConfigError, UsageError, check_at_least
from heddle.decoding.generation import ActiveRow
from heddle.decoding.runtime import CaptureMode, Prefill, Request, capture_mode, eval_mode, prepare_prefill
from heddle.decoding.sampling import (
    NEG_INF,
    GenerationConfig,
    History,
    Logits,
    MultinomialSampling,
    RowPosition,
    choose,
    draw,
    invert,
    narrow,
    process_logits,
)
from heddle.decoding.speculative.verifier import BlockDecoder, block_decoder
from heddle.models.networks import AutoregressiveModel

MAX_AHEAD = 16  # guesses at once; the caches of windows can take so many tokens back
WIDTHS = (1, 2)  # ids that a draft reads at once: its last guess; after guesses that were right, one id more

Probabilities = Float[Tensor, " vocab"]
LogitsByPosition = Float[Tensor, "rows places vocab"]  # after a line, and after each of its guesses


@dataclass
class SpeculativeRow:
    """A row that still grows, with all that it holds."""

    row: ActiveRow
    ids: list[int]  # prompt and new tokens
    source: Sequence[int] | None
    new: int = 0  # new tokens among them
    over: bool = False
    history: History | None = None  # where a penalty asks for it

    def push(self, id: int) -> None:
        """Hold one more id."""
        self.ids.append(id)
        self.new += 1
        if self.history is not None:
            self.history = self.history.push(self.history.new.new_tensor([id]))

    def places(self, guesses: Sequence[int]) -> list[RowPosition]:
        """Return where the row stands, and where it would after each guess."""
        return list(accumulate(guesses, RowPosition.then, initial=self.row.place))


@dataclass(frozen=True)
class Proposal:
    """What may come next in one row, and the odds by which each id was drawn; no odds: nothing was drawn."""

    ids: list[int] = field(default_factory=list)
    odds: list[Probabilities] = field(default_factory=list)


@dataclass
class AcceptanceStats:
    """How many guesses were made, and how many of them were right."""

    guessed: int = 0
    right: int = 0

    @property
    def rate(self) -> float:
        """Return the share of guesses that were right."""
        return self.right / self.guessed if self.guessed else 0.0


class Drafter(ABC):
    """A draft at work on some rows."""

    @abstractmethod
    def guess(self, lines: Sequence[SpeculativeRow], counts: Sequence[int]) -> list[Proposal]:
        """Return at most so many guesses for each row."""

    @abstractmethod
    def keep(self, lines: Sequence[SpeculativeRow]) -> None:
        """Learn what became of the guesses: each line holds those that were right, and one id more."""

    @abstractmethod
    def select(self, rows: Sequence[int]) -> None:
        """Go on with some rows alone."""

    @abstractmethod
    def close(self) -> None:
        """Leave what may serve others."""


@dataclass(frozen=True)
class Draft(ABC):
    """Something that guesses; its tally adds up over all that it is used for."""

    ahead: int = 4  # guesses at once, at most
    tally: AcceptanceStats = field(default_factory=AcceptanceStats, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.ahead, int) or not 1 <= self.ahead <= MAX_AHEAD:
            raise ConfigError("ahead", want=f"1 to {MAX_AHEAD}", got=self.ahead)

    @abstractmethod
    def begin(
        self, model: AutoregressiveModel, start: Prefill, config: GenerationConfig, kind: CaptureMode | None
    ) -> Drafter:
        """Read what the rows of a model begin with, to go on in a way that `kind` told before all was at rest."""

    def kind(self, start: Prefill, config: GenerationConfig) -> CaptureMode | None:
        """Return how its own reading is done again and again; None: as it comes."""
        return None

    def eval_mode(self) -> AbstractContextManager[None]:
        """Hold still while it is used."""
        return contextlib.nullcontext()


def process_draft_logits(
    scores: LogitsByPosition, lines: Sequence[SpeculativeRow], guesses: Sequence[Proposal], config: GenerationConfig
) -> LogitsByPosition:
    """Return the scores by which a choice is made after each line, and after each of its guesses.

    After a guess that ends the row or that could not be chosen, they mean nothing: nobody gets there.
    """
    if not config.penalties.remember and all(n.row.constraint is None and n.new >= config.min_tokens for n in lines):
        return process_logits(scores.flatten(0, 1), config, config.min_tokens).view_as(scores)
    half = scores.dtype in (torch.bfloat16, torch.float16)  # in which small penalties would vanish
    found = scores.float() if half else scores.clone()
    for i, (line, guess) in enumerate(zip(lines, guesses, strict=True)):
        history, constraint = line.history, line.row.constraint
        for place, id in enumerate([*guess.ids, None]):
            found[i, place] = process_logits(scores[i, place][None], config, line.new + place, history, [constraint])[0]
            if id is None or id in config.stop or found[i, place, id] == NEG_INF:
                break
            history = None if history is None else history.push(history.new.new_tensor([id]))
            constraint = None if constraint is None else constraint.take(id)
            if constraint is not None and constraint.finished:
                break
    return found


# --- a smaller model --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ModelDraft(Draft):
    """A smaller model of the same vocabulary."""

    model: AutoregressiveModel

    def kind(self, start: Prefill, config: GenerationConfig) -> CaptureMode | None:
        return capture_mode(self.model, start, config)

    def begin(
        self, model: AutoregressiveModel, start: Prefill, config: GenerationConfig, kind: CaptureMode | None
    ) -> Drafter:
        if self.model.vocab != model.vocab:
            raise UsageError(f"draft: want the model's vocabulary of {model.vocab} ids, got {self.model.vocab}")
        sources = start.sources if self.model.reads_source else None
        if self.model.reads_source and sources is None:
            raise UsageError("draft: want a language model, for there is no source that an encoder could read")
        given = (None,) * len(start.prompts) if sources is None else sources
        requests = [Request(ids, source) for ids, source in zip(start.prompts, given, strict=True)]
        try:
            own = prepare_prefill(self.model, requests, config)
        except UsageError as error:
            raise UsageError(f"draft: {error}") from None
        _, state = own.read(self.model)
        each = [row for row in range(len(requests)) for _ in range(config.samples)]
        return _ModelDrafter(block_decoder(self.model, state.select(each), own.most, WIDTHS, self.ahead, kind), config)

    def eval_mode(self) -> AbstractContextManager[None]:
        return eval_mode(self.model)


class _ModelDrafter(Drafter):
    """A model that has read all of each line but its latest few ids."""

    def __init__(self, track: BlockDecoder, config: GenerationConfig) -> None:
        self.track, self.config = track, config

    def guess(self, lines: Sequence[SpeculativeRow], counts: Sequence[int]) -> list[Proposal]:
        guesses = [Proposal() for _ in lines]
        counts = [self._possible(line, count) for line, count in zip(lines, counts, strict=True)]
        rows = [line.ids[n:] if c else [] for line, n, c in zip(lines, self.track.lengths, counts, strict=True)]
        while any(rows):
            vectors = self.track.read(rows)
            last = torch.tensor([max(0, len(row) - 1) for row in rows], device=vectors.device)
            scores = self.track.model.head.logits(vectors[torch.arange(len(rows), device=last.device), last])
            found = self._next(scores, lines, guesses)
            for i, (guess, count) in enumerate(zip(guesses, counts, strict=True)):
                more = bool(rows[i]) and found.possible[i]
                if more:
                    guess.ids.append(found.ids[i])
                    guess.odds.extend(() if found.odds is None else (found.odds[i],))
                ends = not more or guess.ids[-1] in self.config.stop or len(guess.ids) == count
                rows[i] = [] if ends else guess.ids[-1:]
        return guesses

    def _possible(self, line: SpeculativeRow, count: int) -> int:
        """Return how many guesses there are positions for; the last guess is not read."""
        longest = self.track.model.max_length
        return count if longest is None else max(0, min(count, longest - len(line.ids) + 1))

    def _next(self, scores: Logits, lines: Sequence[SpeculativeRow], guesses: Sequence[Proposal]) -> "_NextTokens":
        places = [len(guess.ids) for guess in guesses]
        spread = scores[:, None].expand(-1, max(places) + 1, -1)
        at = torch.arange(len(lines), device=scores.device), torch.tensor(places, device=scores.device)
        own = process_draft_logits(spread, lines, guesses, self.config)[at]
        possible = (own.amax(-1) > NEG_INF).tolist()
        choice = self.config.choice
        where = [line.places(guess.ids)[-1] for line, guess in zip(lines, guesses, strict=True)]
        if not isinstance(choice, MultinomialSampling):
            return _NextTokens(choose(own, self.config, where).tolist(), None, possible)
        odds = narrow(own.double(), choice).softmax(-1).nan_to_num(0.0)
        draws = [draw(choice.seed, place, "guess") for place in where]
        ids = invert(odds, torch.tensor(draws, dtype=odds.dtype, device=odds.device))
        return _NextTokens(ids.tolist(), list(odds), possible)

    def keep(self, lines: Sequence[SpeculativeRow]) -> None:
        each = zip(lines, self.track.lengths, self.track.open, strict=True)
        self.track.keep([min(len(read), len(line.ids) - 1 - length) for line, length, read in each])

    def select(self, rows: Sequence[int]) -> None:
        self.track.select(rows)

    def close(self) -> None:
        self.track.close()


@dataclass(frozen=True)
class _NextTokens:
    """The next guess for each row, the odds by which it was drawn, and whether there is one."""

    ids: list[int]
    odds: list[Probabilities] | None
    possible: list[bool]


# --- what came before -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LookupDraft(Draft):
    """What followed the latest few tokens where they stood before, in the source or in the row itself (Saxena 2023)."""

    longest: int = 3  # tokens that must be the same; where there is no such place, fewer

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, longest=self.longest)

    def begin(
        self, model: AutoregressiveModel, start: Prefill, config: GenerationConfig, kind: CaptureMode | None
    ) -> Drafter:
        return _LookupDrafter(
            [NgramIndex(self.longest, source) for _, source in start.rows() for _ in range(config.samples)]
        )


class NgramIndex:
    """All that a row says, its source first, and where each of its short stretches stood last.

    Each id is looked at once, as it comes, so that a guess costs the same however long the row is.
    """

    def __init__(self, longest: int, source: Sequence[int] | None) -> None:
        self.longest, self.ids, self.own = longest, list(source or ()), 0
        self.known = 0  # ids that something followed, whose stretches are known
        self.after: dict[tuple[int, ...], int] = {}  # a stretch, and the place after it

    def update(self, line: SpeculativeRow) -> None:
        """Take up what the row holds by now."""
        self.ids += line.ids[self.own :]
        self.own = len(line.ids)
        for end in range(self.known + 1, len(self.ids)):
            for length in range(1, min(self.longest, end) + 1):
                self.after[tuple(self.ids[end - length : end])] = end
            self.known = end

    def guess(self, count: int) -> list[int]:
        """Return what followed the latest ids where they stood last, by the longest match that there is.

        Where the row ends before there are enough, it goes on as it began to repeat itself.
        """
        for length in range(min(self.longest, len(self.ids) - 1), 0, -1):
            place = self.after.get(tuple(self.ids[-length:]))
            if place is not None:
                found = self.ids[place : place + count]
                while len(found) < count:
                    found.append(found[place - len(self.ids)])
                return found
        return []


class _LookupDrafter(Drafter):
    """What each row said."""

    def __init__(self, rows: list[NgramIndex]) -> None:
        self.rows = rows

    def guess(self, lines: Sequence[SpeculativeRow], counts: Sequence[int]) -> list[Proposal]:
        guesses = []
        for said, line, count in zip(self.rows, lines, counts, strict=True):
            said.update(line)
            guesses.append(Proposal(said.guess(count)))
        return guesses

    def keep(self, lines: Sequence[SpeculativeRow]) -> None:
        return

    def select(self, rows: Sequence[int]) -> None:
        self.rows = [self.rows[row] for row in rows]

    def close(self) -> None:
        return

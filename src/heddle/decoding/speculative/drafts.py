"""Drafts of speculative decoding: propose the next few tokens of each row, by a smaller model or by prompt lookup."""

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
from heddle.decoding.generation import ActiveRow, GenerationConfig, TokenChooser, process_logits
from heddle.decoding.runtime import CaptureMode, Prefill, Request, Source, capture_mode, eval_mode, prepare_prefill
from heddle.decoding.sampling import NEG_INF, History, Logits, RowPosition, inverse_cdf
from heddle.decoding.speculative.block_decoder import BlockDecoder, block_decoder
from heddle.models.networks import AutoregressiveModel

MAX_AHEAD = 16  # proposed tokens at once; sliding-window caches can roll back this many
WIDTHS = (1, 2)  # ids that a draft model reads at once: its last proposal; if all were accepted, one id more

Probabilities = Float[Tensor, " vocab"]
BlockLogits = Float[Tensor, "rows places vocab"]  # after a row, and after each of its proposed tokens


@dataclass
class SpeculativeRow:
    """An active row with all its tokens."""

    row: ActiveRow
    ids: list[int]  # prompt and new tokens
    source: Source | None
    new: int = 0  # new tokens among them
    ended: bool = False
    history: History | None = None  # if a penalty needs it

    def append(self, id: int) -> None:
        """Append one id."""
        self.ids.append(id)
        self.new += 1
        if self.history is not None:
            self.history = self.history.append(self.history.new.new_tensor([id]))

    def positions(self, proposed: Sequence[int]) -> list[RowPosition]:
        """Return the position of the row, and those after each proposed id."""
        return list(accumulate(proposed, RowPosition.append, initial=self.row.position))


@dataclass(frozen=True)
class Proposal:
    """The proposed ids of one row, and the distributions that they were drawn from; none: nothing was drawn."""

    ids: list[int] = field(default_factory=list)
    probs: list[Probabilities] = field(default_factory=list)


@dataclass
class AcceptanceStats:
    """How many tokens were proposed, and how many of them were accepted."""

    proposed: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float:
        """Return the acceptance rate."""
        return self.accepted / self.proposed if self.proposed else 0.0


class Drafter(ABC):
    """A draft at work on some rows."""

    @abstractmethod
    def propose(self, rows: Sequence[SpeculativeRow], counts: Sequence[int]) -> list[Proposal]:
        """Return at most this many proposed ids for each row."""

    @abstractmethod
    def keep(self, rows: Sequence[SpeculativeRow]) -> None:
        """Continue after verification: each row has its accepted ids, and one id more."""

    @abstractmethod
    def select(self, rows: Sequence[int]) -> None:
        """Continue with some rows alone."""

    @abstractmethod
    def close(self) -> None:
        """Release what later generations can reuse."""


@dataclass(frozen=True)
class Draft(ABC):
    """What proposes tokens; its tally adds up over all generations that use it."""

    ahead: int = 4  # proposed tokens at once, at most
    tally: AcceptanceStats = field(default_factory=AcceptanceStats, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.ahead, int) or not 1 <= self.ahead <= MAX_AHEAD:
            raise ConfigError("ahead", want=f"1 to {MAX_AHEAD}", got=self.ahead)

    @abstractmethod
    def begin(
        self, model: AutoregressiveModel, prefill: Prefill, config: GenerationConfig, mode: CaptureMode | None
    ) -> Drafter:
        """Read the prompts of a model's prefill; mode: what `capture_mode` returned."""

    def capture_mode(self, prefill: Prefill, config: GenerationConfig) -> CaptureMode | None:
        """Return how its own steps are captured; call it before `eval_mode`."""
        return None

    def eval_mode(self) -> AbstractContextManager[None]:
        """Put its model, if it has one, into evaluation mode."""
        return contextlib.nullcontext()


def draft_chooser(config: GenerationConfig) -> TokenChooser:
    """Return how tokens are chosen, for drafts to propose them; refuse strategies that need more than the logits."""
    chooser = config.strategy.chooser
    if chooser is None:
        raise UsageError(f"draft: want sampling or greedy decoding, got {config.strategy.kind}")
    if config.streaming is not None:
        raise UsageError("draft: cannot be combined with sinks, whose cache drops tokens")
    return chooser


def process_block_logits(
    logits: BlockLogits, rows: Sequence[SpeculativeRow], proposals: Sequence[Proposal], config: GenerationConfig
) -> BlockLogits:
    """Return the processed logits after each row, and after each of its proposed ids.

    After an id that ends the row or that is not allowed, they are meaningless: the row never gets there.
    """
    penalties = config.penalties
    alike = not penalties.needs_history and not config.forced_end  # the logits of every place are processed alike
    if alike and all(r.row.constraint is None and r.new >= config.min_tokens for r in rows):
        return process_logits(logits.flatten(0, 1), config, config.min_tokens).view_as(logits)
    half = logits.dtype in (torch.bfloat16, torch.float16)  # too coarse for small penalties
    found = logits.float() if half else logits.clone()
    for i, (row, proposal) in enumerate(zip(rows, proposals, strict=True)):
        history, constraint = row.history, row.row.constraint
        for at, id in enumerate([*proposal.ids, None]):
            found[i, at] = process_logits(logits[i, at][None], config, row.new + at, history, [constraint])[0]
            if id is None or id in config.stop or found[i, at, id] == NEG_INF:
                break
            history = None if history is None else history.append(history.new.new_tensor([id]))
            constraint = None if constraint is None else constraint.advance(id)
            if constraint is not None and constraint.finished:
                break
    return found


# --- a smaller model --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ModelDraft(Draft):
    """Draft model: a smaller model of the same vocabulary."""

    model: AutoregressiveModel

    def capture_mode(self, prefill: Prefill, config: GenerationConfig) -> CaptureMode | None:
        return capture_mode(self.model, prefill, config.compile)

    def begin(
        self, model: AutoregressiveModel, prefill: Prefill, config: GenerationConfig, mode: CaptureMode | None
    ) -> Drafter:
        if self.model.vocab != model.vocab:
            raise UsageError(f"draft: want the model's vocabulary of {model.vocab} ids, got {self.model.vocab}")
        sources = prefill.sources if self.model.reads_source else None
        if self.model.reads_source and sources is None:
            raise UsageError("draft: want a language model, because there is no source for an encoder")
        given = (None,) * len(prefill.prompts) if sources is None else sources
        requests = [Request(ids, source) for ids, source in zip(prefill.prompts, given, strict=True)]
        try:
            own = prepare_prefill(self.model, requests, config.prefill)
        except UsageError as error:
            raise UsageError(f"draft: {error}") from None
        _, state = own.run(self.model)
        each = [row for row in range(len(requests)) for _ in range(config.samples)]
        decoder = block_decoder(self.model, state.select(each), own.max_length, WIDTHS, self.ahead, mode)
        return _ModelDrafter(decoder, config)

    def eval_mode(self) -> AbstractContextManager[None]:
        return eval_mode(self.model)


class _ModelDrafter(Drafter):
    """A draft model that has read all of each row but its latest few ids."""

    def __init__(self, decoder: BlockDecoder, config: GenerationConfig) -> None:
        self.decoder, self.config, self.chooser = decoder, config, draft_chooser(config)

    def propose(self, rows: Sequence[SpeculativeRow], counts: Sequence[int]) -> list[Proposal]:
        proposals = [Proposal() for _ in rows]
        counts = [self._possible(row, count) for row, count in zip(rows, counts, strict=True)]
        unread = [row.ids[n:] if c else [] for row, n, c in zip(rows, self.decoder.lengths, counts, strict=True)]
        while any(unread):
            vectors = self.decoder.read(unread)
            last = torch.tensor([max(0, len(ids) - 1) for ids in unread], device=vectors.device)
            logits = self.decoder.model.head.logits(vectors[torch.arange(len(unread), device=last.device), last])
            found = self._next(logits, rows, proposals)
            for i, (proposal, count) in enumerate(zip(proposals, counts, strict=True)):
                more = bool(unread[i]) and found.possible[i]
                if more:
                    proposal.ids.append(found.ids[i])
                    proposal.probs.extend(() if found.probs is None else (found.probs[i],))
                ends = not more or proposal.ids[-1] in self.config.stop or len(proposal.ids) == count
                unread[i] = [] if ends else proposal.ids[-1:]
        return proposals

    def _possible(self, row: SpeculativeRow, count: int) -> int:
        """Return how many ids there are positions for; the last one is not read."""
        longest = self.decoder.model.max_length
        return count if longest is None else max(0, min(count, longest - len(row.ids) + 1))

    def _next(self, logits: Logits, rows: Sequence[SpeculativeRow], proposals: Sequence[Proposal]) -> "_NextProposed":
        lengths = [len(proposal.ids) for proposal in proposals]
        spread = logits[:, None].expand(-1, max(lengths) + 1, -1)
        at = torch.arange(len(rows), device=logits.device), torch.tensor(lengths, device=logits.device)
        own = process_block_logits(spread, rows, proposals, self.config)[at]
        possible = (own.amax(-1) > NEG_INF).tolist()
        positions = [row.positions(proposal.ids)[-1] for row, proposal in zip(rows, proposals, strict=True)]
        sampler = self.chooser.sampler
        if sampler is None:
            return _NextProposed(self.chooser.choose(own, positions).tolist(), None, possible)
        probs = sampler.probabilities(own).nan_to_num(0.0)
        numbers = [sampler.uniform(position, "guess") for position in positions]
        ids = inverse_cdf(probs, torch.tensor(numbers, dtype=probs.dtype, device=probs.device))
        return _NextProposed(ids.tolist(), list(probs), possible)

    def keep(self, rows: Sequence[SpeculativeRow]) -> None:
        each = zip(rows, self.decoder.lengths, self.decoder.pending, strict=True)
        self.decoder.keep([min(len(pending), len(row.ids) - 1 - length) for row, length, pending in each])

    def select(self, rows: Sequence[int]) -> None:
        self.decoder.select(rows)

    def close(self) -> None:
        self.decoder.close()


@dataclass(frozen=True)
class _NextProposed:
    """The next proposed id of each row, the distribution that it was drawn from, and whether there is one."""

    ids: list[int]
    probs: list[Probabilities] | None
    possible: list[bool]


# --- prompt lookup ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LookupDraft(Draft):
    """Prompt lookup decoding: what followed the latest few tokens before, in the source or the row (Saxena 2023)."""

    longest: int = 3  # tokens that must match; where there is no match, fewer

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, longest=self.longest)

    def begin(
        self, model: AutoregressiveModel, prefill: Prefill, config: GenerationConfig, mode: CaptureMode | None
    ) -> Drafter:
        given = [source if isinstance(source, Sequence) else None for _, source in prefill.rows()]  # features have none
        sources = [source for source in given for _ in range(config.samples)]
        return _LookupDrafter([NgramIndex(self.longest, source) for source in sources])


class NgramIndex:
    """The tokens of a source and its row, and where each n-gram occurred last.

    Each id is indexed once, when it is appended, so the cost of a lookup does not depend on the length of the row.
    """

    def __init__(self, longest: int, source: Sequence[int] | None) -> None:
        self.longest, self.ids, self.own = longest, list(source or ()), 0
        self.indexed = 0  # ids whose n-grams are indexed: all that an id follows
        self.after: dict[tuple[int, ...], int] = {}  # an n-gram, and the place after its last occurrence

    def update(self, row: SpeculativeRow) -> None:
        """Index what was appended to the row."""
        self.ids += row.ids[self.own :]
        self.own = len(row.ids)
        for end in range(self.indexed + 1, len(self.ids)):
            for length in range(1, min(self.longest, end) + 1):
                self.after[tuple(self.ids[end - length : end])] = end
            self.indexed = end

    def lookup(self, count: int) -> list[int]:
        """Return the ids that followed the last occurrence of the latest n-gram, the longest that occurred before.

        If the row ends before there are `count`, its repetition continues.
        """
        for length in range(min(self.longest, len(self.ids) - 1), 0, -1):
            start = self.after.get(tuple(self.ids[-length:]))
            if start is not None:
                found = self.ids[start : start + count]
                while len(found) < count:
                    found.append(found[start - len(self.ids)])
                return found
        return []


class _LookupDrafter(Drafter):
    """An n-gram index for each row."""

    def __init__(self, indexes: list[NgramIndex]) -> None:
        self.indexes = indexes

    def propose(self, rows: Sequence[SpeculativeRow], counts: Sequence[int]) -> list[Proposal]:
        proposals = []
        for index, row, count in zip(self.indexes, rows, counts, strict=True):
            index.update(row)
            proposals.append(Proposal(index.lookup(count)))
        return proposals

    def keep(self, rows: Sequence[SpeculativeRow]) -> None:
        return

    def select(self, rows: Sequence[int]) -> None:
        self.indexes = [self.indexes[row] for row in rows]

    def close(self) -> None:
        return

"""Speculative decoding: a draft guesses a few tokens, the model reads them all at once and keeps those that are right.

A guess that was drawn by odds q is kept with probability p / q by the model's own odds p, else replaced by a draw from
what p has more than q: tokens come out by p exactly (Leviathan et al. 2023; Chen et al. 2023). A guess that was not
drawn (the best token of a greedy draft, or what followed the same few tokens before) is kept where the model's own
choice is the same, so that the ids are those of plain generation, seed for seed. Every draw is keyed by seed, sample,
what the row holds and use alone; a row's ids never depend on the other rows.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.core import UsageError
from heddle.decoding.generation import (
    ActiveRow,
    StepOutput,
    StepOutputs,
    StopCriterion,
    TokenLogprobs,
    active_rows,
    chosen_logprobs,
)
from heddle.decoding.runtime import Deadline, Prefill, PrefixCache, Request, capture_mode, eval_mode, prepare_prefill
from heddle.decoding.sampling import (
    NEG_INF,
    NO_TOKEN,
    GenerationConfig,
    GreedySearch,
    History,
    MultinomialSampling,
    RowPosition,
    check_logits,
    choose,
    draw,
    invert,
    narrow,
)
from heddle.decoding.speculative.drafts import (
    Draft,
    Drafter,
    LogitsByPosition,
    Proposal,
    SpeculativeRow,
    process_draft_logits,
)
from heddle.decoding.speculative.verifier import BlockDecoder, block_decoder
from heddle.models.networks import AutoregressiveModel


@torch.inference_mode()
def speculate(
    model: AutoregressiveModel,
    requests: Sequence[Request],
    config: GenerationConfig,
    draft: Draft,
    should_stop: StopCriterion | None = None,
    prefix_cache: PrefixCache | None = None,
) -> StepOutputs:
    """Yield what every row does, as `follow` does, in fewer readings; each row goes on at its own pace."""
    if not isinstance(config.choice, MultinomialSampling | GreedySearch):
        raise UsageError(f"draft: want tokens that are drawn or the best, to guess them, got {config.choice.kind}")
    if not requests:
        return
    judge = Verifier(config, frozenset(config.stop), should_stop, Deadline.start(config.seconds))
    start = prepare_prefill(model, requests, config, prefix_cache)
    kind, kind_of_draft = capture_mode(model, start, config), draft.kind(start, config)
    with eval_mode(model), draft.eval_mode():
        scores, state = start.read(model)
        rows = active_rows(start, requests, config)
        each = [row.number // config.samples for row in rows]
        lines = [_line(row, start, number, config, scores.device) for row, number in zip(rows, each, strict=True)]
        yield from judge.take(lines, scores[each][:, None], [Proposal() for _ in lines])
        if all(line.over for line in lines):
            return
        drafting = draft.begin(model, start, config, kind_of_draft)
        track = block_decoder(model, state.select(each), start.most, (draft.ahead + 1,), draft.ahead, kind)
        try:
            yield from _go_on(track, drafting, lines, draft, judge)
        finally:
            track.close()
            drafting.close()


def _go_on(
    track: BlockDecoder, drafting: Drafter, lines: list[SpeculativeRow], draft: Draft, judge: "Verifier"
) -> Generator[StepOutput, None, None]:
    """Guess, read, judge; and again, until all lines are over."""
    while True:
        alive = [i for i, line in enumerate(lines) if not line.over]
        if not alive:
            return
        lines = [lines[i] for i in alive]
        track.select(alive)
        drafting.select(alive)
        guesses = drafting.guess(lines, [min(draft.ahead, n.row.end - n.row.place.length - 1) for n in lines])
        vectors = track.read([[line.ids[-1], *guess.ids] for line, guess in zip(lines, guesses, strict=True)])
        right = yield from judge.take(lines, track.model.head.logits(vectors), guesses)
        draft.tally.guessed += sum(len(guess.ids) for guess in guesses)
        draft.tally.right += sum(right)
        track.keep([1 + count for count in right])
        drafting.keep(lines)


def _line(
    row: ActiveRow, start: Prefill, number: int, config: GenerationConfig, device: torch.device
) -> SpeculativeRow:
    ids, source = list(start.prompts[number]), None if start.sources is None else start.sources[number]
    return SpeculativeRow(row, ids, source, history=History.of([ids], device) if config.penalties.remember else None)


@dataclass(frozen=True)
class Verifier:
    """What decides how many guesses are right, and which id comes after them."""

    config: GenerationConfig
    stop: frozenset[int]
    should_stop: StopCriterion | None
    clock: Deadline

    def take(
        self, lines: Sequence[SpeculativeRow], scores: LogitsByPosition, guesses: Sequence[Proposal]
    ) -> Generator[StepOutput, None, list[int]]:
        """Let each line take its guesses that are right and one id more; yield all of it, and return how many were."""
        own = process_draft_logits(scores, lines, guesses, self.config)
        if isinstance(self.config.choice, MultinomialSampling) and any(guess.odds for guess in guesses):
            right, after = self._weigh(own, lines, guesses, self.config.choice)
        else:
            right, after = self._compare(own, lines, guesses)
        late = self.clock.over()
        for i, (line, guess) in enumerate(zip(lines, guesses, strict=True)):
            ids = [*guess.ids[: right[i]], after[i]]
            for id, one in zip(ids, self._odds(scores[i], ids), strict=True):
                taken, reason = line.row.take(id, self.stop, self.should_stop, late)
                yield StepOutput(line.row.number, taken, reason, one)
                line.over = reason is not None
                if line.over:
                    break
                line.push(id)
        return right

    def _odds(self, scores: Float[Tensor, "places vocab"], ids: list[int]) -> list[TokenLogprobs | None]:
        if self.config.alternatives is None:
            return [None] * len(ids)
        return chosen_logprobs(scores[: len(ids)], torch.tensor(ids, device=scores.device), self.config.alternatives)

    def _compare(
        self, own: LogitsByPosition, lines: Sequence[SpeculativeRow], guesses: Sequence[Proposal]
    ) -> tuple[list[int], list[int]]:
        """Count the guesses that are what plain generation chooses, and return what it chooses next."""
        length = own.shape[1]
        places = [place for n, g in zip(lines, guesses, strict=True) for place in _filled(n.places(g.ids), length)]
        chosen = choose(own.flatten(0, 1), self.config, places).view(own.shape[:2]).tolist()
        right = [_agreed(guess.ids, ids) for guess, ids in zip(guesses, chosen, strict=True)]
        return right, [ids[count] for ids, count in zip(chosen, right, strict=True)]

    def _weigh(
        self,
        own: LogitsByPosition,
        lines: Sequence[SpeculativeRow],
        guesses: Sequence[Proposal],
        choice: MultinomialSampling,
    ) -> tuple[list[int], list[int]]:
        """Keep each guess with probability p / q; draw what comes after by p, or by what it has more than q."""
        check_logits(own.flatten(0, 1))
        p = narrow(own.double().flatten(0, 1), choice).softmax(-1).nan_to_num(0.0).view_as(own)
        q, ids = torch.zeros_like(p), torch.zeros(own.shape[:2], dtype=torch.long)
        marks = torch.ones(own.shape[:2], dtype=p.dtype)
        for i, (line, guess) in enumerate(zip(lines, guesses, strict=True)):
            for at, (id, odds, place) in enumerate(
                zip(guess.ids, guess.odds, line.places(guess.ids)[:-1], strict=True)
            ):
                q[i, at], ids[i, at] = odds, id
                marks[i, at] = draw(choice.seed, place, "keep")
        ids, marks = ids.to(p.device), marks.to(p.device)
        likely, guessed = (odds.gather(-1, ids[..., None])[..., 0] for odds in (p, q))
        kept = (guessed > 0) & (marks * guessed < likely)  # beyond the guesses nothing was guessed
        right = kept.long().cumprod(1).sum(1)
        rows = torch.arange(len(own), device=p.device)
        wanted, left = p[rows, right], (p[rows, right] - q[rows, right]).clamp(min=0)
        left = left.where(left.sum(-1, keepdim=True) > 0, wanted)
        draws = [
            draw(choice.seed, line.places(guess.ids[:count])[-1], "rest" if count < len(guess.ids) else "next")
            for line, guess, count in zip(lines, guesses, right.tolist(), strict=True)
        ]
        after = invert(left, torch.tensor(draws, dtype=p.dtype, device=p.device))
        return right.tolist(), after.masked_fill(own[rows, right].amax(-1) == NEG_INF, NO_TOKEN).tolist()


def _agreed(guesses: Sequence[int], chosen: Sequence[int]) -> int:
    """Count the guesses before the first that is not what was chosen."""
    for count, (guess, id) in enumerate(zip(guesses, chosen, strict=False)):
        if guess != id:
            return count
    return len(guesses)


def _filled(places: list[RowPosition], length: int) -> list[RowPosition]:
    """Return so many places; beyond the guesses nobody gets there."""
    return places + places[-1:] * (length - len(places))

"""Speculative decoding: a draft proposes a few tokens, the model reads them in one step and accepts a prefix of them.

A token that was drawn from a distribution q is accepted with probability p / q, where p is the model's own probability;
else it is replaced by a draw from the positive part of p - q: tokens are distributed exactly by p (Leviathan et al.
2023; Chen et al. 2023). A token that was not drawn (greedy drafts, prompt lookup) is accepted if the model's own choice
is the same, so the ids are those of plain generation with the same seed. Every draw is keyed by seed, sample, previous
tokens and use alone; a row's ids never depend on the other rows.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.decoding.generation import (
    ActiveRow,
    GenerationConfig,
    Sampler,
    StepOutput,
    StepOutputs,
    StopConditions,
    StopCriterion,
    TokenChooser,
    TokenLogprobs,
    active_rows,
    chosen_logprobs,
)
from heddle.decoding.runtime import Prefill, PrefixCache, Request, capture_mode, eval_mode, prepare_prefill
from heddle.decoding.sampling import NEG_INF, NO_TOKEN, History, RowPosition, check_logits, inverse_cdf
from heddle.decoding.speculative.block_decoder import BlockDecoder, block_decoder
from heddle.decoding.speculative.drafts import (
    BlockLogits,
    Draft,
    Drafter,
    Proposal,
    SpeculativeRow,
    draft_chooser,
    process_block_logits,
)
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
    """Yield what every row does, as `follow` does, in fewer steps of the model; each row has its own pace."""
    chooser = draft_chooser(config)
    if not requests:
        return
    verifier = Verifier(config, chooser, StopConditions.start(config, should_stop))
    prefill = prepare_prefill(model, requests, config.prefill, prefix_cache)
    mode, draft_mode = capture_mode(model, prefill, config.compile), draft.capture_mode(prefill, config)
    with eval_mode(model), draft.eval_mode():
        logits, state = prefill.run(model)
        active = active_rows(prefill, requests, config)
        each = [row.number // config.samples for row in active]
        rows = [_start(row, prefill, at, config, logits.device) for row, at in zip(active, each, strict=True)]
        yield from verifier.verify(rows, logits[each][:, None], [Proposal() for _ in rows])
        if all(row.ended for row in rows):
            return
        drafter = draft.begin(model, prefill, config, draft_mode)
        decoder = block_decoder(model, state.select(each), prefill.max_length, (draft.ahead + 1,), draft.ahead, mode)
        try:
            yield from _run(decoder, drafter, rows, draft, verifier)
        finally:
            decoder.close()
            drafter.close()


def _run(
    decoder: BlockDecoder, drafter: Drafter, rows: list[SpeculativeRow], draft: Draft, verifier: "Verifier"
) -> Generator[StepOutput, None, None]:
    """Propose, read, verify; repeat until all rows have ended."""
    while True:
        alive = [i for i, row in enumerate(rows) if not row.ended]
        if not alive:
            return
        rows = [rows[i] for i in alive]
        decoder.select(alive)
        drafter.select(alive)
        proposals = drafter.propose(rows, [min(draft.ahead, r.row.end - r.row.position.length - 1) for r in rows])
        vectors = decoder.read([[row.ids[-1], *p.ids] for row, p in zip(rows, proposals, strict=True)])
        accepted = yield from verifier.verify(rows, decoder.model.head.logits(vectors), proposals)
        draft.tally.proposed += sum(len(proposal.ids) for proposal in proposals)
        draft.tally.accepted += sum(accepted)
        decoder.keep([1 + count for count in accepted])
        drafter.keep(rows)


def _start(
    row: ActiveRow, prefill: Prefill, number: int, config: GenerationConfig, device: torch.device
) -> SpeculativeRow:
    ids, source = list(prefill.prompts[number]), None if prefill.sources is None else prefill.sources[number]
    history = History.from_prompts([ids], device) if config.penalties.needs_history else None
    return SpeculativeRow(row, ids, source, history=history)


@dataclass(frozen=True)
class Verifier:
    """Decides how many proposed ids are accepted, and which id comes after them."""

    config: GenerationConfig
    chooser: TokenChooser
    conditions: StopConditions

    def verify(
        self, rows: Sequence[SpeculativeRow], logits: BlockLogits, proposals: Sequence[Proposal]
    ) -> Generator[StepOutput, None, list[int]]:
        """Append the accepted ids and one more to each row; yield them all, and return how many were accepted."""
        own, sampler = process_block_logits(logits, rows, proposals, self.config), self.chooser.sampler
        if sampler is not None and any(proposal.probs for proposal in proposals):
            accepted, after = self._sample(own, rows, proposals, sampler)
        else:
            accepted, after = self._compare(own, rows, proposals)
        late = self.conditions.deadline.passed()
        for i, (row, proposal) in enumerate(zip(rows, proposals, strict=True)):
            ids = [*proposal.ids[: accepted[i]], after[i]]
            for id, logprobs in zip(ids, self._logprobs(logits[i], ids), strict=True):
                appended, reason = row.row.append(id, self.conditions.stop, self.conditions.should_stop, late)
                yield StepOutput(row.row.number, appended, reason, logprobs)
                row.ended = reason is not None
                if row.ended:
                    break
                row.append(id)
        return accepted

    def _logprobs(self, logits: Float[Tensor, "places vocab"], ids: list[int]) -> list[TokenLogprobs | None]:
        if self.config.logprobs is None:
            return [None] * len(ids)
        return chosen_logprobs(logits[: len(ids)], torch.tensor(ids, device=logits.device), self.config.logprobs)

    def _compare(
        self, own: BlockLogits, rows: Sequence[SpeculativeRow], proposals: Sequence[Proposal]
    ) -> tuple[list[int], list[int]]:
        """Accept the ids that plain generation chooses, and return what it chooses next."""
        length = own.shape[1]
        positions = [at for r, p in zip(rows, proposals, strict=True) for at in _padded(r.positions(p.ids), length)]
        chosen = self.chooser.choose(own.flatten(0, 1), positions).view(own.shape[:2]).tolist()
        accepted = [_common_length(proposal.ids, ids) for proposal, ids in zip(proposals, chosen, strict=True)]
        return accepted, [ids[count] for ids, count in zip(chosen, accepted, strict=True)]

    def _sample(
        self, own: BlockLogits, rows: Sequence[SpeculativeRow], proposals: Sequence[Proposal], sampler: Sampler
    ) -> tuple[list[int], list[int]]:
        """Accept each id with probability p / q; draw the next one by p, or by the positive part of p - q."""
        check_logits(own.flatten(0, 1))
        p = sampler.probabilities(own.flatten(0, 1)).nan_to_num(0.0).view_as(own)
        q, ids = torch.zeros_like(p), torch.zeros(own.shape[:2], dtype=torch.long)
        uniforms = torch.ones(own.shape[:2], dtype=p.dtype)
        for i, (row, proposal) in enumerate(zip(rows, proposals, strict=True)):
            each = zip(proposal.ids, proposal.probs, row.positions(proposal.ids)[:-1], strict=True)
            for at, (id, probs, position) in enumerate(each):
                q[i, at], ids[i, at] = probs, id
                uniforms[i, at] = sampler.uniform(position, "keep")
        ids, uniforms = ids.to(p.device), uniforms.to(p.device)
        p_id, q_id = (probs.gather(-1, ids[..., None])[..., 0] for probs in (p, q))
        kept = (q_id > 0) & (uniforms * q_id < p_id)  # q is 0 beyond the proposed ids
        accepted = kept.long().cumprod(1).sum(1)
        index = torch.arange(len(own), device=p.device)
        target, residual = p[index, accepted], (p[index, accepted] - q[index, accepted]).clamp(min=0)
        residual = residual.where(residual.sum(-1, keepdim=True) > 0, target)
        numbers = [
            sampler.uniform(row.positions(proposal.ids[:count])[-1], "rest" if count < len(proposal.ids) else "next")
            for row, proposal, count in zip(rows, proposals, accepted.tolist(), strict=True)
        ]
        after = inverse_cdf(residual, torch.tensor(numbers, dtype=p.dtype, device=p.device))
        return accepted.tolist(), after.masked_fill(own[index, accepted].amax(-1) == NEG_INF, NO_TOKEN).tolist()


def _common_length(proposed: Sequence[int], chosen: Sequence[int]) -> int:
    """Count the proposed ids before the first that was not chosen."""
    for count, (id, other) in enumerate(zip(proposed, chosen, strict=False)):
        if id != other:
            return count
    return len(proposed)


def _padded(positions: list[RowPosition], length: int) -> list[RowPosition]:
    """Repeat the last position up to a length; beyond the proposed ids nothing is accepted."""
    return positions + positions[-1:] * (length - len(positions))

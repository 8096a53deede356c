"""Decoder loop: prefill, then one token for each row in every step, until all rows have ended."""

from abc import abstractmethod

import torch

from heddle.decoding.generation.decoders import PendingTokens, StaticDecoder, StepDecoder
from heddle.decoding.generation.generation_config import DecodingStrategy, GenerationConfig, GenerationJob
from heddle.decoding.generation.logits import process_logits
from heddle.decoding.generation.outputs import BatchOutputs, StepOutput, chosen_logprobs
from heddle.decoding.generation.rows import ActiveRow, StopConditions, active_rows
from heddle.decoding.runtime import CaptureMode, Prefill, capture_mode, eval_mode, prepare_prefill
from heddle.decoding.sampling import History, check_token_ids, greedy_tokens
from heddle.models.networks import AutoregressiveModel


class StepStrategy(DecodingStrategy):
    """A strategy that chooses token by token."""

    def limit(self, model: AutoregressiveModel, prefill: Prefill) -> Prefill:
        """Return the prefill with the lengths that this strategy can decode."""
        return prefill

    @abstractmethod
    def decoder(
        self, model: AutoregressiveModel, prefill: Prefill, config: GenerationConfig, mode: CaptureMode | None
    ) -> StepDecoder:
        """Run prefill, and return what decodes its rows; mode: how steps are captured, None: not at all."""

    @torch.inference_mode()
    def decode(self, job: GenerationJob) -> BatchOutputs:
        """Yield what all rows do, step by step."""
        model, requests, config = job.model, job.requests, job.config
        if not requests:
            return
        conditions = StopConditions.start(config, job.should_stop)
        prefill = prepare_prefill(model, requests, config.prefill, job.prefix_cache)
        mode = capture_mode(model, prefill, config.compile)
        with eval_mode(model):
            prefill = self.limit(model, prefill)
            decoder = self.decoder(model, prefill, config, mode)
            try:
                rows, history = active_rows(prefill, requests, config), _history(prefill, config, decoder)
                fast = decoder.argmax_decoder()
                if fast is not None and history is None and _needs_ids_alone(rows, config):
                    yield from _run_ahead(fast, rows, conditions, config)
                else:
                    yield from _run_steps(decoder, rows, conditions, config, history)
            finally:
                decoder.close()


def _history(prefill: Prefill, config: GenerationConfig, decoder: StepDecoder) -> History | None:
    """Return the tokens of the rows so far, if a penalty needs them."""
    if not config.penalties.needs_history:
        return None
    prompts = [prompt for prompt in prefill.prompts for _ in range(config.samples)]
    return History.from_prompts(prompts, decoder.logits.device)


def _run_steps(
    decoder: StepDecoder,
    rows: list[ActiveRow],
    conditions: StopConditions,
    config: GenerationConfig,
    history: History | None,
) -> BatchOutputs:
    """Process logits, choose a token for each row, read it; repeat."""
    logits, new = decoder.logits, 0
    while True:
        processed = process_logits(logits, config, new, history, [row.constraint for row in rows])
        chosen = decoder.choose(processed, [row.position for row in rows])
        logprobs = chosen_logprobs(logits, chosen, config.logprobs)
        appended = conditions.append(rows, chosen.tolist())
        yield [StepOutput(row.number, *one, p) for row, one, p in zip(rows, appended, logprobs, strict=True)]
        kept = [i for i, (_, reason) in enumerate(appended) if reason is None]
        if not kept:
            return
        alive = None if len(kept) == len(rows) else torch.tensor(kept, device=chosen.device)
        rows, new = [rows[i] for i in kept], new + 1
        if history is not None:
            history = history.append(chosen) if alive is None else history.append(chosen).select(alive)
        logits = decoder.advance(chosen, alive, max(row.position.length for row in rows))


def _needs_ids_alone(rows: list[ActiveRow], config: GenerationConfig) -> bool:
    """Tell whether the host needs the chosen ids alone: no log-probabilities, constraints or end that is forced."""
    return config.logprobs is None and not config.forced_end and all(row.constraint is None for row in rows)


def _run_ahead(
    decoder: StaticDecoder, rows: list[ActiveRow], conditions: StopConditions, config: GenerationConfig
) -> BatchOutputs:
    """Let the device read each token that it chose while the host still waits for the id."""
    chosen = greedy_tokens(process_logits(decoder.logits, config, 0))
    decoder.set_ids(chosen)
    pending, new, alive = PendingTokens(chosen), 0, list(enumerate(rows))
    while True:
        new += 1  # the next step chooses the token after `new` new ones
        if new <= max(config.min_tokens, 1):
            decoder.set_bias(new)
        ahead = None
        if any(row.position.length + 1 < row.end for _, row in alive):
            decoder.reserve(max(row.position.length for _, row in alive) + 1)
            ahead = decoder.run()
        ids = pending.ids()
        check_token_ids([ids[i] for i, _ in alive])
        appended = conditions.append([row for _, row in alive], [ids[i] for i, _ in alive])
        yield [StepOutput(row.number, *one) for (_, row), one in zip(alive, appended, strict=True)]
        alive = [each for each, (_, reason) in zip(alive, appended, strict=True) if reason is None]
        if not alive:
            return
        assert ahead is not None
        pending = ahead

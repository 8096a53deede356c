"""Generation: prompts to new ids, one token a step, with log-probabilities; contrastive search."""

from heddle.decoding.generation.decode import (
    ActiveRow,
    Completion,
    StepOutput,
    StepOutputs,
    StopCriterion,
    active_rows,
    complete,
    follow,
    generate,
    max_new_tokens,
    stream,
)
from heddle.decoding.generation.logprobs import TokenLogprobs, chosen_logprobs

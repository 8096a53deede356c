"""Generation: prompts to new ids by a decoding strategy: greedy search, multinomial sampling, contrastive search."""

from heddle.decoding.generation.contrastive import ContrastiveSearch
from heddle.decoding.generation.decode import complete, follow, generate, max_new_tokens, stream
from heddle.decoding.generation.decoders import StepDecoder
from heddle.decoding.generation.generation_config import (
    DecodingStrategy,
    GenerationConfig,
    GenerationJob,
    Sampler,
    TokenChooser,
    check_rows,
)
from heddle.decoding.generation.logits import process_logits
from heddle.decoding.generation.mixed_rows import MixedRow, advance_rows, mixed_row
from heddle.decoding.generation.outputs import (
    BatchOutputs,
    Completion,
    StepOutput,
    StepOutputs,
    StopCriterion,
    TokenLogprobs,
    all_samples,
    chosen_logprobs,
)
from heddle.decoding.generation.rows import ActiveRow, StopConditions, active_rows
from heddle.decoding.generation.steps import StepStrategy
from heddle.decoding.generation.strategies import GreedySearch, MultinomialSampling, TokenStrategy

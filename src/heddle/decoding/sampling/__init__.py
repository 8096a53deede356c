"""Sampling: the generation config, logits processors (penalties, temperature, top-k, top-p) and draws."""

from heddle.decoding.sampling.filters import NEG_INF, Logits
from heddle.decoding.sampling.generation_config import GenerationConfig, GenerationOptions, generation_config
from heddle.decoding.sampling.logits import process_logits
from heddle.decoding.sampling.penalties import History, PenaltyConfig
from heddle.decoding.sampling.sampling import (
    NO_TOKEN,
    NextTokens,
    RowPosition,
    check_logits,
    check_token_ids,
    choose,
    draw,
    greedy_tokens,
    hash_ids,
    invert,
    narrow,
)
from heddle.decoding.sampling.strategies import (
    BeamSearch,
    ContrastiveSearch,
    DecodingStrategy,
    GreedySearch,
    MultinomialSampling,
)

"""Sampling: the generation config, logits processors (penalties, temperature, top-k, top-p) and draws."""

from heddle.decoding.sampling.filters import NEVER, Scores
from heddle.decoding.sampling.generation_config import GenerationConfig, GenerationOptions, generation_config
from heddle.decoding.sampling.logits import prepared
from heddle.decoding.sampling.penalties import History, PenaltyConfig
from heddle.decoding.sampling.sampling import (
    NONE,
    Chosen,
    Place,
    check_logits,
    check_token_ids,
    choose,
    draw,
    hash_ids,
    invert,
    marked,
    narrow,
)
from heddle.decoding.sampling.strategies import (
    BeamSearch,
    ContrastiveSearch,
    DecodingStrategy,
    GreedySearch,
    MultinomialSampling,
)

__all__ = [
    "NEVER",
    "NONE",
    "BeamSearch",
    "Chosen",
    "ContrastiveSearch",
    "DecodingStrategy",
    "GenerationConfig",
    "GenerationOptions",
    "GreedySearch",
    "History",
    "MultinomialSampling",
    "PenaltyConfig",
    "Place",
    "Scores",
    "check_logits",
    "check_token_ids",
    "choose",
    "draw",
    "generation_config",
    "hash_ids",
    "invert",
    "marked",
    "narrow",
    "prepared",
]

"""Sampling: the generation config, logits processors (penalties, temperature, top-k, top-p) and draws."""

from heddle.decoding.sampling.filters import NEVER, Scores
from heddle.decoding.sampling.generation_config import How, Wishes, how_of
from heddle.decoding.sampling.logits import prepared
from heddle.decoding.sampling.penalties import History, PenaltyConfig
from heddle.decoding.sampling.sampling import (
    NONE,
    Chosen,
    Place,
    choose,
    draw,
    invert,
    marked,
    narrow,
    past_of,
    refuse_broken,
    refuse_nan,
)
from heddle.decoding.sampling.strategies import BeamsConfig, ChoiceConfig, ContrastiveConfig, DrawConfig, GreedyConfig

__all__ = [
    "NEVER",
    "NONE",
    "BeamsConfig",
    "ChoiceConfig",
    "Chosen",
    "ContrastiveConfig",
    "DrawConfig",
    "GreedyConfig",
    "History",
    "How",
    "PenaltyConfig",
    "Place",
    "Scores",
    "Wishes",
    "choose",
    "draw",
    "how_of",
    "invert",
    "marked",
    "narrow",
    "past_of",
    "prepared",
    "refuse_broken",
    "refuse_nan",
]

"""Models: whole networks made of parts, their names, and what they weigh."""

from heddle.models.language_model import LanguageModel, LanguageModelConfig, Model, ModelConfig, TieConfig
from heddle.models.named import PRESETS, PresetConfig, build, preset, presets
from heddle.models.presets import pre_norm
from heddle.models.summary import Row, Summary, build_meta, forward_flops, parameters_of, summarise, tree

__all__ = [
    "PRESETS",
    "LanguageModel",
    "LanguageModelConfig",
    "Model",
    "ModelConfig",
    "PresetConfig",
    "Row",
    "Summary",
    "TieConfig",
    "build",
    "build_meta",
    "forward_flops",
    "parameters_of",
    "pre_norm",
    "preset",
    "presets",
    "summarise",
    "tree",
]

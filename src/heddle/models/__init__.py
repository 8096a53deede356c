"""Models: whole networks made of parts, their names, and what they weigh."""

from heddle.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from heddle.models.language_model import TIED, LanguageModel, LanguageModelConfig
from heddle.models.model import Model, ModelConfig, Predictor, TieConfig
from heddle.models.named import PRESETS, PresetConfig, build, preset, presets
from heddle.models.presets import pre_norm
from heddle.models.summary import Row, Summary, build_meta, forward_flops, parameters_of, summarise, tree
from heddle.models.tower import Reader, Tower, TowerConfig

__all__ = [
    "PRESETS",
    "TIED",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "LanguageModel",
    "LanguageModelConfig",
    "Model",
    "ModelConfig",
    "Predictor",
    "PresetConfig",
    "Reader",
    "Row",
    "Summary",
    "TieConfig",
    "Tower",
    "TowerConfig",
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

"""Models: whole networks made of parts, their names, and what they weigh."""

from heddle.models.adapting import adapt, adapted, lora, merge
from heddle.models.blocks import macaron, parallel, post_norm, pre_norm, sandwich
from heddle.models.encoder import Encoder, EncoderConfig
from heddle.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from heddle.models.language_model import TIED, LanguageModel, LanguageModelConfig
from heddle.models.model import Model, ModelConfig, Predictor, TieConfig
from heddle.models.named import PRESETS, Named, PresetConfig, build, preset, presets
from heddle.models.rebuilding import Network, network_of, rebuilt
from heddle.models.resizing import resize, resized
from heddle.models.summary import (
    Row,
    Summary,
    build_meta,
    forward_flops,
    parameters_of,
    summarise,
    training_flops,
    tree,
)
from heddle.models.tower import Reader, Tower, TowerConfig

__all__ = [
    "PRESETS",
    "TIED",
    "Encoder",
    "EncoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "LanguageModel",
    "LanguageModelConfig",
    "Model",
    "ModelConfig",
    "Named",
    "Network",
    "Predictor",
    "PresetConfig",
    "Reader",
    "Row",
    "Summary",
    "TieConfig",
    "Tower",
    "TowerConfig",
    "adapt",
    "adapted",
    "build",
    "build_meta",
    "forward_flops",
    "lora",
    "macaron",
    "merge",
    "network_of",
    "parallel",
    "parameters_of",
    "post_norm",
    "pre_norm",
    "preset",
    "presets",
    "rebuilt",
    "resize",
    "resized",
    "sandwich",
    "summarise",
    "training_flops",
    "tree",
]

"""Models: whole networks made of parts, their names, and what they weigh."""

from heddle.models.language_model import LanguageModel, LanguageModelConfig, Model, ModelConfig, TieConfig
from heddle.models.named import PRESETS, PresetConfig, build, preset, presets
from heddle.models.presets import pre_norm
from heddle.models.summary import Row, Summary, build_meta, forward_flops, parameters_of, summarise, tree
from heddle.nn import Context, PartConfig, RecurrenceConfig, Role, roles_of
from heddle.nn import State as Carried

__all__ = [
    "PRESETS",
    "Carried",
    "Context",
    "LanguageModel",
    "LanguageModelConfig",
    "Model",
    "ModelConfig",
    "PartConfig",
    "PresetConfig",
    "RecurrenceConfig",
    "Role",
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
    "roles_of",
    "summarise",
    "tree",
]

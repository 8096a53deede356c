"""Parts: one family per file, each config just above the module that it builds."""

from heddle.nn.activations import ACTIVATIONS, activation
from heddle.nn.attention import Attention, AttentionConfig, ProjectionsConfig
from heddle.nn.block import BlockConfig, Branch, BranchConfig
from heddle.nn.embedding import EmbeddingConfig, FullEmbeddingConfig
from heddle.nn.feedforward import FeedForwardConfig, FeedForwardFamily, GatedFeedForwardConfig, PassConfig
from heddle.nn.head import Head, HeadConfig, SoftmaxHeadConfig
from heddle.nn.init import FanInInitConfig, InitConfig, NormalInitConfig, initialise, roles_of
from heddle.nn.joins import JoinConfig, ReplaceConfig, ResidualConfig
from heddle.nn.masks import MaskConfig, WholeConfig, WindowConfig, base_mask, park, steps_of
from heddle.nn.norms import LayerNormConfig, NoNormConfig, NormConfig, RMSNormConfig
from heddle.nn.part import (
    MATRICES,
    ChannelConfig,
    Context,
    Linear,
    MixerConfig,
    Module,
    Part,
    PartConfig,
    Place,
    Remembering,
    Role,
    Sight,
)
from heddle.nn.plan import ChainConfig, LoopConfig, Plan, PlanConfig, RepeatConfig
from heddle.nn.positions import (
    LearnedPositionConfig,
    NoPositionConfig,
    Position,
    PositionConfig,
    RotaryPositionConfig,
    SinusoidalPositionConfig,
)
from heddle.nn.recurrence import GRUConfig, LSTMConfig, RecurrenceConfig
from heddle.nn.state import Hidden, KeyValues, Slot, State

__all__ = [
    "ACTIVATIONS",
    "MATRICES",
    "Attention",
    "AttentionConfig",
    "BlockConfig",
    "Branch",
    "BranchConfig",
    "ChainConfig",
    "ChannelConfig",
    "Context",
    "EmbeddingConfig",
    "FanInInitConfig",
    "FeedForwardConfig",
    "FeedForwardFamily",
    "FullEmbeddingConfig",
    "GRUConfig",
    "GatedFeedForwardConfig",
    "Head",
    "HeadConfig",
    "Hidden",
    "InitConfig",
    "JoinConfig",
    "KeyValues",
    "LSTMConfig",
    "LayerNormConfig",
    "LearnedPositionConfig",
    "Linear",
    "LoopConfig",
    "MaskConfig",
    "MixerConfig",
    "Module",
    "NoNormConfig",
    "NoPositionConfig",
    "NormConfig",
    "NormalInitConfig",
    "Part",
    "PartConfig",
    "PassConfig",
    "Place",
    "Plan",
    "PlanConfig",
    "Position",
    "PositionConfig",
    "ProjectionsConfig",
    "RMSNormConfig",
    "RecurrenceConfig",
    "Remembering",
    "RepeatConfig",
    "ReplaceConfig",
    "ResidualConfig",
    "Role",
    "RotaryPositionConfig",
    "Sight",
    "SinusoidalPositionConfig",
    "Slot",
    "SoftmaxHeadConfig",
    "State",
    "WholeConfig",
    "WindowConfig",
    "activation",
    "base_mask",
    "initialise",
    "park",
    "roles_of",
    "steps_of",
]

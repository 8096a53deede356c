"""Parts: one family per file, each config just above the module that it builds."""

from heddle.nn.activations import ACTIVATIONS, activation
from heddle.nn.adapters import AdapterConfig, Lora, LoraConfig, Map, lay, maps_of, named
from heddle.nn.adaptive import AdaptiveEmbeddingConfig, AdaptiveHeadConfig, ClusterConfig, ClusteredHeadConfig
from heddle.nn.attention import Attention, AttentionConfig, set_horizon
from heddle.nn.attentive import (
    AdditiveAlignmentConfig,
    AlignmentConfig,
    Attentive,
    AttentiveConfig,
    BothUseConfig,
    CellUseConfig,
    DotAlignmentConfig,
    GeneralAlignmentConfig,
    InputFeedingConfig,
    OutputUseConfig,
    UseConfig,
)
from heddle.nn.balance import FAVOUR_RATE, BalanceConfig, BiasBalanceConfig, LoadLossConfig, NoBalanceConfig
from heddle.nn.bidirectional import BidirectionalConfig
from heddle.nn.block import Block, BlockConfig, Branch, BranchConfig
from heddle.nn.branched import (
    BranchedAttentionConfig,
    BranchedCrossAttentionConfig,
    ClippedSharesConfig,
    SharesConfig,
    SoftmaxSharesConfig,
)
from heddle.nn.bridge import Bridge, BridgeConfig, EveryStepConfig, FirstStateConfig, NoBridgeConfig
from heddle.nn.cache import Cache, CacheConfig, FullCacheConfig, QuantisedCacheConfig
from heddle.nn.calm import CalmConfig
from heddle.nn.capacity import CapacityConfig, DroplessConfig, FactorConfig, NarangFactorConfig, RowPlacesConfig
from heddle.nn.cells import DeepConfig, GRUConfig, LSTMConfig, RNNConfig
from heddle.nn.convolution import DynamicConvolutionConfig, LightweightConvolutionConfig
from heddle.nn.cross import CrossAttention, CrossAttentionConfig
from heddle.nn.dropout import DropoutConfig, EachDropoutConfig, RowDropoutConfig
from heddle.nn.embedding import (
    Embedding,
    EmbeddingConfig,
    FactorizedEmbeddingConfig,
    FullEmbeddingConfig,
    Images,
    NarrowEmbeddingConfig,
    SegmentedEmbeddingConfig,
)
from heddle.nn.evolved import EvolvedDecoderConvolutionConfig, EvolvedEncoderConvolutionConfig, GatedLinearUnitConfig
from heddle.nn.experts import Experts, ExpertsConfig
from heddle.nn.feedforward import (
    FeedForwardConfig,
    FeedForwardFamily,
    FixupFeedForwardConfig,
    GatedFeedForwardConfig,
    PassConfig,
    hidden_of,
)
from heddle.nn.float8 import use_float8
from heddle.nn.head import (
    FactorizedHeadConfig,
    Head,
    HeadConfig,
    MixtureHeadConfig,
    SoftmaxHeadConfig,
    TransformedHeadConfig,
)
from heddle.nn.indexed import BinaryIndexPositionConfig, IndexPositionConfig, NormalisedIndexPositionConfig
from heddle.nn.init import (
    About,
    FanInInitConfig,
    FixupInitConfig,
    InitConfig,
    NarangInitConfig,
    NormalInitConfig,
    UniformInitConfig,
    XavierInitConfig,
    initialise,
    roles_of,
)
from heddle.nn.joins import (
    GatedConfig,
    HighwayConfig,
    JoinConfig,
    LayerScaleConfig,
    NarangGateConfig,
    NormedConfig,
    ReplaceConfig,
    ResidualConfig,
    ReZeroConfig,
    ScaledConfig,
)
from heddle.nn.kernels import begins_early
from heddle.nn.latent import LatentAttentionConfig, LatentWidthsConfig
from heddle.nn.masks import MaskConfig, WholeConfig, WindowConfig, base_mask, park, steps_of
from heddle.nn.mogrifier import MogrifierConfig
from heddle.nn.norms import (
    LayerNormConfig,
    NoNormConfig,
    NormConfig,
    OffsetRMSNormConfig,
    PartialRMSNormConfig,
    RMSNormConfig,
    ShiftConfig,
    ShiftScaleConfig,
)
from heddle.nn.outputs import (
    EmbeddingOutputConfig,
    MaskedTokenOutputConfig,
    NextSentenceOutputConfig,
    Output,
    OutputConfig,
    ReplacedTokenOutputConfig,
    SequenceClassOutputConfig,
    SpanOutputConfig,
    TokenClassOutputConfig,
)
from heddle.nn.packed import Packed, Packed8
from heddle.nn.packing import Bits, pack, packed_in, refuse_packed
from heddle.nn.part import (
    MATRICES,
    Adapter,
    ChannelConfig,
    Context,
    CrossConfig,
    HeadedConfig,
    Linear,
    MixerConfig,
    Module,
    Part,
    PartConfig,
    Place,
    Product,
    Recording,
    Relation,
    Remembering,
    Role,
    Rotation,
    Sight,
    Start,
    whole,
)
from heddle.nn.patches import PatchEmbeddingConfig
from heddle.nn.patterns import (
    ConstantPatternConfig,
    DensePatternConfig,
    FactorizedPatternConfig,
    PatternConfig,
    RandomPatternConfig,
)
from heddle.nn.plan import (
    ChainConfig,
    EntryConfig,
    LoopConfig,
    Passed,
    Plan,
    PlanConfig,
    PoolConfig,
    RepeatConfig,
    SteppedLoopConfig,
)
from heddle.nn.pooling import (
    DenseFirstTokenConfig,
    FirstTokenConfig,
    LastTokenConfig,
    MeanConfig,
    Pooling,
    PoolingConfig,
)
from heddle.nn.positions import (
    LearnedPositionConfig,
    NoPositionConfig,
    Position,
    PositionConfig,
    SinusoidalPositionConfig,
)
from heddle.nn.product_keys import ProductKeysConfig
from heddle.nn.projections import Looking, ProjectionsConfig, head_width_of
from heddle.nn.qrnn import QRNNConfig
from heddle.nn.recurrence import Carrying, CellConfig, RecurrenceConfig
from heddle.nn.relative import AlibiPositionConfig, RelativePositionConfig, T5PositionConfig
from heddle.nn.rooted import RootedConfig
from heddle.nn.rotary import (
    LinearScalingConfig,
    Llama3ScalingConfig,
    NearFarRotaryPositionConfig,
    NoScalingConfig,
    NTKScalingConfig,
    RotaryPositionConfig,
    RotaryScalingConfig,
    YarnScalingConfig,
    rotate,
)
from heddle.nn.routing import (
    ExpertChoiceConfig,
    NarangChoiceConfig,
    RouterConfig,
    SigmoidChoiceConfig,
    TokenChoiceConfig,
)
from heddle.nn.scores import (
    AdditiveScoreConfig,
    DotScoreConfig,
    GeneralScoreConfig,
    Meeting,
    Score,
    ScoreConfig,
    SinkScoreConfig,
)
from heddle.nn.state import Hidden, Memory, Recalled, Slot, State
from heddle.nn.sum import Several, Sum, SumConfig
from heddle.nn.synthesizer import AloneConfig, AlphaConfig, BlendConfig, PlusConfig, SynthesizerConfig
from heddle.nn.tap import LastLayerConfig, Tap, TapConfig, TransparentConfig
from heddle.nn.together import Together, lay_together
from heddle.nn.values import FirstValuesConfig, OwnValuesConfig, ValuesConfig
from heddle.nn.window import NGramConfig

# fmt: off
__all__ = [
    "ACTIVATIONS", "FAVOUR_RATE", "MATRICES", "About", "Adapter", "AdapterConfig", "AdaptiveEmbeddingConfig",
    "AdaptiveHeadConfig", "AdditiveAlignmentConfig", "AdditiveScoreConfig", "AlibiPositionConfig", "AlignmentConfig",
    "AloneConfig", "AlphaConfig", "Attention", "AttentionConfig", "Attentive", "AttentiveConfig", "BalanceConfig",
    "BiasBalanceConfig", "BidirectionalConfig", "BinaryIndexPositionConfig", "Bits", "BlendConfig", "Block",
    "BlockConfig", "BothUseConfig", "Branch", "BranchConfig", "BranchedAttentionConfig", "BranchedCrossAttentionConfig",
    "Bridge", "BridgeConfig", "Cache", "CacheConfig", "CalmConfig", "CapacityConfig", "Carrying", "CellConfig",
    "CellUseConfig", "ChainConfig", "ChannelConfig", "ClippedSharesConfig", "ClusterConfig", "ClusteredHeadConfig",
    "ConstantPatternConfig", "Context", "CrossAttention", "CrossAttentionConfig", "CrossConfig", "DeepConfig",
    "DenseFirstTokenConfig", "DensePatternConfig", "DotAlignmentConfig", "DotScoreConfig", "DroplessConfig",
    "DropoutConfig", "DynamicConvolutionConfig", "EachDropoutConfig", "Embedding", "EmbeddingConfig",
    "EmbeddingOutputConfig", "EntryConfig", "EveryStepConfig", "EvolvedDecoderConvolutionConfig",
    "EvolvedEncoderConvolutionConfig", "ExpertChoiceConfig", "Experts", "ExpertsConfig", "FactorConfig",
    "FactorizedEmbeddingConfig", "FactorizedHeadConfig", "FactorizedPatternConfig", "FanInInitConfig",
    "FeedForwardConfig", "FeedForwardFamily", "FirstStateConfig", "FirstTokenConfig", "FirstValuesConfig",
    "FixupFeedForwardConfig", "FixupInitConfig", "FullCacheConfig", "FullEmbeddingConfig", "GRUConfig", "GatedConfig",
    "GatedFeedForwardConfig", "GatedLinearUnitConfig", "GeneralAlignmentConfig", "GeneralScoreConfig", "Head",
    "HeadConfig", "HeadedConfig", "Hidden", "HighwayConfig", "Images", "IndexPositionConfig", "InitConfig",
    "InputFeedingConfig", "JoinConfig", "LSTMConfig", "LastLayerConfig", "LastTokenConfig", "LatentAttentionConfig",
    "LatentWidthsConfig", "LayerNormConfig", "LayerScaleConfig", "LearnedPositionConfig",
    "LightweightConvolutionConfig", "Linear", "LinearScalingConfig", "Llama3ScalingConfig", "LoadLossConfig", "Looking",
    "LoopConfig", "Lora", "LoraConfig", "Map", "MaskConfig", "MaskedTokenOutputConfig", "MeanConfig", "Meeting",
    "Memory", "MixerConfig", "MixtureHeadConfig", "Module", "MogrifierConfig", "NGramConfig", "NTKScalingConfig",
    "NarangChoiceConfig", "NarangFactorConfig", "NarangGateConfig", "NarangInitConfig", "NarrowEmbeddingConfig",
    "NearFarRotaryPositionConfig", "NextSentenceOutputConfig", "NoBalanceConfig", "NoBridgeConfig", "NoNormConfig",
    "NoPositionConfig", "NoScalingConfig", "NormConfig", "NormalInitConfig", "NormalisedIndexPositionConfig",
    "NormedConfig", "OffsetRMSNormConfig", "Output", "OutputConfig", "OutputUseConfig", "OwnValuesConfig", "Packed",
    "Packed8", "Part", "PartConfig", "PartialRMSNormConfig", "PassConfig", "Passed", "PatchEmbeddingConfig",
    "PatternConfig", "Place", "Plan", "PlanConfig", "PlusConfig", "PoolConfig", "Pooling", "PoolingConfig", "Position",
    "PositionConfig", "Product", "ProductKeysConfig", "ProjectionsConfig", "QRNNConfig", "QuantisedCacheConfig",
    "RMSNormConfig", "RNNConfig", "RandomPatternConfig", "ReZeroConfig", "Recalled", "Recording", "RecurrenceConfig",
    "Relation", "RelativePositionConfig", "Remembering", "RepeatConfig", "ReplaceConfig", "ReplacedTokenOutputConfig",
    "ResidualConfig", "Role", "RootedConfig", "RotaryPositionConfig", "RotaryScalingConfig", "Rotation", "RouterConfig",
    "RowDropoutConfig", "RowPlacesConfig", "ScaledConfig", "Score", "ScoreConfig", "SegmentedEmbeddingConfig",
    "SequenceClassOutputConfig", "Several", "SharesConfig", "ShiftConfig", "ShiftScaleConfig", "Sight",
    "SigmoidChoiceConfig", "SinkScoreConfig", "SinusoidalPositionConfig", "Slot", "SoftmaxHeadConfig",
    "SoftmaxSharesConfig", "SpanOutputConfig", "Start", "State", "SteppedLoopConfig", "Sum", "SumConfig",
    "SynthesizerConfig", "T5PositionConfig", "Tap", "TapConfig", "Together", "TokenChoiceConfig",
    "TokenClassOutputConfig", "TransformedHeadConfig", "TransparentConfig", "UniformInitConfig", "UseConfig",
    "ValuesConfig", "WholeConfig", "WindowConfig", "XavierInitConfig", "YarnScalingConfig", "activation", "base_mask",
    "begins_early", "head_width_of", "hidden_of", "initialise", "lay", "lay_together", "maps_of", "named", "pack",
    "packed_in", "park", "refuse_packed", "roles_of", "rotate", "set_horizon", "steps_of", "use_float8", "whole",
]
# fmt: on

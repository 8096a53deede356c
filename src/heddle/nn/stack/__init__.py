"""Stack: blocks of branches, residual joins, and the plans that make depth out of blocks."""

from heddle.nn.stack.block import (
    Block,
    BlockConfig,
    Branch,
    BranchConfig,
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
from heddle.nn.stack.plan import (
    ChainConfig,
    Depth,
    EntryConfig,
    LoopConfig,
    Plan,
    PlanConfig,
    PlanOutput,
    PoolConfig,
    RepeatConfig,
    SteppedLoopConfig,
    check_depth,
)
from heddle.nn.stack.rooted import RootedConfig
from heddle.nn.stack.sum import Sum, SumConfig, SumSlot
from heddle.nn.stack.tap import LastLayerConfig, TapConfig, TransparentConfig

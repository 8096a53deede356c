"""Channels: feed-forward networks, gated linear units, mixture of experts, product-key memory."""

from heddle.nn.channels.capacity import (
    CapacityConfig,
    DroplessConfig,
    FactorConfig,
    NarangFactorConfig,
    RowPlacesConfig,
)
from heddle.nn.channels.experts import EachLinear, Experts, ExpertsConfig
from heddle.nn.channels.feedforward import (
    FeedForwardConfig,
    FeedForwardFamily,
    FixupFeedForwardConfig,
    GatedFeedForwardConfig,
    PassConfig,
    hidden_of,
)
from heddle.nn.channels.grouped_gemm import Groups, multiply
from heddle.nn.channels.load_balancing import (
    FAVOUR_RATE,
    BalanceConfig,
    BiasBalanceConfig,
    LoadLossConfig,
    NoBalanceConfig,
)
from heddle.nn.channels.product_keys import ProductKeysConfig
from heddle.nn.channels.routing import (
    ExpertChoiceConfig,
    NarangChoiceConfig,
    Router,
    RouterConfig,
    SigmoidChoiceConfig,
    TokenChoiceConfig,
)

__all__ = [
    "FAVOUR_RATE",
    "BalanceConfig",
    "BiasBalanceConfig",
    "CapacityConfig",
    "DroplessConfig",
    "EachLinear",
    "ExpertChoiceConfig",
    "Experts",
    "ExpertsConfig",
    "FactorConfig",
    "FeedForwardConfig",
    "FeedForwardFamily",
    "FixupFeedForwardConfig",
    "GatedFeedForwardConfig",
    "Groups",
    "LoadLossConfig",
    "NarangChoiceConfig",
    "NarangFactorConfig",
    "NoBalanceConfig",
    "PassConfig",
    "ProductKeysConfig",
    "Router",
    "RouterConfig",
    "RowPlacesConfig",
    "SigmoidChoiceConfig",
    "TokenChoiceConfig",
    "hidden_of",
    "multiply",
]

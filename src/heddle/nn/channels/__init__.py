"""Channels: feed-forward networks, gated linear units, mixture of experts (MoE), product-key memory."""

from heddle.nn.channels.capacity import (
    CapacityConfig,
    DroplessConfig,
    FactorConfig,
    NarangFactorConfig,
    PerDocumentCapacityConfig,
)
from heddle.nn.channels.feedforward import (
    FeedForwardConfig,
    FeedForwardFamily,
    FixupFeedForwardConfig,
    GatedFeedForwardConfig,
    IdentityConfig,
    hidden_width,
)
from heddle.nn.channels.grouped_gemm import Groups, grouped_gemm
from heddle.nn.channels.load_balancing import (
    ROUTER_BIAS_RATE,
    BiasLoadBalancingConfig,
    LoadBalancingConfig,
    LoadBalancingLossConfig,
    NoLoadBalancingConfig,
)
from heddle.nn.channels.mixture_of_experts import Experts, ExpertsConfig, GroupedLinear
from heddle.nn.channels.product_keys import ProductKeysConfig
from heddle.nn.channels.routing import (
    ExpertChoiceConfig,
    NarangChoiceConfig,
    Router,
    RouterConfig,
    SigmoidChoiceConfig,
    TokenChoiceConfig,
)

"""Ends: embeddings before the first layer; heads and losses after the last."""

from heddle.nn.ends.adaptive_softmax import (
    AdaptiveEmbeddingConfig,
    AdaptiveHeadConfig,
    ClusterConfig,
    ClusteredHeadConfig,
)
from heddle.nn.ends.embedding import (
    Embedding,
    EmbeddingConfig,
    EmbeddingTable,
    FactorizedEmbeddingConfig,
    FullEmbedding,
    FullEmbeddingConfig,
    Images,
    NarrowEmbeddingConfig,
    SegmentedEmbeddingConfig,
)
from heddle.nn.ends.frames import FrameEmbeddingConfig, Frames
from heddle.nn.ends.head import (
    FactorizedHeadConfig,
    Head,
    HeadConfig,
    LinearSoftmaxHead,
    MixtureHeadConfig,
    SoftmaxHeadConfig,
    TransformedHeadConfig,
)
from heddle.nn.ends.pointer_generator import PointerGeneratorHeadConfig
from heddle.nn.ends.soft_targets import Prediction

"""Sources that are not text: patches of images, tubelets of video, several sources at once."""

from heddle.nn.sources.grid import (
    GridPositionConfig,
    LearnedGridConfig,
    NoGridPositionConfig,
    SinusoidalGridConfig,
)
from heddle.nn.sources.patches import GridEmbedding, PatchEmbeddingConfig, TubeletEmbeddingConfig
from heddle.nn.sources.several import OneSourceConfig, SeveralEmbedding, SeveralEmbeddingConfig
from heddle.nn.sources.stem import ConvolutionalStemConfig, NoStemConfig, StemConfig

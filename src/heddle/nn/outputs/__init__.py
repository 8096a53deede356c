"""Outputs of encoders: pooling of a row into one vector, and what reads vectors: classes, tags, spans, embeddings."""

from heddle.nn.outputs.ctc import CtcOutput, CtcOutputConfig, collapse, needed_frames
from heddle.nn.outputs.encoder_outputs import (
    EmbeddingOutput,
    EmbeddingOutputConfig,
    MaskedTokenOutputConfig,
    NextSentenceOutputConfig,
    Output,
    OutputConfig,
    ReplacedTokenOutputConfig,
    SequenceClassOutputConfig,
    SpanOutputConfig,
    TokenClassOutputConfig,
    best_spans,
)
from heddle.nn.outputs.pooling import (
    DenseFirstTokenConfig,
    DenseLastTokenConfig,
    FirstTokenConfig,
    LastTokenConfig,
    MeanConfig,
    PoolingConfig,
)
from heddle.nn.outputs.row_outputs import MultiLabelOutputConfig, RegressionOutputConfig

"""Models of speech: Transformer, listen-attend-and-spell and a CTC encoder; the source is frames of features."""

from heddle.core import replace
from heddle.models.networks import (
    BIASED,
    EncoderConfig,
    EncoderDecoderConfig,
    TieConfig,
    TowerConfig,
    pre_norm,
    with_entry,
)
from heddle.models.presets.seq2seq import seq2seq_attention
from heddle.nn.attention import AttentionConfig, CrossAttentionConfig
from heddle.nn.base import FanInInitConfig, XavierInitConfig
from heddle.nn.channels import FeedForwardConfig
from heddle.nn.ends import FrameEmbeddingConfig, FullEmbeddingConfig
from heddle.nn.layers import ElementDropoutConfig, LayerNormConfig
from heddle.nn.outputs import CtcOutputConfig
from heddle.nn.positions import SinusoidalPositionConfig

OUTPUT = (TieConfig(share="head.weight", of="decoder.embedding.weight"),)


def speech_transformer(
    layers: int = 6,
    width: int = 256,
    heads: int = 4,
    hidden: int | None = None,
    features: int = 80,
    vocab: int = 5000,
    context: int = 1600,
    dropout: float = 0.1,
) -> EncoderDecoderConfig:
    """Speech-Transformer (Dong et al. 2018): convolutions over frames, then a pre-norm encoder-decoder."""
    attention = AttentionConfig(heads=heads, projections=BIASED)
    cross, channel = CrossAttentionConfig(heads=heads), FeedForwardConfig(hidden=hidden, bias=True)
    reading = pre_norm(attention, channel, norm=LayerNormConfig(), dropout=dropout)
    writing = pre_norm(attention, cross, channel, norm=LayerNormConfig(), dropout=dropout)
    return EncoderDecoderConfig(
        vocab=vocab,
        width=width,
        context=context,
        encoder=TowerConfig(
            plan=with_entry(reading, layers, dropout),
            embedding=FrameEmbeddingConfig(features=features),
            position=SinusoidalPositionConfig(),
            norm=LayerNormConfig(),
        ),
        decoder=TowerConfig(
            plan=with_entry(writing, max(1, layers // 2), dropout),
            embedding=FullEmbeddingConfig(power=0.5),
            position=SinusoidalPositionConfig(),
            norm=LayerNormConfig(),
        ),
        init=XavierInitConfig(),
        ties=OUTPUT,
    )


def speech_lstm(
    layers: int = 3,
    width: int = 320,
    features: int = 80,
    vocab: int = 5000,
    context: int = 1600,
    dropout: float = 0.1,
) -> EncoderDecoderConfig:
    """Listen, attend and spell (Chan et al. 2016): bidirectional LSTMs over shortened frames, an LSTM that attends."""
    made = seq2seq_attention(layers, width, vocab, context, dropout)
    drop = ElementDropoutConfig(rate=dropout)
    encoder = replace(made.encoder, embedding=FrameEmbeddingConfig(features=features, dropout=drop))
    return replace(made, encoder=encoder, ties=OUTPUT)


def speech_ctc(
    layers: int = 6,
    width: int = 256,
    heads: int = 4,
    hidden: int | None = None,
    features: int = 80,
    vocab: int = 5000,
    context: int = 1600,
    dropout: float = 0.1,
) -> EncoderConfig:
    """CTC encoder: convolutions over frames, a pre-norm Transformer, and tokens or blanks for each frame."""
    made = speech_transformer(layers, width, heads, hidden, features, vocab, context, dropout)
    return EncoderConfig(
        vocab=vocab,
        width=width,
        context=context,
        plan=made.encoder.plan,
        embedding=made.encoder.embedding,
        position=made.encoder.position,
        norm=made.encoder.norm,
        outputs=(CtcOutputConfig(dropout=dropout),),
        init=FanInInitConfig(embedding=width**-0.5, into_stream=0.5),
    )

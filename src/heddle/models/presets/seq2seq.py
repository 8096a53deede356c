"""Recurrent sequence-to-sequence models: the source as one vector, or with attention."""

from heddle.core import ConfigError, nearest
from heddle.models.networks import ONE_TABLE, EncoderDecoderConfig, TowerConfig
from heddle.nn.base import FanInInitConfig, PartConfig
from heddle.nn.ends import FullEmbeddingConfig
from heddle.nn.layers import ElementDropoutConfig
from heddle.nn.outputs import FirstTokenConfig
from heddle.nn.recurrent import (
    AdditiveAlignmentConfig,
    AlignmentConfig,
    AttentionRNNConfig,
    BidirectionalConfig,
    BridgeConfig,
    DotAlignmentConfig,
    EveryStepConfig,
    FirstStateConfig,
    GeneralAlignmentConfig,
    LSTMConfig,
)
from heddle.nn.stack import BlockConfig, BranchConfig, ChainConfig, PlanConfig, RepeatConfig, ReplaceConfig

ALIGNMENTS: dict[str, AlignmentConfig] = {
    "additive": AdditiveAlignmentConfig(),
    "dot": DotAlignmentConfig(),
    "general": GeneralAlignmentConfig(),
}


def seq2seq_lstm(
    layers: int = 2, width: int = 512, vocab: int = 32_000, context: int = 256, dropout: float = 0.0
) -> EncoderDecoderConfig:
    """LSTM encoder-decoder (Sutskever et al. 2014): the source becomes the decoder's initial state."""
    return _two_lstms(layers, width, vocab, context, dropout, FirstStateConfig())


def seq2seq_lstm_every_step(
    layers: int = 2, width: int = 512, vocab: int = 32_000, context: int = 256, dropout: float = 0.0
) -> EncoderDecoderConfig:
    """LSTM encoder-decoder (Cho et al. 2014): the decoder also gets the source's summary at every step."""
    return _two_lstms(layers, width, vocab, context, dropout, EveryStepConfig())


def seq2seq_attention(
    layers: int = 2,
    width: int = 512,
    vocab: int = 32_000,
    context: int = 256,
    dropout: float = 0.0,
    score: str = "additive",
) -> EncoderDecoderConfig:
    """LSTM encoder-decoder with attention (Bahdanau et al. 2014; Luong et al. 2015): bidirectional encoder."""
    if score not in ALIGNMENTS:
        want = f"one of {', '.join(ALIGNMENTS)}"
        raise ConfigError("score", want=want, got=score, near=nearest(str(score), ALIGNMENTS))
    reading, writing = (_layer(part, dropout) for part in (BidirectionalConfig(), LSTMConfig()))
    looking = _layer(AttentionRNNConfig(alignment=ALIGNMENTS[score]), dropout)
    above = (RepeatConfig(body=writing, times=layers - 1),) if layers > 1 else ()
    return EncoderDecoderConfig(
        vocab=vocab,
        width=width,
        context=context,
        encoder=_tower(RepeatConfig(body=reading, times=layers), dropout),
        decoder=_tower(ChainConfig(bodies=(looking, *above)), dropout),
        # at the first token, the backward cell has read the whole source
        bridge=FirstStateConfig(pooling=FirstTokenConfig()),
        init=_init(width),
        ties=ONE_TABLE,
    )


def _two_lstms(
    layers: int, width: int, vocab: int, context: int, dropout: float, bridge: BridgeConfig
) -> EncoderDecoderConfig:
    tower = _tower(RepeatConfig(body=_layer(LSTMConfig(), dropout), times=layers), dropout)
    return EncoderDecoderConfig(
        vocab=vocab,
        width=width,
        context=context,
        encoder=tower,
        decoder=tower,
        bridge=bridge,
        init=_init(width),
        ties=ONE_TABLE,
    )


def _init(width: int) -> FanInInitConfig:
    return FanInInitConfig(embedding=width**-0.5, into_stream=1.0)  # the shared table keeps the variance as a head, too


def _layer(part: PartConfig, dropout: float) -> BlockConfig:
    branch = BranchConfig(part=part, dropout=ElementDropoutConfig(rate=dropout), join=ReplaceConfig())
    return BlockConfig(branches=(branch,))


def _tower(plan: PlanConfig, dropout: float) -> TowerConfig:
    return TowerConfig(plan=plan, embedding=FullEmbeddingConfig(dropout=ElementDropoutConfig(rate=dropout)))

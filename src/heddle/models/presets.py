"""Presets: named models as short functions over shared parts, with the paper or release each comes from."""

from heddle.models.language_model import TIED, LanguageModelConfig
from heddle.models.model import TieConfig
from heddle.nn import (
    AttentionConfig,
    BlockConfig,
    BranchConfig,
    EachDropoutConfig,
    FanInInitConfig,
    FeedForwardConfig,
    FullEmbeddingConfig,
    GatedFeedForwardConfig,
    GRUConfig,
    LayerNormConfig,
    LearnedPositionConfig,
    LSTMConfig,
    NormalInitConfig,
    NormConfig,
    PartConfig,
    ProjectionsConfig,
    RecurrenceConfig,
    RepeatConfig,
    ReplaceConfig,
    RMSNormConfig,
    RotaryPositionConfig,
)


def pre_norm(*parts: PartConfig, norm: NormConfig, dropout: float = 0.0) -> BlockConfig:
    """Return a block in which each part sees a normed stream and adds to the bare one."""
    drop = EachDropoutConfig(rate=dropout)
    return BlockConfig(branches=tuple(BranchConfig(part=p, norm=norm, dropout=drop) for p in parts))


def first(
    layers: int = 4, width: int = 128, heads: int = 2, vocab: int = 4096, context: int = 256, dropout: float = 0.0
) -> LanguageModelConfig:
    """Our small default: pre-norm RMS, rotary positions, normed queries and keys, squared ReLU, tied weights."""
    attention = AttentionConfig(heads=heads, projections=ProjectionsConfig(norm=RMSNormConfig()), dropout=dropout)
    channel = FeedForwardConfig(activation="relu_squared")
    return LanguageModelConfig(
        vocab=vocab,
        width=width,
        context=context,
        plan=RepeatConfig(body=pre_norm(attention, channel, norm=RMSNormConfig(), dropout=dropout), times=layers),
        embedding=FullEmbeddingConfig(dropout=EachDropoutConfig(rate=dropout)),
        position=RotaryPositionConfig(),
        norm=RMSNormConfig(),
        init=FanInInitConfig(),
        ties=TIED,
    )


def gpt2(
    layers: int = 12, width: int = 768, heads: int = 12, vocab: int = 50257, context: int = 1024, dropout: float = 0.0
) -> LanguageModelConfig:
    """GPT-2 (Radford et al. 2019): pre-norm, learned positions, GELU, biases everywhere, tied weights."""
    attention = AttentionConfig(
        heads=heads, projections=ProjectionsConfig(bias=True, output_bias=True), dropout=dropout
    )
    channel = FeedForwardConfig(activation="gelu_tanh", bias=True)
    return LanguageModelConfig(
        vocab=vocab,
        width=width,
        context=context,
        plan=RepeatConfig(body=pre_norm(attention, channel, norm=LayerNormConfig(), dropout=dropout), times=layers),
        embedding=FullEmbeddingConfig(dropout=EachDropoutConfig(rate=dropout)),
        position=LearnedPositionConfig(),
        norm=LayerNormConfig(),
        ties=TIED,
    )


def llama(
    layers: int = 16,
    width: int = 2048,
    heads: int = 32,
    kv_heads: int | None = None,
    hidden: int | None = None,
    vocab: int = 32000,
    context: int = 2048,
    base: float = 10_000.0,
    eps: float = 1e-5,
    tied: bool = False,
) -> LanguageModelConfig:
    """Llama (Touvron et al. 2023; Dubey et al. 2024): pre-norm RMS, rotary positions, gated swish, no biases."""
    attention = AttentionConfig(heads=heads, kv_heads=kv_heads)
    channel = GatedFeedForwardConfig(hidden=hidden)
    ties: tuple[TieConfig, ...] = TIED if tied else ()
    return LanguageModelConfig(
        vocab=vocab,
        width=width,
        context=context,
        plan=RepeatConfig(body=pre_norm(attention, channel, norm=RMSNormConfig(eps=eps)), times=layers),
        position=RotaryPositionConfig(base=base),
        norm=RMSNormConfig(eps=eps),
        init=NormalInitConfig(shrink_into_stream=False),
        ties=ties,
    )


def recurrent(
    cell: RecurrenceConfig, layers: int, width: int, vocab: int, context: int, dropout: float
) -> LanguageModelConfig:
    """Return a plain stack of recurrent layers between a table of vectors and its transpose."""
    branch = BranchConfig(part=cell, dropout=EachDropoutConfig(rate=dropout), join=ReplaceConfig())
    return LanguageModelConfig(
        vocab=vocab,
        width=width,
        context=context,
        plan=RepeatConfig(body=BlockConfig(branches=(branch,)), times=layers),
        embedding=FullEmbeddingConfig(dropout=EachDropoutConfig(rate=dropout)),
        init=FanInInitConfig(embedding=0.05, into_stream=1.0),
        ties=TIED,
    )


def lstm_lm(
    layers: int = 2, width: int = 650, vocab: int = 10_000, context: int = 256, dropout: float = 0.0
) -> LanguageModelConfig:
    """LSTM language model (Zaremba et al. 2014) with tied weights (Press & Wolf 2017)."""
    return recurrent(LSTMConfig(), layers, width, vocab, context, dropout)


def gru_lm(
    layers: int = 2, width: int = 650, vocab: int = 10_000, context: int = 256, dropout: float = 0.0
) -> LanguageModelConfig:
    """GRU language model (Cho et al. 2014) with tied weights."""
    return recurrent(GRUConfig(), layers, width, vocab, context, dropout)

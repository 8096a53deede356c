"""Recurrent language models: n-gram, RNN, GRU, LSTM, AWD-LSTM, mogrifier, QRNN and Transformer-XL."""

from heddle.core import check_at_least, replace
from heddle.models.networks import TIED, LanguageModelConfig, post_norm, with_entry
from heddle.nn.base import FanInInitConfig, UniformInitConfig
from heddle.nn.channels import FeedForwardConfig
from heddle.nn.ends import FullEmbeddingConfig, SoftmaxHeadConfig
from heddle.nn.layers import ElementDropoutConfig, LayerNormConfig, VariationalDropoutConfig
from heddle.nn.recurrent import (
    ActivationPenaltyConfig,
    CellConfig,
    GRUConfig,
    LSTMConfig,
    MogrifierConfig,
    NGramConfig,
    QRNNConfig,
    RecurrentConfig,
    RNNConfig,
    SegmentRecurrenceConfig,
    StackedCellsConfig,
)
from heddle.nn.stack import BlockConfig, BranchConfig, RepeatConfig, ReplaceConfig


def recurrent(
    cell: RecurrentConfig, layers: int, width: int, vocab: int, context: int, dropout: float
) -> LanguageModelConfig:
    """Return a plain stack of recurrent layers with tied embeddings."""
    branch = BranchConfig(part=cell, dropout=ElementDropoutConfig(rate=dropout), join=ReplaceConfig())
    return LanguageModelConfig(
        vocab=vocab,
        width=width,
        context=context,
        plan=RepeatConfig(body=BlockConfig(branches=(branch,)), times=layers),
        embedding=FullEmbeddingConfig(dropout=ElementDropoutConfig(rate=dropout)),
        init=FanInInitConfig(embedding=0.05, into_stream=1.0),
        ties=TIED,
    )


def window_lm(
    n: int = 5, width: int = 100, hidden: int = 100, vocab: int = 10_000, context: int = 256, dropout: float = 0.0
) -> LanguageModelConfig:
    """N-gram feed-forward language model over a window of words (Bengio et al. 2003), with direct connections."""
    model = recurrent(NGramConfig(n=n, hidden=hidden, direct=True), 1, width, vocab, context, dropout)
    return _with_bias(model)


def rnn_lm(
    layers: int = 1, width: int = 300, vocab: int = 10_000, context: int = 256, dropout: float = 0.0
) -> LanguageModelConfig:
    """RNN language model (Mikolov et al. 2010) with tied weights."""
    return recurrent(RNNConfig(), layers, width, vocab, context, dropout)


def gru_lm(
    layers: int = 2, width: int = 650, vocab: int = 10_000, context: int = 256, dropout: float = 0.0
) -> LanguageModelConfig:
    """GRU language model (Cho et al. 2014) with tied weights."""
    return recurrent(GRUConfig(), layers, width, vocab, context, dropout)


def lstm_lm(
    layers: int = 2, width: int = 650, vocab: int = 10_000, context: int = 256, dropout: float = 0.0
) -> LanguageModelConfig:
    """LSTM language model (Zaremba et al. 2014) with tied weights (Press & Wolf 2017)."""
    return recurrent(LSTMConfig(), layers, width, vocab, context, dropout)


def awd_lstm(
    layers: int = 3, width: int = 400, hidden: int = 1150, vocab: int = 10_000, context: int = 70, dropout: float = 0.4
) -> LanguageModelConfig:
    """AWD-LSTM (Merity et al. 2017): DropConnect, word and row dropout, AR and TAR; `dropout` scales them all."""
    check_at_least(1, layers=layers)
    drop, spread = 1.25 * dropout, 1.0
    cell = LSTMConfig(hidden=hidden, weight_drop=drop, init_scale=spread)
    cells = (*(cell,) * (layers - 1), LSTMConfig(weight_drop=drop, init_scale=spread))
    return regularized(cells, width, vocab, context, dropout)


def mogrifier_lm(
    layers: int = 2, width: int = 400, hidden: int = 1150, vocab: int = 10_000, context: int = 70, dropout: float = 0.4
) -> LanguageModelConfig:
    """Mogrifier LSTM (Melis et al. 2020) of five rounds of low rank, regularized like the AWD-LSTM."""
    check_at_least(1, layers=layers)
    cell = MogrifierConfig(hidden=hidden, rank=max(1, width // 8), weight_drop=1.25 * dropout, init_scale=1.0)
    last = MogrifierConfig(rank=max(1, width // 8), weight_drop=1.25 * dropout, init_scale=1.0)
    return regularized((*(cell,) * (layers - 1), last), width, vocab, context, dropout)


def qrnn_lm(
    layers: int = 4, width: int = 400, hidden: int = 1550, vocab: int = 10_000, context: int = 70, dropout: float = 0.4
) -> LanguageModelConfig:
    """QRNN language model (Bradbury et al. 2016; Merity et al. 2018), regularized like the AWD-LSTM."""
    check_at_least(1, layers=layers)
    drop = 0.25 * dropout
    sizes = (*(hidden,) * (layers - 1), None)
    cells = [QRNNConfig(hidden=size, window=1 if i else 2, weight_drop=drop) for i, size in enumerate(sizes)]
    return regularized(tuple(cells), width, vocab, context, dropout)


def transformer_xl(
    layers: int = 16,
    width: int = 410,
    heads: int = 10,
    hidden: int = 2100,
    memory: int = 150,
    vocab: int = 10_000,
    context: int = 150,
    dropout: float = 0.1,
) -> LanguageModelConfig:
    """Transformer-XL (Dai et al. 2019): post-norm, segment recurrence with relative positions, ReLU, tied weights."""
    mixer = SegmentRecurrenceConfig(heads=heads, memory=memory)
    channel = FeedForwardConfig(hidden=hidden, activation="relu", bias=True)
    block = post_norm(mixer, channel, norm=LayerNormConfig(), dropout=dropout)
    return LanguageModelConfig(
        vocab=vocab,
        width=width,
        context=context,
        plan=with_entry(block, layers, dropout),
        embedding=FullEmbeddingConfig(power=0.5),
        init=FanInInitConfig(embedding=2.56 / width),  # a token's own logit is width times this at first, as tied
        ties=TIED,
    )


def regularized(
    cells: tuple[CellConfig, ...], width: int, vocab: int, context: int, dropout: float
) -> LanguageModelConfig:
    """Return stacked cells with the regularization of the AWD-LSTM (Merity et al. 2017).

    `dropout` scales all of it: 0.4 is as published for Penn Treebank, 0 is none.
    """
    rows, between = VariationalDropoutConfig(rate=dropout), VariationalDropoutConfig(rate=0.625 * dropout)
    branches = (
        BranchConfig(part=StackedCellsConfig(cells=cells, dropout=between), join=ReplaceConfig()),
        BranchConfig(part=ActivationPenaltyConfig(change=2.5 * dropout), dropout=rows, join=ReplaceConfig()),
        BranchConfig(part=ActivationPenaltyConfig(size=5 * dropout), join=ReplaceConfig()),
    )
    model = LanguageModelConfig(
        vocab=vocab,
        width=width,
        context=context,
        plan=BlockConfig(branches=branches),
        embedding=FullEmbeddingConfig(dropout=rows, word_dropout=0.25 * dropout),
        init=UniformInitConfig(),
        ties=TIED,
    )
    return _with_bias(model)


def _with_bias(model: LanguageModelConfig) -> LanguageModelConfig:
    return replace(model, head=SoftmaxHeadConfig(bias=True))

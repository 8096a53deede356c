"""Outputs of an encoder: scores and losses against their formulas, written plainly."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.core import ConfigError
from heddle.nn.base import Context
from heddle.nn.ends import SoftmaxHeadConfig
from heddle.nn.outputs import (
    EmbeddingOutputConfig,
    MaskedTokenOutputConfig,
    NextSentenceOutputConfig,
    Output,
    OutputConfig,
    ReplacedTokenOutputConfig,
    SequenceClassOutputConfig,
    SpanOutputConfig,
    TokenClassOutputConfig,
)

VOCAB, WIDTH = 11, 6


def built(config: OutputConfig) -> Output:
    made = config.build(VOCAB, WIDTH).double()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw, dtype=torch.float64))
    return made


def stream() -> Tensor:
    return torch.randn(3, 5, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_masked_tokens_are_scored_by_a_head() -> None:
    made = built(MaskedTokenOutputConfig(head=SoftmaxHeadConfig(bias=True)))
    labels = torch.randint(VOCAB, (3, 5))
    torch.testing.assert_close(made.scores(stream(), Context()), made.head.logits(stream()))
    torch.testing.assert_close(made.nll(stream(), labels, Context()), made.head.nll(stream(), labels))


@pytest.mark.parametrize("config", [NextSentenceOutputConfig(), SequenceClassOutputConfig(classes=4)], ids=type)
def test_a_row_has_a_class(config: OutputConfig) -> None:
    made, vectors, labels = built(config), stream()[:, 0], torch.tensor([0, 1, 1])
    scores = vectors @ made.classes.weight.T + made.classes.bias
    assert config.reads == made.reads == "pooled"
    torch.testing.assert_close(made.scores(vectors, Context()), scores)
    torch.testing.assert_close(made.nll(vectors, labels, Context()), -scores.log_softmax(-1)[torch.arange(3), labels])


def test_each_token_has_a_class() -> None:
    made, labels = built(TokenClassOutputConfig(classes=4)), torch.randint(4, (3, 5))
    logs = (stream() @ made.classes.weight.T + made.classes.bias).log_softmax(-1)
    torch.testing.assert_close(made.nll(stream(), labels, Context()), -logs.gather(-1, labels[..., None])[..., 0])


def test_replaced_tokens_are_detected_by_a_sigmoid() -> None:
    made, labels = built(ReplacedTokenOutputConfig(activation="relu")), torch.randint(2, (3, 5))
    inner = (stream() @ made.dense.weight.T + made.dense.bias).relu()
    logits = (inner @ made.replaced.weight.T + made.replaced.bias)[..., 0]
    torch.testing.assert_close(made.scores(stream(), Context()).softmax(-1)[..., 1], logits.sigmoid())
    want = F.binary_cross_entropy_with_logits(logits, labels.double(), reduction="none")
    torch.testing.assert_close(made.nll(stream(), labels, Context()), want)


def test_a_span_has_a_first_and_a_last_token_among_the_real_ones() -> None:
    made, lengths, labels = built(SpanOutputConfig()), torch.tensor([5, 3, 2]), torch.tensor([[1, 4], [0, 2], [1, 1]])
    got = made.nll(stream(), labels, Context(lengths=lengths))
    for row, length in enumerate(lengths.tolist()):
        scores = stream()[row, :length] @ made.edges.weight.T + made.edges.bias
        logs = scores.log_softmax(0)
        torch.testing.assert_close(got[row], -logs[labels[row, 0], 0] - logs[labels[row, 1], 1])


def test_embeddings_learn_by_contrast_with_the_other_rows() -> None:
    made, vectors = built(EmbeddingOutputConfig(temperature=0.5)), stream().flatten(0, 1)[:4]
    unit = F.normalize(vectors, dim=-1)
    torch.testing.assert_close(made.scores(vectors, Context()), unit)
    partners = torch.tensor([1, 0, 3, 2])
    for row in range(4):
        others = [j for j in range(4) if j != row]
        likeness = torch.stack([unit[row] @ unit[j] / 0.5 for j in others])
        want = -likeness.log_softmax(0)[others.index(int(partners[row]))]
        torch.testing.assert_close(made.nll(vectors, partners, Context())[row], want)
    bare = built(EmbeddingOutputConfig(normalized=False))
    assert torch.equal(bare.scores(vectors, Context()), vectors)


def test_wrong_fields_are_named() -> None:
    with pytest.raises(ConfigError, match="classes: want at least 1"):
        SequenceClassOutputConfig(classes=0)
    with pytest.raises(ConfigError, match="temperature: want above 0"):
        EmbeddingOutputConfig(temperature=0.0)
    with pytest.raises(ConfigError, match="dropout: want"):
        TokenClassOutputConfig(classes=2, dropout=1.0)
    with pytest.raises(ConfigError, match="labels: want one for each of 2 classes, or none, got 3"):
        SequenceClassOutputConfig(classes=2, labels=("a", "b", "c"))
    with pytest.raises(ConfigError, match="activation: want one of"):
        ReplacedTokenOutputConfig(activation="gulu")


@pytest.mark.parametrize(
    "config",
    [
        NextSentenceOutputConfig(dropout=0.5),
        SequenceClassOutputConfig(classes=3, dropout=0.5),
        TokenClassOutputConfig(classes=3, dropout=0.5),
        SpanOutputConfig(dropout=0.5),
    ],
    ids=lambda c: c.kind,
)
def test_dropout_is_for_training_alone(config: OutputConfig) -> None:
    made, x = built(config).eval(), stream()
    x = x[:, 0] if config.reads == "pooled" else x
    still = made.scores(x, Context())
    assert torch.equal(still, made.scores(x, Context()))
    assert not torch.equal(still, made.train().scores(x, Context()))

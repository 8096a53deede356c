"""Attention scores: each kind against its formula; fused, folded and unfused backends agree."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.core import ConfigError
from heddle.nn.attention import (
    AdditiveScoreConfig,
    AttentionInputs,
    DotScoreConfig,
    GeneralScoreConfig,
    Score,
    ScoreConfig,
    SinkScoreConfig,
)
from heddle.nn.attention.backends import AttentionCall, RelativeTerms, unfused

CONFIGS = [
    DotScoreConfig(),
    DotScoreConfig(scale=0.3),
    DotScoreConfig(softcap=0.8),
    GeneralScoreConfig(),
    AdditiveScoreConfig(),
    SinkScoreConfig(),
    SinkScoreConfig(score=AdditiveScoreConfig()),
]


def build(config: ScoreConfig, heads: int = 4, head_width: int = 8) -> Score:
    score = config.build(heads, head_width).double()
    torch.manual_seed(0)
    for weight in score.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return score


def inputs(kv_heads: int = 2, queries: int = 7, keys: int = 9) -> AttentionInputs:
    draw = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64).requires_grad_()

    return AttentionInputs(numbers(3, 4, queries, 8), numbers(3, kv_heads, keys, 8), numbers(3, kv_heads, keys, 8))


def variants(queries: int) -> dict[str, AttentionInputs]:
    """Return inputs with every kind of mask, bias and relative terms."""
    draw = torch.Generator().manual_seed(1)
    plain = inputs(queries=queries)
    allowed = (torch.rand(3, 1, queries, 9, generator=draw) < 0.6) | torch.eye(queries, 9, dtype=torch.bool)
    bias = torch.randn(1, 4, queries, 9, generator=draw, dtype=torch.float64).requires_grad_()
    tables = torch.randn(2, 5, 8, generator=draw, dtype=torch.float64)
    relation = RelativeTerms(tables[0], tables[1], torch.randint(5, (1, queries, 9), generator=draw))
    return {
        "plain": plain,
        "causal": dataclasses.replace(plain, causal=True),
        "masked": dataclasses.replace(plain, allowed=allowed),
        "biased": dataclasses.replace(plain, bias=bias),
        "biased, masked": dataclasses.replace(plain, bias=bias, allowed=allowed),
        "related": dataclasses.replace(plain, relation=relation, causal=True),
        "related, biased": dataclasses.replace(plain, relation=relation, bias=bias, allowed=allowed),
    }


def by_hand(config: ScoreConfig, score: Score, m: AttentionInputs) -> Tensor:
    """Compute one number at a time, from the definitions; returns the weights."""
    inner, module = (config.score, score.score) if isinstance(config, SinkScoreConfig) else (config, score)
    batch, heads, queries, width = m.query.shape
    share, weights = heads // m.key.shape[1], torch.zeros(batch, heads, queries, m.key.shape[2], dtype=torch.float64)
    for b, h, i in ((b, h, i) for b in range(batch) for h in range(heads) for i in range(queries)):
        logits = []
        for j in range(m.key.shape[2]):
            query, key = m.query[b, h, i], m.key[b, h // share, j]
            if m.relation is not None:
                key = key + m.relation.keys[m.relation.index[0, i, j]]
            if isinstance(inner, AdditiveScoreConfig):
                value = module.vector[h] @ (query + key).tanh()
            else:
                through = query @ module.weight[h] if isinstance(inner, GeneralScoreConfig) else query
                value = through @ key * (width**-0.5 if inner.scale is None else inner.scale)
            if isinstance(inner, DotScoreConfig) and inner.softcap is not None:
                value = inner.softcap * (value / inner.softcap).tanh()
            value = value if m.bias is None else value + m.bias[0, h, i, j]
            seen = m.allowed[b, 0, i, j] if m.allowed is not None else not m.causal or j <= i
            logits.append(value if seen else torch.tensor(-math.inf).double())
        sink = [score.sink[h]] if isinstance(config, SinkScoreConfig) else []
        weights[b, h, i] = torch.stack(logits + sink).softmax(0)[: m.key.shape[2]].detach()
    return weights


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("name", variants(2))
def test_weights_equal_the_definition(config: ScoreConfig, name: str) -> None:
    score, m = build(config), variants(2)[name]
    torch.testing.assert_close(score.attention_weights(m), by_hand(config, score, m))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("name", variants(7))
@pytest.mark.parametrize("queries", [7, 1])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_weights_times_values_equal_the_fast_path_with_its_gradients(
    config: ScoreConfig, name: str, queries: int, kv_heads: int
) -> None:
    score, m = build(config), variants(queries)[name]
    m = dataclasses.replace(m, key=m.key[:, :1].expand(-1, kv_heads, -1, -1), value=inputs(kv_heads).value)
    wanted = [m.query, m.value, *([] if m.bias is None else [m.bias]), *score.parameters()]
    results = []
    for y in (score.attend(m), m.weigh_values(score.attention_weights(m))):
        results.append((y, *torch.autograd.grad(y.square().sum(), wanted)))
    for fast, open_ in zip(*results, strict=True):
        torch.testing.assert_close(fast, open_, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_where_nothing_is_allowed_nothing_is_taken(config: ScoreConfig) -> None:
    allowed = torch.ones(3, 1, 7, 9, dtype=torch.bool)
    allowed[1, :, 2] = False
    score, m = build(config), dataclasses.replace(inputs(4), allowed=allowed)
    assert score.attention_weights(m)[1, :, 2].count_nonzero() == 0
    assert score.attend(m)[1, :, 2].count_nonzero() == 0


def test_weights_sum_to_one_and_to_less_beside_a_sink() -> None:
    m = inputs()
    for config in CONFIGS:
        sums = build(config).attention_weights(m).sum(-1)
        if isinstance(config, SinkScoreConfig):
            assert sums.max() < 1
        else:
            torch.testing.assert_close(sums, torch.ones_like(sums))


def test_half_precision_on_a_cpu_is_close_to_the_exact_result() -> None:
    query, key, value = torch.randn(3, 2, 4, 33, 16, generator=torch.Generator().manual_seed(1)).unbind()
    score = DotScoreConfig().build(4, 16)
    exact = score.attend(AttentionInputs(query.double(), key.double(), value.double(), causal=True))
    half = score.attend(AttentionInputs(query.bfloat16(), key.bfloat16(), value.bfloat16(), causal=True))
    assert half.dtype is torch.bfloat16
    assert (half.double() - exact).abs().max() < 0.05


def test_dropout_of_the_weights_keeps_their_mean() -> None:
    zeros = torch.zeros(1, 1, 400, 4)
    torch.manual_seed(0)
    m = AttentionInputs(zeros, zeros, torch.ones(1, 1, 400, 4))
    y = unfused(AttentionCall(DotScoreConfig().build(1, 4), m, 0.25, "cpu", compiling=False))
    assert abs(float(y.mean()) - 1) < 0.02


def test_one_query_reaches_the_kernel_without_copies_of_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    m = inputs(kv_heads=2, queries=1)
    m = dataclasses.replace(m, allowed=torch.ones(3, 1, 1, 9, dtype=torch.bool))
    given: list[Tensor] = []
    kernel = F.scaled_dot_product_attention

    def spy(query: Tensor, key: Tensor, value: Tensor, **rest: object) -> Tensor:
        given.append(key)
        return kernel(query, key, value, **rest)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    build(DotScoreConfig()).attend(m)
    assert given[0] is m.key


def test_a_softcap_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="softcap: want above 0"):
        DotScoreConfig(softcap=0.0)

"""Cross-attention: the definition, torch's own module, padding of the source, and the memory projected once."""

import pytest
import torch

from heddle.core import ConfigError, UsageError
from heddle.nn.attention import (
    AdditiveScoreConfig,
    CrossAttention,
    CrossAttentionConfig,
    DotScoreConfig,
    GeneralScoreConfig,
    ProjectionsConfig,
    ScoreConfig,
    SinkScoreConfig,
)
from heddle.nn.base import Context, Place
from heddle.nn.layers import RMSNormConfig
from heddle.nn.state import Memory, State

SCORES = [DotScoreConfig(), GeneralScoreConfig(), AdditiveScoreConfig(), SinkScoreConfig()]


def build(config: CrossAttentionConfig, layer: int = 0) -> CrossAttention:
    attention = config.build(16, Place(memory=12, layer=layer))
    torch.manual_seed(0)
    for name, weight in attention.named_parameters():
        torch.nn.init.normal_(weight, mean=1.0 if "norm" in name else 0.0, std=0.5)
    return attention.double().eval()


def memory(lengths: tuple[int, ...] = (6, 4)) -> Memory:
    draw = torch.Generator().manual_seed(1)
    states = torch.randn(len(lengths), 6, 12, generator=draw, dtype=torch.float64)
    allowed = torch.arange(6) < torch.tensor(lengths)[:, None]
    return Memory((states,), allowed[:, None, None])


def test_cross_attention_equals_torchs_own() -> None:
    ours = build(CrossAttentionConfig(heads=4, projections=ProjectionsConfig(bias=True, output_bias=True)))
    theirs = torch.nn.MultiheadAttention(16, 4, kdim=12, vdim=12, batch_first=True).double()
    with torch.no_grad():
        theirs.q_proj_weight.copy_(ours.query.weight)
        theirs.k_proj_weight.copy_(ours.key.weight)
        theirs.v_proj_weight.copy_(ours.value.weight)
        theirs.in_proj_bias.copy_(torch.cat((ours.query.bias, ours.key.bias, ours.value.bias)))
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.out_proj.bias.copy_(ours.output.bias)
    x, source = torch.randn(2, 5, 16, dtype=torch.float64), memory()
    padding = ~source.allowed[:, 0, 0]
    want, weights = theirs(x, source.layers[0], source.layers[0], key_padding_mask=padding, average_attn_weights=False)
    ctx = Context(memory=source)
    torch.testing.assert_close(ours(x, ctx), want)
    torch.testing.assert_close(ours.attention_weights(x, ctx), weights)


@pytest.mark.parametrize("score", SCORES, ids=lambda s: s.kind)
@pytest.mark.parametrize("kv_heads", [None, 1])
def test_padding_of_the_source_has_no_say(score: ScoreConfig, kv_heads: int | None) -> None:
    attention = build(CrossAttentionConfig(heads=4, kv_heads=kv_heads, score=score))
    x, source = torch.randn(2, 5, 16, dtype=torch.float64), memory()
    batched = attention(x, Context(memory=source))
    alone = attention(x[1:], Context(memory=Memory((source.layers[0][1:, :4],))))
    torch.testing.assert_close(batched[1:], alone)
    assert attention.attention_weights(x, Context(memory=source))[1, :, :, 4:].count_nonzero() == 0


@pytest.mark.parametrize("score", SCORES, ids=lambda s: s.kind)
@pytest.mark.parametrize("norm", [False, True])
def test_weights_times_values_equal_the_fast_path(score: ScoreConfig, norm: bool) -> None:
    how = ProjectionsConfig(norm=RMSNormConfig()) if norm else ProjectionsConfig()
    attention = build(CrossAttentionConfig(heads=4, kv_heads=2, score=score, projections=how))
    x, ctx = torch.randn(2, 5, 16, dtype=torch.float64), Context(memory=memory())
    mixed = attention.attention_inputs(x, ctx).weigh_values(attention.attention_weights(x, ctx))
    torch.testing.assert_close(attention(x, ctx), attention.output(mixed.transpose(1, 2).flatten(-2)))


def test_the_memory_is_projected_once() -> None:
    attention = build(CrossAttentionConfig(heads=4))
    x, source = torch.randn(2, 3, 16, dtype=torch.float64), memory()
    first, slot = attention.step(x, Context(memory=source, state=State.empty(2, 9)), None)
    again, kept = attention.step(x, Context(memory=source, state=State.empty(2, 9)), slot)
    assert kept is slot
    assert torch.equal(first, again)


def test_each_layer_reads_its_own_memory() -> None:
    states = memory().layers[0]
    ctx, x = Context(memory=Memory((states, -states))), torch.randn(2, 3, 16, dtype=torch.float64)
    upper, lower = build(CrossAttentionConfig(heads=4), layer=1), build(CrossAttentionConfig(heads=4))
    torch.testing.assert_close(upper(x, ctx), lower(x, Context(memory=Memory((-states,)))))


def test_cross_attention_without_an_encoder_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no encoder"):
        CrossAttentionConfig(heads=4).build(16, Place())
    with pytest.raises(UsageError, match="needs a memory"):
        build(CrossAttentionConfig(heads=4))(torch.zeros(1, 2, 16).double(), Context())


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ConfigError, match="heads: want a divisor of the width 16, got 3"):
        CrossAttentionConfig(heads=3).build(16, Place(memory=12))

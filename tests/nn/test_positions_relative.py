"""Relative positions: buckets and slopes as Hugging Face has them, Shaw's vectors as the paper writes them."""

import math

import pytest
import torch
from transformers import T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from heddle.core import ConfigError
from heddle.nn.attention import Attention, AttentionConfig
from heddle.nn.base import Context, Place, Sight
from heddle.nn.layers import base_mask
from heddle.nn.positions import AlibiPositionConfig, Position, PositionConfig, RelativePositionConfig, T5PositionConfig
from heddle.nn.positions.relative import alibi_slopes, relative_bucket
from heddle.nn.state import State

CPU = torch.device("cpu")


def build(config: PositionConfig, sight: Sight = "all", heads: tuple[int, ...] = (4,)) -> Position:
    position = config.build(16, Place(context=16, head_width=4, heads=heads, depth=2, sight=sight)).double()
    position.reset_buffers()
    torch.manual_seed(0)
    for weight in position.parameters():
        torch.nn.init.normal_(weight)
    return position


def context(position: Position, length: int, ctx: Context | None = None, batch: int = 1) -> Context:
    return position(torch.zeros(batch, length, 16, dtype=torch.float64), Context() if ctx is None else ctx)[1]


@pytest.mark.parametrize("sight", ["past", "all"])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (64, 256), (8, 20)])
def test_buckets_equal_hugging_face(sight: Sight, buckets: int, farthest: int) -> None:
    ahead = torch.arange(-600, 601)
    want = T5Attention._relative_position_bucket(ahead, sight == "all", buckets, farthest)
    assert torch.equal(relative_bucket(ahead, buckets, farthest, sight), want)


@pytest.mark.parametrize("sight", ["past", "all"])
def test_t5_bias_equals_hugging_face(sight: Sight) -> None:
    config = T5Config(d_model=16, num_heads=4, is_decoder=sight == "past")
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    position = build(T5PositionConfig(), sight)
    with torch.no_grad():
        theirs.relative_attention_bias.weight.copy_(position.get_parameter("heads_4").T)
    want = theirs.compute_bias(300, 300)
    got = context(position, 300).bias[4]
    seen = torch.ones(300, 300).tril().bool() if sight == "past" else torch.ones(300, 300).bool()
    torch.testing.assert_close(got[..., seen], want[..., seen])
    assert got[..., ~seen].eq(-math.inf).all()


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 14, 16, 71, 112])
def test_slopes_equal_bloom(heads: int) -> None:
    want = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(alibi_slopes(heads, CPU).float(), want, rtol=1e-6, atol=0)


def test_alibi_of_eight_heads_is_the_papers_row() -> None:
    assert alibi_slopes(8, CPU).tolist() == [2.0**-i for i in range(1, 9)]


def test_alibi_takes_the_slope_for_every_step_of_distance() -> None:
    bias = context(build(AlibiPositionConfig(), "past"), 6).bias[4][0]
    for head, slope in enumerate(alibi_slopes(4, CPU).tolist()):
        assert bias[head, 5].tolist() == pytest.approx([-slope * d for d in (5, 4, 3, 2, 1, 0)])
        assert bias[head, 2, 3:].eq(-math.inf).all()
    both = context(build(AlibiPositionConfig(), "all"), 6).bias[4][0]
    assert torch.equal(both, both.mT)


@pytest.mark.parametrize("config", [T5PositionConfig(), AlibiPositionConfig()], ids=lambda c: c.kind)
@pytest.mark.parametrize("sight", ["past", "all"])
def test_bias_depends_only_on_distance_and_its_corner_is_that_of_a_shorter_row(
    config: PositionConfig, sight: Sight
) -> None:
    position = build(config, sight)
    bias = context(position, 9).bias[4]
    assert torch.equal(bias[:, :, 1:, 1:], bias[:, :, :-1, :-1])
    assert torch.equal(bias[:, :, :5, :5], context(position, 5).bias[4])


@pytest.mark.parametrize("config", [T5PositionConfig(), AlibiPositionConfig()], ids=lambda c: c.kind)
def test_bias_from_a_state_is_the_row_of_the_whole(config: PositionConfig) -> None:
    position = build(config, "past")
    whole = context(position, 12).bias[4]
    state = State.empty(2, 12).advance(torch.tensor([3, 7]))
    ctx = Context(state=state, allowed=base_mask(Context(state=state), 2, "past", CPU))
    bias = context(position, 2, ctx, batch=2).bias[4]
    for row, start in enumerate((3, 7)):
        for query in range(2):
            seen = start + query + 1
            torch.testing.assert_close(bias[row, :, query, :seen], whole[0, :, start + query, :seen])


def test_each_head_count_has_its_own_table() -> None:
    position = build(T5PositionConfig(buckets=8, farthest=16), heads=(2, 4))
    assert {name: tuple(p.shape) for name, p in position.named_parameters()} == {"heads_2": (2, 8), "heads_4": (4, 8)}
    assert {heads: b.shape[1] for heads, b in context(position, 5).bias.items()} == {2: 2, 4: 4}


@pytest.mark.parametrize("sight", ["past", "all"])
def test_relative_attention_equals_the_papers_sums(sight: Sight) -> None:
    position = build(RelativePositionConfig(clip=2), sight)
    torch.manual_seed(1)
    attention = AttentionConfig(heads=4, kv_heads=2).build(16, Place(layer=1, depth=2, sight=sight)).double()
    for weight in attention.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    x = torch.randn(1, 7, 16, dtype=torch.float64)
    _, ctx = position(x, Context())
    got = attention.score.attend(attention.attention_inputs(x, ctx))
    query, key, value = attention.project(x, Context())
    first = -2 if sight == "all" else 0
    for head in range(4):
        for i in range(7):
            keys = range(i + 1) if sight == "past" else range(7)
            near = [max(first, min(2, i - j)) - first for j in keys]
            scores = torch.stack(
                [
                    query[0, head, i] @ (key[0, head // 2, j] + position.keys[1, d])
                    for j, d in zip(keys, near, strict=True)
                ]
            )
            weights = (scores / 2).softmax(0)
            want = sum(
                w * (value[0, head // 2, j] + position.values[1, d])
                for w, j, d in zip(weights, keys, near, strict=True)
            )
            torch.testing.assert_close(got[0, head, i], want)


def test_relative_scores_depend_only_on_distance() -> None:
    position = build(RelativePositionConfig(clip=3))
    attention: Attention = AttentionConfig(heads=4).build(16, Place(depth=2, sight="all")).double()
    for weight in attention.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    x = torch.randn(1, 1, 16, dtype=torch.float64).expand(1, 9, 16)  # the same word everywhere
    _, ctx = position(x, Context())
    scores = attention.score(attention.attention_inputs(x, ctx))
    torch.testing.assert_close(scores[:, :, 1:, 1:], scores[:, :, :-1, :-1])
    assert not torch.allclose(scores[0, 0, 4, 4], scores[0, 0, 4, 3])
    torch.testing.assert_close(scores[0, :, 8, 5], scores[0, :, 8, 0])  # both beyond the clip


def test_a_causal_model_has_no_vectors_for_the_future() -> None:
    assert build(RelativePositionConfig(clip=5), "past").keys.shape == (2, 6, 4)
    assert build(RelativePositionConfig(clip=5), "all").keys.shape == (2, 11, 4)


@pytest.mark.parametrize(
    ("make", "fields", "field"),
    [
        (RelativePositionConfig, {"clip": 0}, "clip"),
        (T5PositionConfig, {"buckets": 6}, "buckets"),
        (T5PositionConfig, {"buckets": 0}, "buckets"),
        (T5PositionConfig, {"buckets": 32, "farthest": 16}, "farthest"),
    ],
)
def test_a_relative_position_that_cannot_be_is_refused(make: type, fields: dict[str, int], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(**fields)
    assert caught.value.field == field

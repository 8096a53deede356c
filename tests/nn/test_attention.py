"""Attention: worked examples through the real module, head relations, masks against explicit ones, normed queries."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from heddle.core import ConfigError, UsageError
from heddle.nn.attention import (
    Attention,
    AttentionConfig,
    AttentionInputs,
    DotScoreConfig,
    ProjectionsConfig,
    SinkScoreConfig,
)
from heddle.nn.base import Context, Place, Sight
from heddle.nn.layers import FullMaskConfig, LayerNormConfig, MaskConfig, RMSNormConfig, SlidingWindowConfig, base_mask
from heddle.nn.positions import T5PositionConfig
from heddle.nn.state import State

CPU = torch.device("cpu")


def build(config: AttentionConfig, width: int, sight: Sight = "past") -> Attention:
    torch.manual_seed(0)
    attention = config.build(width, Place(sight=sight))
    for name, weight in attention.named_parameters():
        torch.nn.init.normal_(weight, mean=1.0 if "norm" in name else 0.0, std=0.5)
    return attention.double().eval()


def identity(width: int) -> Attention:
    attention = build(AttentionConfig(heads=1), width, sight="all")
    with torch.no_grad():
        for weight in attention.parameters():
            weight.copy_(torch.eye(width))
    return attention


def by_hand(attention: Attention, x: Tensor, allowed: Tensor) -> Tensor:
    """Compute attention one head at a time, from the definition; allowed is [batch, query, key]."""
    query, key, value = attention.project(x, Context())
    share = attention.heads // attention.kv_heads
    heads = []
    for head in range(attention.heads):
        scores = query[:, head] @ key[:, head // share].mT / math.sqrt(attention.head_width)
        weights = scores.masked_fill(~allowed, -math.inf).softmax(-1)
        heads.append(weights @ value[:, head // share])
    mixed: Tensor = attention.output(torch.cat(heads, dim=-1))
    return mixed


def test_dragons_breathe_fire() -> None:
    # with one-hot words and identity weights, the output is the row of attention weights itself
    words = torch.eye(3, dtype=torch.float64)[None]
    out = identity(3)(words, Context())[0]
    torch.testing.assert_close(out[1], torch.tensor([0.2645, 0.4711, 0.2645]).double(), atol=5e-5, rtol=0)
    for i in range(3):
        assert torch.equal(out[i].argsort(descending=True)[:1], torch.tensor([i]))
        torch.testing.assert_close(out[i].roll(-i), out[0])


def test_scores_are_divided_by_the_root_of_the_head_width() -> None:
    # the worked example: scores 92, 124, 22, 8 over sqrt(64)
    attention = build(AttentionConfig(heads=1, head_width=64), 64, sight="all")
    query = torch.zeros(1, 1, 1, 64).double()
    query[..., 0] = 1
    key = torch.zeros(1, 1, 4, 64).double()
    key[0, 0, :, 0] = torch.tensor([92.0, 124.0, 22.0, 8.0])
    value = torch.zeros(1, 1, 4, 64).double()
    value[0, 0, :, :4] = torch.eye(4)
    with torch.no_grad():
        attention.output.weight.copy_(torch.eye(64))
    weights = attention.attend(AttentionInputs(query, key, value))
    torch.testing.assert_close(weights[0, 0, :4], torch.tensor([0.018, 0.982, 0.0, 0.0]).double(), atol=5e-4, rtol=0)
    exact = torch.tensor([92.0, 124.0, 22.0, 8.0]).double().div(8).softmax(0)
    torch.testing.assert_close(weights[0, 0, :4], exact, atol=5e-5, rtol=0)


def test_position_i_sees_j_when_j_is_not_later() -> None:
    seen = build(AttentionConfig(heads=2), 8).attention_weights(torch.randn(1, 5, 8).double(), Context())[0, 0] > 0
    assert torch.equal(seen, torch.ones(5, 5).tril().bool())


@pytest.mark.parametrize("kv_heads", [None, 4, 2, 1])
@pytest.mark.parametrize("sight", ["past", "all"])
@pytest.mark.parametrize(
    "mask",
    [FullMaskConfig(), SlidingWindowConfig(size=1), SlidingWindowConfig(size=3), SlidingWindowConfig(size=2, sinks=2)],
    ids=str,
)
@pytest.mark.parametrize("packed", [False, True])
def test_attention_equals_its_definition(kv_heads: int | None, sight: Sight, mask: MaskConfig, packed: bool) -> None:
    attention = build(AttentionConfig(heads=4, kv_heads=kv_heads, mask=mask), 16, sight)
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    documents = torch.tensor([[0] * 4 + [1] * 5, [0] * 2 + [1] * 6 + [2]]) if packed else None
    ctx = Context(documents=documents)
    i, j = torch.arange(9)[:, None], torch.arange(9)[None, :]
    allowed = torch.ones(2, 9, 9, dtype=torch.bool)
    if sight == "past":
        allowed &= j <= i
    if isinstance(mask, SlidingWindowConfig):
        first = torch.zeros(2, 9, dtype=torch.long) if documents is None else torch.searchsorted(documents, documents)
        allowed &= ((i - j).abs() < mask.size) | (j - first < mask.sinks)[:, None, :]
    if documents is not None:
        allowed &= documents[:, :, None] == documents[:, None, :]
    out = attention(x, Context(documents=documents, allowed=base_mask(ctx, 9, sight, CPU)))
    torch.testing.assert_close(out, by_hand(attention, x, allowed))


def test_grouped_heads_equal_many_heads_with_repeated_keys() -> None:
    grouped = build(AttentionConfig(heads=4, kv_heads=2), 16)
    many = build(AttentionConfig(heads=4), 16)
    with torch.no_grad():
        many.query.weight.copy_(grouped.query.weight)
        many.output.weight.copy_(grouped.output.weight)
        for name in ("key", "value"):
            narrow = grouped.get_submodule(name).weight.unflatten(0, (2, 4))
            many.get_submodule(name).weight.copy_(narrow.repeat_interleave(2, dim=0).flatten(0, 1))
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    torch.testing.assert_close(grouped(x, Context()), many(x, Context()))


def test_as_many_kv_heads_as_heads_is_the_default() -> None:
    one, other = build(AttentionConfig(heads=4), 16), build(AttentionConfig(heads=4, kv_heads=4), 16)
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    assert torch.equal(one(x, Context()), other(x, Context()))


def test_fewer_kv_heads_hold_less() -> None:
    held = [build(AttentionConfig(heads=4, kv_heads=k), 16).state_elements() for k in (4, 2, 1)]
    assert held == [32, 16, 8]


def test_normed_queries_and_keys_have_one_length() -> None:
    normed = ProjectionsConfig(norm=RMSNormConfig())
    attention = build(AttentionConfig(heads=4, projections=normed), 16)
    with torch.no_grad():
        attention.query_norm.weight.fill_(1)
        attention.key_norm.weight.fill_(1)
    query, key, value = attention.project(torch.randn(2, 7, 16, dtype=torch.float64) * 50, Context())
    for turned in (query, key):
        torch.testing.assert_close(turned.norm(dim=-1), torch.full((2, 4, 7), 2.0).double())
    assert value.norm(dim=-1).std() > 0.1


def test_biases_are_where_the_config_puts_them() -> None:
    names = dict(build(AttentionConfig(heads=4, projections=ProjectionsConfig(bias=True)), 16).named_parameters())
    assert {n for n in names if n.endswith("bias")} == {"query.bias", "key.bias", "value.bias"}


def test_dropout_is_for_training_only() -> None:
    attention = build(AttentionConfig(heads=4, dropout=0.5), 16)
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    assert torch.equal(attention(x, Context()), attention(x, Context()))
    attention.train()
    assert not torch.equal(attention(x, Context()), attention(x, Context()))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"heads": 0}, "heads"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads"),
        ({"heads": 4, "kv_heads": 0}, "kv_heads"),
        ({"heads": 4, "head_width": 0}, "head_width"),
        ({"heads": 4, "dropout": 1.0}, "dropout"),
        ({"heads": 4, "dropout": -0.1}, "dropout"),
    ],
)
def test_attention_that_cannot_be_is_refused(fields: dict[str, float], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AttentionConfig(**fields)
    assert caught.value.field == field


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ConfigError, match="heads: want a divisor of the width 10, got 4"):
        AttentionConfig(heads=4).build(10, Place())


def test_window_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="size"):
        SlidingWindowConfig(size=0)


def test_documents_with_a_cache_are_refused_rather_than_ignored() -> None:
    attention, state = build(AttentionConfig(heads=4), 16), State.empty(1, 8)
    with pytest.raises(UsageError, match="not both"):
        attention.step(torch.zeros(1, 2, 16).double(), Context(state=state, documents=torch.zeros(1, 2).long()), None)


def test_padding_needs_no_capacity_and_is_not_cached() -> None:
    attention, state = build(AttentionConfig(heads=4), 16), State.empty(2, 4)
    new = torch.tensor([4, 0])
    ctx = Context(state=state, lengths=new, allowed=base_mask(Context(state=state), 4, "past", CPU))
    _, slot = attention.step(torch.randn(2, 4, 16).double(), ctx, None)
    keys, _ = slot.read()
    assert keys[0].count_nonzero() == 4 * 4 * 4
    assert keys[1].count_nonzero() == 0
    full = state.advance(new)
    ctx = Context(state=full, lengths=torch.tensor([0, 3]), allowed=base_mask(Context(state=full), 3, "past", CPU))
    before = keys[0].clone()
    attention.step(torch.randn(2, 3, 16).double(), ctx, slot)  # row 0 is full: its padding would be past the capacity
    assert torch.equal(slot.read()[0][0], before)


def test_sinks_and_softcap_equal_hugging_face() -> None:
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as gemma
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as gpt_oss

    torch.manual_seed(0)
    query, key, value = torch.randn(2, 8, 5, 6), torch.randn(2, 2, 5, 6), torch.randn(2, 2, 5, 6)
    mask = torch.zeros(1, 1, 5, 5).masked_fill(~torch.ones(5, 5).tril().bool(), -1e9)
    inputs = AttentionInputs(query, key, value, causal=True)
    module = torch.nn.Module()
    module.num_key_value_groups, module.sinks = 4, torch.nn.Parameter(torch.randn(8))

    sink = SinkScoreConfig().build(8, 6)
    with torch.no_grad():
        sink.sink.copy_(module.sinks)
    mixed, weights = gpt_oss(module, query, key, value, mask, scaling=6**-0.5)
    torch.testing.assert_close(sink.attention_weights(inputs), weights)
    torch.testing.assert_close(sink.attend(inputs).transpose(1, 2), mixed)

    capped = DotScoreConfig(scale=0.7, softcap=0.5).build(8, 6)
    mixed, weights = gemma(module, query, key, value, mask, scaling=0.7, softcap=0.5)
    torch.testing.assert_close(capped.attention_weights(inputs), weights)
    torch.testing.assert_close(capped.attend(inputs).transpose(1, 2), mixed)


def test_unscaled_attention_with_buckets_equals_hugging_face_t5() -> None:
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    torch.manual_seed(0)
    theirs = T5Attention(T5Config(d_model=16, d_kv=6, num_heads=4), has_relative_attention_bias=True, layer_idx=0)
    config = AttentionConfig(heads=4, head_width=6, score=DotScoreConfig(scale=1.0))
    ours = config.build(16, Place(sight="all"))
    position = T5PositionConfig().build(16, Place(sight="all", heads=(4,)))
    with torch.no_grad():
        for name, weight in (("query", theirs.q), ("key", theirs.k), ("value", theirs.v), ("output", theirs.o)):
            ours.get_submodule(name).weight.copy_(weight.weight)
        position.get_parameter("heads_4").copy_(theirs.relative_attention_bias.weight.T)
    x = torch.randn(2, 40, 16)
    want = theirs.eval()(x)[0]
    torch.testing.assert_close(ours.eval()(*position(x, Context())), want)


def test_a_head_count_without_a_bias_is_a_fault_not_a_guess() -> None:
    position = T5PositionConfig().build(16, Place(heads=(2,)))
    x = torch.randn(1, 3, 16)
    torch.nn.init.zeros_(position.get_parameter("heads_2"))
    with pytest.raises(KeyError):
        AttentionConfig(heads=4).build(16, Place())(*position(x, Context()))


def test_layer_norm_of_the_worked_example() -> None:
    norm = LayerNormConfig(eps=0.0, bias=False).build(4).double()
    torch.nn.init.ones_(norm.weight)
    out = norm(torch.tensor([0.6, 0.8, 0.7, 0.7]).double())
    torch.testing.assert_close(out, torch.tensor([-1.4142, 1.4142, 0.0, 0.0]).double(), atol=5e-5, rtol=0)


TRIAL = """
import torch
from laws.cases import ids, more

from heddle.nn.base import Context

names = ("grouped-t5", "additive-relative", "window-sinks-alibi", "latent-rotary")
configs = {case.name: case.config for case in more() if case.name in names}
for name, config in configs.items():
    torch._dynamo.reset()
    model, inputs = config.build().eval(), ids(2, 12)
    documents = torch.tensor([[0] * 5 + [1] * 7] * 2)
    places = torch.tensor([[*range(5), *range(7)]] * 2)

    def run(ids, state=None, model=model):
        return model(ids, Context(documents=documents, positions=places)) if state is None else model.step(ids, state)

    with torch.no_grad():
        whole = torch.compile(run, fullgraph=True, backend="eager")
        assert torch.allclose(whole(inputs), run(inputs), atol=1e-5), name
        state = model.new_state(2, 12)
        _, state = run(inputs[:, :4], state)
        output, _ = whole(inputs[:, 4:5], state)
        assert torch.allclose(output[:, 0], model(inputs[:, :5])[:, 4], atol=1e-5), name
    print(name)
"""


def test_every_way_through_attention_is_one_graph() -> None:
    # in a process of its own, for the shape checks that tests switch on cannot be traced
    folder = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", TRIAL], cwd=folder, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) == 4

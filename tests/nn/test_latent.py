"""Latent attention: Hugging Face's DeepSeek attention with our weights, and a cache of latents alone."""

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

from heddle.core import ConfigError
from heddle.nn.attention import LatentAttentionConfig, LatentWidthsConfig
from heddle.nn.attention.latent import LatentAttention
from heddle.nn.base import Context, Place
from heddle.nn.layers import base_mask
from heddle.nn.positions import RotaryPositionConfig
from heddle.nn.state import State

WIDTHS = LatentWidthsConfig(key=6, rotary=4, value=5)
CONFIG = LatentAttentionConfig(heads=4, latent=10, widths=WIDTHS, query_latent=12)
CPU = torch.device("cpu")


def build(config: LatentAttentionConfig = CONFIG) -> LatentAttention:
    torch.manual_seed(0)
    attention = config.build(16, Place())
    for name, weight in attention.named_parameters():
        torch.nn.init.normal_(weight, mean=1.0 if "norm" in name else 0.0, std=0.3)
    return attention.double().eval()


def side_by_side(neighbours: Tensor) -> Tensor:
    """Order rows that turn in pairs of neighbours as rows that turn in pairs of halves."""
    return torch.cat((neighbours[..., 0::2, :], neighbours[..., 1::2, :]), dim=-2)


@torch.no_grad()
def filled(theirs: DeepseekV3Attention, query_latent: int | None, interleaved: bool) -> LatentAttention:
    """Build our module with the weights of theirs."""
    ours = LatentAttentionConfig(heads=4, latent=10, widths=WIDTHS, query_latent=query_latent).build(16, Place())

    def ordered(turned: Tensor) -> Tensor:
        return side_by_side(turned) if interleaved else turned

    query = (theirs.q_proj if query_latent is None else theirs.q_b_proj).weight.unflatten(0, (4, 10))
    query = torch.cat((query[:, :6], ordered(query[:, 6:])), dim=1).flatten(0, 1)
    if query_latent is None:
        ours.query.weight.copy_(query)
    else:
        ours.query.down.weight.copy_(theirs.q_a_proj.weight)
        ours.query.norm.weight.copy_(theirs.q_a_layernorm.weight)
        ours.query.up.weight.copy_(query)
    left, turned = theirs.kv_a_proj_with_mqa.weight.split((10, 4))
    ours.latent.weight.copy_(left)
    ours.turned.weight.copy_(ordered(turned))
    ours.latent_norm.weight.copy_(theirs.kv_a_layernorm.weight)
    key, value = theirs.kv_b_proj.weight.unflatten(0, (4, 11)).split((6, 5), dim=1)
    ours.key.weight.copy_(key.flatten(0, 1))
    ours.value.weight.copy_(value.flatten(0, 1))
    ours.output.weight.copy_(theirs.o_proj.weight)
    return ours.eval()


@pytest.mark.parametrize("query_latent", [None, 12])
@pytest.mark.parametrize("interleaved", [False, True])
def test_latent_attention_equals_hugging_face(query_latent: int | None, interleaved: bool) -> None:
    config = DeepseekV3Config(
        hidden_size=16,
        num_attention_heads=4,
        num_key_value_heads=4,
        kv_lora_rank=10,
        q_lora_rank=query_latent,
        qk_rope_head_dim=4,
        v_head_dim=5,
        qk_nope_head_dim=6,
        rope_interleave=interleaved,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    theirs = DeepseekV3Attention(config, layer_idx=0).eval()
    for name, weight in theirs.named_parameters():
        torch.nn.init.normal_(weight, mean=1.0 if "norm" in name else 0.0, std=0.3)
    ours = filled(theirs, query_latent, interleaved)
    x = torch.randn(2, 7, 16)
    tables = DeepseekV3RotaryEmbedding(config)(x, torch.arange(7)[None])
    mask = torch.zeros(1, 1, 7, 7).masked_fill(~torch.ones(7, 7).tril().bool(), -1e9)
    want, weights = theirs(x, tables, mask)
    _, ctx = RotaryPositionConfig().build(16, Place(context=16, head_width=4))(x, Context())
    torch.testing.assert_close(ours(x, ctx), want)
    torch.testing.assert_close(ours.attention_weights(x, ctx), weights)


def test_the_cache_holds_latents_and_rotary_keys_only() -> None:
    attention, state = build(), State.empty(2, 9)
    ctx = Context(state=state, allowed=base_mask(Context(state=state), 3, "past", CPU))
    _, slot = attention.step(torch.randn(2, 3, 16).double(), ctx, None)
    assert [tuple(kept.shape) for kept in slot.read()] == [(2, 1, 9, 10), (2, 1, 9, 4)]
    assert attention.state_elements() == 14


def test_one_query_attends_to_the_latents_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, x = build(), torch.randn(1, 5, 16).double()
    state = State.empty(1, 5)
    ctx = Context(state=state, allowed=base_mask(Context(state=state), 4, "past", CPU))
    _, slot = attention.step(x[:, :4], ctx, None)
    monkeypatch.setattr(LatentAttention, "expand_latent", None)  # no keys and values are made from here on
    state = state.advance(4)
    ctx = Context(state=state, allowed=base_mask(Context(state=state), 1, "past", CPU))
    last, _ = attention.step(x[:, 4:], ctx, slot)
    monkeypatch.undo()
    torch.testing.assert_close(last, attention(x, Context())[:, 4:])


def test_weights_times_values_equal_the_fast_path() -> None:
    attention, x = build(), torch.randn(2, 6, 16).double()
    inputs = attention.attention_inputs(x, Context())
    by_weights = attention.project_output(inputs.weigh_values(attention.attention_weights(x, Context())))
    torch.testing.assert_close(attention(x, Context()), by_weights)


def test_cost_counts_both_widths() -> None:
    assert build().mixing_flops(10) == 2 * 10 * 4 * (6 + 4 + 5)


@pytest.mark.parametrize("field", ["heads", "latent", "query_latent"])
def test_sizes_of_nothing_are_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        LatentAttentionConfig(**{"heads": 4, "latent": 10, "widths": WIDTHS} | {field: 0})

"""Value residual: later layers mix in the first layer's values, caches hold the sum, misuse is refused."""

import dataclasses
from pathlib import Path

import pytest
import torch
from laws.cases import ATTENTION, CHANNEL, around, small

from heddle.checkpoints.hf import save_model
from heddle.core import ConfigError, UsageError, replace, swap
from heddle.models.networks import LanguageModelConfig, parallel, pre_norm
from heddle.models.presets import preset
from heddle.nn.attention import Attention, AttentionConfig, ValueResidualConfig
from heddle.nn.base import Context, Place
from heddle.nn.layers import LayerNormConfig
from heddle.nn.stack import ChainConfig, LoopConfig, RepeatConfig
from heddle.nn.state import State

FIRST = replace(ATTENTION, values=ValueResidualConfig())
NORM = LayerNormConfig()
IDS = torch.tensor([[5, 6, 7, 8, 9]])
X = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))


def attention(layer: int) -> Attention:
    """Build attention of a layer, with weights that are no zeros and shares of 0.25 and 2."""
    built = FIRST.build(16, Place(layer=layer))
    generator = torch.Generator().manual_seed(layer)
    with torch.no_grad():
        for name, weight in built.named_parameters():
            drawn = torch.randn(weight.shape, generator=generator)
            weight.copy_(torch.tensor([0.25, 2.0]) if name == "values.share" else drawn)
    return built


def test_a_layer_mixes_its_own_values_with_those_that_the_first_left() -> None:
    first, later = attention(0), attention(1)
    ctx = first.publish(X, Context())
    assert ctx.values is not None and torch.equal(ctx.values, first.value(X))
    assert later.publish(X, ctx) is ctx
    mixed = 0.25 * later.value(X) + 2.0 * first.value(X)
    assert torch.allclose(later.project(X, ctx)[2].transpose(1, 2).flatten(-2), mixed)
    assert torch.equal(first.project(X, ctx)[2].transpose(1, 2).flatten(-2), first.value(X))


def test_a_cache_holds_values_as_they_were_mixed() -> None:
    first, later = attention(0), attention(1)
    ctx = first.publish(X, Context(state=State.empty(2, 8)))
    _, cache = later.step(X, ctx, None)
    mixed = later.project(X, dataclasses.replace(ctx, state=None))[2]
    assert torch.equal(cache.stores[1].read()[:, :, :5], mixed)


def test_only_later_layers_have_shares_and_these_begin_as_halves() -> None:
    model = around(FIRST, CHANNEL).build(0)
    shares = {name: p.tolist() for name, p in model.named_parameters() if "share" in name}
    assert shares == {"stack.1.mixer.part.values.share": [0.5, 0.5]}


REFUSED: dict[str, tuple[LanguageModelConfig, str]] = {
    "in a loop": (
        small(LoopConfig(body=pre_norm(FIRST, CHANNEL, norm=NORM), turns=2)),
        "plain in the layers of a loop",
    ),
    "with nothing left by the first layer": (
        small(ChainConfig(bodies=(pre_norm(CHANNEL, norm=NORM), pre_norm(FIRST, norm=NORM)))),
        "the first layer has no attention with `values: value_residual`",
    ),
    "where the first layer has values of its own alone": (
        small(ChainConfig(bodies=tuple(pre_norm(one, norm=NORM) for one in (ATTENTION, FIRST)))),
        "the first layer has no attention with `values: value_residual`",
    ),
    "beside another part": (
        small(RepeatConfig(body=parallel(FIRST, CHANNEL, norm=NORM), times=2)),
        "the first layer has no attention with `values: value_residual`",
    ),
    "of another number": (
        small(ChainConfig(bodies=tuple(pre_norm(one, norm=NORM) for one in (FIRST, replace(FIRST, kv_heads=2))))),
        "the same kv_heads",
    ),
}

AT_BUILD = {"in a loop", "of another number"}  # the rest is seen when a stream comes


@pytest.mark.parametrize("name", REFUSED)
def test_first_values_are_refused(name: str) -> None:
    config, reason = REFUSED[name]
    built = None if name in AT_BUILD else config.build(0)
    with pytest.raises(ConfigError, match=reason) as caught:
        config.build(0) if built is None else built(IDS)
    assert "\n" not in str(caught.value)


def test_no_family_of_hugging_face_takes_them(tmp_path: Path) -> None:
    llama = preset("llama").config(layers=2, width=16, heads=4, hidden=24, vocab=23, context=12)
    config = swap(AttentionConfig, lambda a: replace(a, values=ValueResidualConfig()))(llama)
    with pytest.raises(UsageError, match="values"):
        save_model(config.build(0), tmp_path / "out")

"""LoRA over a map: the formula, first values, gradients, dtype; which maps are meant, and what is refused."""

from typing import Any

import pytest
import torch
from laws.cases import ATTENTION, CHANNEL, EXPERTS, around
from torch import nn

from heddle.core import ConfigError, decode, encode, find, replace
from heddle.models import build_meta
from heddle.models.networks import TIED, LanguageModelConfig, ModelConfig
from heddle.models.presets import build
from heddle.models.surgery import lora
from heddle.nn.adapters import Lora, LoraConfig, find_linears
from heddle.nn.base import Linear


def over(to: Linear, config: LoraConfig) -> Lora:
    """Lay LoRA over a map, with numbers that have their say."""
    adapter = config.build(to)
    assert isinstance(adapter, Lora)
    to.adapter = adapter
    draw = torch.Generator().manual_seed(0)
    for weight in to.parameters():
        nn.init.normal_(weight, generator=draw)
    return adapter


def test_lora_adds_the_scaled_product() -> None:
    to = Linear(5, 7, bias=True)
    adapter, x = over(to, LoraConfig(rank=3, alpha=6.0)), torch.randn(2, 4, 5)
    want = x @ (to.weight + 2.0 * adapter.up @ adapter.down).T + to.bias
    torch.testing.assert_close(to(x), want)
    torch.testing.assert_close(to.dense_weight(torch.float64), (to.weight + 2.0 * adapter.up @ adapter.down).double())


def test_rooted_scaling_divides_by_the_root_of_the_rank() -> None:
    assert LoraConfig(rank=16, alpha=8.0).scale == 0.5
    assert LoraConfig(rank=16, alpha=8.0, scaling="root").scale == 2.0


def test_the_stream_sets_the_dtype() -> None:
    to = Linear(5, 7)
    over(to, LoraConfig(rank=3))
    x = torch.randn(2, 5, dtype=torch.bfloat16)
    assert to(x).dtype == torch.bfloat16
    torch.testing.assert_close(to(x).float(), to(x.float()), atol=0.4, rtol=0.05)


def test_gradients_are_right() -> None:
    to = Linear(4, 3, bias=True).double()
    over(to, LoraConfig(rank=2))
    to.double()
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda stream, *_: to(stream), (x, *to.parameters()))


def test_dropout_falls_on_what_goes_into_the_adapter_alone() -> None:
    to = Linear(200, 7)
    adapter, x = over(to, LoraConfig(rank=3, dropout=0.5)), torch.ones(1, 200)
    torch.manual_seed(0)
    assert not torch.equal(to(x), to(x))
    assert torch.equal(to.eval()(x), to(x))
    nn.init.zeros_(adapter.up)
    assert torch.equal(to.train()(x), to(x))


def test_up_begins_at_zero_and_down_within_the_usual_bound() -> None:
    model = around(ATTENTION, CHANNEL)
    plain, adapted = model.build(seed=3), lora(rank=4)(model).build(seed=3)
    weights = adapted.weights()
    assert all(torch.equal(weight, weights[name]) for name, weight in plain.weights().items())
    down = weights["stack.1.channel.part.down.adapter.down"]
    assert down.abs().max() <= 24**-0.5 and 0.4 * 24**-0.5 < down.std() < 0.7 * 24**-0.5
    assert not weights["stack.1.channel.part.down.adapter.up"].any()
    inputs = torch.arange(6)[None]
    assert torch.equal(plain.logits(inputs), adapted.logits(inputs)), "before training nothing has changed"


def test_only_adapters_learn() -> None:
    model = lora(rank=2)(around(ATTENTION, EXPERTS)).build()
    maps = [found.path for found in find_linears(model) if found.module.adapter is not None]
    assert len(maps) == 2 * (4 + 3), "attention's and, of all experts at once, theirs"
    assert model.trainable().keys() == {f"{path}.adapter.{end}" for path in maps for end in ("down", "up")}
    loss = model.head.nll(model(torch.arange(6)[None]), torch.arange(6)[None]).mean()
    loss.backward()
    assert all((weight.grad is not None) == weight.requires_grad for weight in model.parameters())


def test_names_ends_of_paths_and_layers_choose_maps() -> None:
    def chosen(**fields: Any) -> list[str]:
        config = replace(around(ATTENTION, CHANNEL), adapters=(LoraConfig(**fields),))
        return [found.path for found in find_linears(build_meta(config)) if found.module.adapter is not None]

    assert chosen(targets=("query",)) == ["stack.0.mixer.part.query", "stack.1.mixer.part.query"]
    assert chosen(targets=("channel.part.up",), layers=(1,)) == ["stack.1.channel.part.up"]
    assert chosen(targets=("stack.0.mixer.part.key",)) == ["stack.0.mixer.part.key"]
    assert len(chosen()) == 2 * 6 and len(chosen(layers=(0,))) == 6


def test_a_config_with_adapters_survives_json_and_one_without_the_field_still_loads() -> None:
    config = lora(rank=2, targets=("query",))(around(ATTENTION, CHANNEL))
    assert decode(ModelConfig, encode(config)) == config
    old = {key: value for key, value in encode(around(ATTENTION, CHANNEL)).items() if key != "adapters"}
    assert decode(ModelConfig, old) == around(ATTENTION, CHANNEL)
    assert find(config, LoraConfig)[0].rank == 2


TIED_MODEL = replace(around(ATTENTION, CHANNEL), ties=TIED)
WRONG: dict[str, tuple[LanguageModelConfig, tuple[LoraConfig, ...], str]] = {
    "unknown": (TIED_MODEL, (LoraConfig(targets=("qury",)),), r"adapters\.0\.targets: .*did you mean 'query'\?"),
    "tied": (TIED_MODEL, (LoraConfig(targets=("head",)),), "linear layers that are not tied, got 'head, whose matrix"),
    "no map": (TIED_MODEL, (LoraConfig(targets=("norm",)),), "got 'norm, which is a LayerNorm'"),
    "no layer": (
        TIED_MODEL,
        (LoraConfig(layers=(2,)),),
        r"adapters\.0\.layers: want 0 to 1, which have linear layers, got 2",
    ),
    "twice": (
        TIED_MODEL,
        (LoraConfig(), LoraConfig(targets=("up",))),
        r"adapters\.1\.targets: want linear layers without",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_adapted_is_refused_in_one_line(wrong: str) -> None:
    config, adapters, match = WRONG[wrong]
    with pytest.raises(ConfigError, match=match) as caught:
        build_meta(replace(config, adapters=adapters))
    assert "\n" not in str(caught.value)


def test_a_model_without_maps_says_so() -> None:
    with pytest.raises(ConfigError, match="linear layers of the model: none"):
        lora()(build("lstm_lm", width=8, layers=1, vocab=9).config).build()


@pytest.mark.parametrize("fields", [{"rank": 0}, {"dropout": 1.0}, {"targets": ()}, {"layers": ()}])
def test_settings_without_meaning_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(fields))):
        LoraConfig(**fields)

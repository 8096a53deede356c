"""Published sizes, counted on the meta device; FLOPs and bytes of state by hand."""

import time

import pytest
import torch

from heddle.core import decode, replace
from heddle.models import build_meta, count_parameters, forward_flops, summarize, tree
from heddle.models.networks import LanguageModelConfig, ModelConfig, pre_norm
from heddle.models.presets import PresetConfig, build, preset, presets
from heddle.nn.attention import AttentionConfig
from heddle.nn.channels import FeedForwardConfig
from heddle.nn.layers import NoNormConfig, SlidingWindowConfig
from heddle.nn.stack import LoopConfig, RepeatConfig

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama1-7b": 6_738_415_616,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_equal_the_published_count(name: str) -> None:
    start = time.perf_counter()
    assert summarize(PresetConfig(name=name)).parameters == PUBLISHED[name]
    assert time.perf_counter() - start < 5


def test_summary_allocates_no_weights() -> None:
    model = build_meta(preset("llama2-70b").config())
    assert all(p.is_meta for p in model.parameters())


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_summarised_and_its_config_comes_back(name: str) -> None:
    summary = summarize(PresetConfig(name=name))
    assert summary.parameters > 1e6
    assert summary.flops_per_token == 3 * summary.flops_per_token_forward
    assert decode(ModelConfig, summary.config) == preset(name).config()
    assert set(summary.plain()) >= {"parameters", "flops_per_token", "kv_bytes_per_token", "config"}


def test_flops_of_gpt2_by_hand() -> None:
    layers, width, length, vocab = 12, 768, 1024, 50257
    products = layers * 12 * width**2 + vocab * width  # the tied head is a product, the look-up is none
    summary = summarize(PresetConfig(name="gpt2"))
    assert summary.flops_per_token == 6 * products + 12 * layers * width * length
    assert summary.context == length


def test_flops_of_an_untied_head_count_it_once() -> None:
    tied, untied = (build("llama", layers=1, width=16, heads=2, kv_heads=1, hidden=8, tied=t) for t in (True, False))
    assert count_parameters(untied) == count_parameters(tied) + 32000 * 16
    assert forward_flops(tied, 64) == forward_flops(untied, 64)


def test_flops_of_recurrent_models_are_their_products() -> None:
    model = build("lstm_lm", layers=2, width=16, vocab=50)
    assert forward_flops(model, 64) == 2 * (2 * 8 * 16**2 + 50 * 16)
    assert forward_flops(model, 128) == forward_flops(model, 64)


def small(attention: AttentionConfig, loop: bool = False) -> LanguageModelConfig:
    body = pre_norm(attention, FeedForwardConfig(), norm=NoNormConfig())
    plan = LoopConfig(body=body, turns=3) if loop else RepeatConfig(body=body, times=3)
    return LanguageModelConfig(vocab=50, width=16, context=64, plan=plan)


def test_a_loop_costs_as_much_as_what_it_repeats_and_weighs_less() -> None:
    loop, repeat = (summarize(small(AttentionConfig(heads=2), loop)) for loop in (True, False))
    assert (loop.flops_per_token, loop.kv_bytes_per_token) == (repeat.flops_per_token, repeat.kv_bytes_per_token)
    assert repeat.parameters - loop.parameters == 2 * 12 * 16**2


def test_a_window_costs_what_it_sees() -> None:
    whole = summarize(small(AttentionConfig(heads=2)))
    near = summarize(small(AttentionConfig(heads=2, mask=SlidingWindowConfig(size=8))))
    assert whole.flops_per_token_forward - near.flops_per_token_forward == 3 * 4 * 16 * (64 - 8)


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("gpt2", 2 * 12 * 2 * 768),
        ("llama2-7b", 2 * 32 * 2 * 4096),
        ("llama3-8b", 2 * 32 * 2 * 8 * 128),
        ("lstm_lm", 0),
    ],
)
def test_bytes_of_state_per_token(name: str, held: int) -> None:
    assert summarize(PresetConfig(name=name)).kv_bytes_per_token == held


def test_tree_folds_equal_layers() -> None:
    rows = tree(build_meta(preset("gpt2").config()))
    layers = [row for row in rows if row.repeats > 1]
    assert [(row.name, row.repeats) for row in layers] == [("0 … 11: Block", 12)]
    # a tied head is shown, and counted once
    assert sum(row.parameters * row.repeats for row in rows if row.depth == 0) == PUBLISHED["gpt2"]
    shapes = {row.path: row.shape for row in rows}
    assert shapes["embedding"] == "weight 50257×768"
    assert shapes["stack.0.mixer.part.query"] == "weight 768×768, bias 768"


def test_summary_counts_what_a_built_model_has() -> None:
    config = replace(small(AttentionConfig(heads=2)), sight="all")
    assert summarize(config).parameters == sum(w.numel() for w in config.build().weights().values())
    assert torch.get_default_device() == torch.device("cpu")


def test_sizes_that_are_derived_from_an_option_follow_it() -> None:
    small = preset("llama3-8b").config(layers=2, width=64, heads=4, vocab=100)
    assert small.build() is not None

"""Adapters added to models, merged, counted; vocabularies that grow and shrink."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from laws.cases import (
    ATTENTION,
    CHANNEL,
    EXAMPLES,
    EXPERTS,
    Given,
    around,
    attention_rnn_pair,
    encoder,
    ids,
    loud,
    pair,
)

from heddle.core import ConfigError, diff, replace
from heddle.models import forward_flops, summarize, training_flops
from heddle.models.networks import ONE_TABLE, TIED, EncoderDecoder, Model, TieConfig
from heddle.models.presets import PresetConfig, build, preset
from heddle.models.surgery import (
    add_adapters,
    exchange_vocab,
    lora,
    merge_adapters,
    resize_vocab,
    with_adapters,
    with_vocab,
)
from heddle.nn.adapters import LoraConfig
from heddle.nn.attention import LatentAttentionConfig
from heddle.nn.ends import (
    AdaptiveEmbeddingConfig,
    AdaptiveHeadConfig,
    FactorizedEmbeddingConfig,
    FactorizedHeadConfig,
    MixtureHeadConfig,
    NarrowEmbeddingConfig,
    SegmentedEmbeddingConfig,
    SoftmaxHeadConfig,
    TransformedHeadConfig,
)
from heddle.nn.outputs import MaskedTokenOutputConfig
from heddle.nn.positions import RotaryPositionConfig
from heddle.nn.recurrent import AttentionRNNConfig, LSTMConfig, MogrifierConfig

EVERY_WAY: dict[str, Any] = {
    "attention": with_adapters(around(ATTENTION, CHANNEL), LoraConfig()),
    "several": with_adapters(
        around(ATTENTION, CHANNEL), LoraConfig(targets=("up",)), LoraConfig(rank=2, targets=("key",))
    ),
    "experts": with_adapters(around(ATTENTION, EXPERTS), LoraConfig(rank=3)),
    "latent": with_adapters(
        replace(around(EXAMPLES[LatentAttentionConfig], CHANNEL), position=RotaryPositionConfig()), LoraConfig()
    ),
    "mogrifier": with_adapters(around(MogrifierConfig(hidden=8, rounds=2)), LoraConfig(targets=("factors.0",))),
    "attention_rnn_pair": with_adapters(
        attention_rnn_pair(AttentionRNNConfig(cell=LSTMConfig(hidden=8))), LoraConfig(targets=("query", "key", "enter"))
    ),
    "pair": with_adapters(pair(), LoraConfig()),
}


def said(model: Any) -> torch.Tensor:
    """Return the logits of two rows, given a source where there must be one."""
    given = Given(model) if isinstance(model, EncoderDecoder) else model
    return given.head.logits(given(ids(2, 7)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", EVERY_WAY)
@torch.no_grad()
def test_merged_and_unmerged_agree(name: str) -> None:
    made = loud(EVERY_WAY[name])
    model: Model = made.model if isinstance(made, Given) else made
    merged = merge_adapters(model)
    assert said(merged).sub(said(model)).abs().max() < 1e-12
    assert merged.config == replace(model.config, adapters=())
    assert merged.weights().keys() == merged.config.build().weights().keys()
    assert all(weight.requires_grad for weight in merged.parameters())
    single = model.float()
    assert said(merge_adapters(single)).sub(said(single)).abs().max() < 1e-5 * said(single).std()


@torch.no_grad()
def test_merging_leaves_the_model_and_its_base_as_they_were() -> None:
    base = loud(around(ATTENTION, CHANNEL))
    before = {name: weight.clone() for name, weight in base.weights().items()}
    model = add_adapters(base, LoraConfig())
    assert torch.equal(said(base), said(model)), "equal before training"
    for weight in model.trainable().values():
        weight.add_(0.3)
    was = said(model)
    merge_adapters(model)
    assert torch.equal(said(model), was)
    assert all(torch.equal(before[name], weight) for name, weight in base.weights().items())
    assert all(weight.requires_grad for weight in base.parameters()), "freezing reaches the adapted model alone"
    shared = {weight.data_ptr() for weight in base.parameters()}
    assert sum(weight.data_ptr() in shared for weight in model.parameters()) == len(shared), "and nothing was copied"


def test_adapting_a_built_model_is_building_an_adapted_one() -> None:
    config = preset("llama").config(layers=2, width=16, heads=4, kv_heads=2, hidden=24, vocab=23)
    late, early = (
        add_adapters(config.build(5), LoraConfig(rank=2), seed=5),
        with_adapters(config, LoraConfig(rank=2)).build(5),
    )
    assert late.config == early.config
    assert all(torch.equal(weight, late.weights()[name]) for name, weight in early.weights().items())


@torch.no_grad()
def test_a_second_adapter_lies_over_what_the_first_has_learned() -> None:
    model = loud(with_adapters(around(ATTENTION, CHANNEL), LoraConfig()))
    again = add_adapters(model, LoraConfig(rank=2, targets=("query",)))
    assert said(again).sub(said(model)).abs().max() < 1e-12
    assert len(again.trainable()) == 4


def test_adapters_are_an_edit_that_a_diff_shows() -> None:
    base = preset("gpt2").config()
    (change,) = diff(base, lora(rank=4)(base))
    assert change.path == "adapters" and change.before == [] and change.after[0]["rank"] == 4


def test_parameters_and_flops_count_what_is_there() -> None:
    plain, model = (summarize(c) for c in (PresetConfig(name="gpt2"), lora(rank=4)(PresetConfig(name="gpt2"))))
    added = 12 * 4 * (4 * 2 * 768 + 2 * 5 * 768)
    products = 12 * 12 * 768**2 + 50257 * 768
    assert model.trainable_parameters == added and plain.trainable_parameters == plain.parameters
    assert model.parameters == plain.parameters + added
    assert model.flops_per_token_forward == plain.flops_per_token_forward + 2 * added
    assert model.flops_per_token == 3 * model.flops_per_token_forward - 2 * products, "no gradients of frozen matrices"
    experts = with_adapters(around(ATTENTION, EXPERTS), LoraConfig(rank=2)).build()
    each = 3 * 2 * (16 + 12) * 2  # a token meets two of the four experts
    more = 2 * (4 * 2 * 32 + each)
    assert forward_flops(experts, 8) == forward_flops(around(ATTENTION, EXPERTS).build(), 8) + 2 * more
    assert training_flops(experts, 8) < 3 * forward_flops(experts, 8)


COMPILED = """
import torch
from heddle.models.surgery import lora
from heddle.models.presets import preset
from torch._dynamo.testing import CompileCounterWithBackend

options = {"layers": 1, "width": 16, "heads": 4, "hidden": 12, "kv_heads": 2, "experts": 3, "vocab": 23}
model = lora(rank=4)(preset("mixtral-8x7b").config(**options)).build()
for weight in model.trainable().values():
    torch.nn.init.normal_(weight, std=0.1)
graphs = CompileCounterWithBackend("eager")
inputs = torch.arange(14).view(2, 7)
got = torch.compile(model, backend=graphs, fullgraph=True)(inputs)
torch.testing.assert_close(got, model(inputs))
got.sum().backward()
assert graphs.frame_count == 1
"""


def test_an_adapted_model_compiles_to_one_graph_that_says_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]


def test_half_precision_stays_near_and_merges_in_single() -> None:
    model = loud(with_adapters(around(ATTENTION, CHANNEL), LoraConfig())).float()
    model.position.reset_buffers()
    want = said(model)
    model.compute = torch.bfloat16
    assert said(model).dtype == torch.bfloat16
    assert said(model).float().sub(want).abs().max() < 0.1 * want.std() * 4
    half = merge_adapters(model.to(torch.bfloat16))
    assert next(half.parameters()).dtype == torch.bfloat16


# --- the vocabulary ---------------------------------------------------------------------------------------------------

MIX = SegmentedEmbeddingConfig()
TABLES: dict[str, Any] = {
    "tied": replace(around(ATTENTION, CHANNEL), ties=TIED),
    "untied": around(ATTENTION, CHANNEL),
    "bias": replace(around(ATTENTION, CHANNEL), head=SoftmaxHeadConfig(bias=True, softcap=9.0)),
    "transformed": replace(around(ATTENTION, CHANNEL), head=TransformedHeadConfig(), embedding=MIX),
    "factorized": replace(
        around(ATTENTION, CHANNEL), head=FactorizedHeadConfig(inner=6), embedding=FactorizedEmbeddingConfig(inner=6),
        ties=(*TIED, TieConfig(share="head.map.weight", of="embedding.map.weight")),
    ),
    "narrow": replace(around(ATTENTION, CHANNEL), embedding=NarrowEmbeddingConfig(inner=6)),
    "pair": pair(ties=ONE_TABLE),
    "adapted": with_adapters(around(ATTENTION, CHANNEL), LoraConfig()),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
@torch.no_grad()
def test_old_tokens_keep_their_scores_in_a_larger_or_smaller_vocabulary(name: str) -> None:
    made = loud(TABLES[name])
    model: Model = made.model if isinstance(made, Given) else made
    larger = resize_vocab(model, 31, seed=4)
    assert said(larger)[..., :23].sub(said(model)).abs().max() < 1e-12 and said(larger).shape[-1] == 31
    assert larger.config == replace(model.config, vocab=31) and larger.vocab == 31
    assert [p.requires_grad for p in larger.parameters()] == [p.requires_grad for p in model.parameters()]
    again = resize_vocab(larger, 23)
    assert again.config == model.config and torch.equal(said(again), said(model))
    assert resize_vocab(model, 23) is model


@torch.no_grad()
def test_new_rows_are_the_mean_of_the_old_ones_and_a_little_noise() -> None:
    model = loud(replace(around(ATTENTION, CHANNEL), head=SoftmaxHeadConfig(bias=True)))
    larger = resize_vocab(model, 40, seed=1)
    old, new = model.head.weight, larger.head.weight[23:]
    assert (new - old.mean(0)).abs().max() < 0.05 * old.std(0).max() and new.std(0).min() > 0
    scores = said(larger)
    average = scores[..., :23].mean(-1, keepdim=True)
    assert (scores[..., 23:] - average).abs().max() < 0.2 * scores[..., :23].std(), "a new token scores the average"
    assert torch.equal(resize_vocab(model, 40, seed=1).head.weight, larger.head.weight)
    assert not torch.equal(resize_vocab(model, 40, seed=2).head.weight, larger.head.weight)


@pytest.mark.parametrize("name", TABLES)
@torch.no_grad()
def test_an_exchanged_vocabulary_moves_rows_and_averages_those_of_pieces(name: str) -> None:
    made = loud(TABLES[name])
    model: Model = made.model if isinstance(made, Given) else made
    order = [*range(22, 11, -1), *range(12)]
    pieces = [*((id,) for id in order), (3, 4), (3, 3, 5), ()]
    moved = exchange_vocab(model, pieces, seed=4)
    assert moved.vocab == 26 and moved.config == replace(model.config, vocab=26)
    before, tables = model.weights(), 0
    for key, weight in moved.named_parameters():
        old = before[key]
        if old.shape == weight.shape:
            assert weight.data_ptr() == old.data_ptr(), f"{key} is shared"
            continue
        tables += 1
        assert torch.equal(weight[:23], old[order]), f"{key}: rows move bit for bit"
        torch.testing.assert_close(weight[23], (old[3] + old[4]) / 2)
        torch.testing.assert_close(weight[24], (2 * old[3] + old[5]) / 3)
        assert (weight[25] - old.mean(0)).abs().max() < 0.1 * old.std(0).max() + 1e-9
    whole = {key for key, _ in model.named_parameters(remove_duplicate=False)}
    assert tables and {key for key, _ in moved.named_parameters(remove_duplicate=False)} == whole, "ties are kept"
    assert len(moved.weights()) == len(before)
    same = exchange_vocab(model, [(id,) for id in range(22, -1, -1)])
    assert torch.equal(exchange_vocab(same, [(id,) for id in range(22, -1, -1)]).weights()[key], before[key])


@torch.no_grad()
def test_a_mixture_of_softmaxes_keeps_its_rows() -> None:
    model = loud(replace(around(ATTENTION, CHANNEL), head=MixtureHeadConfig(components=3)))
    larger = resize_vocab(model, 31)
    assert torch.equal(larger.head.weight[:23], model.head.weight) and said(larger).shape[-1] == 31


def test_an_encoder_grows_with_its_masked_head() -> None:
    config = encoder(outputs=(MaskedTokenOutputConfig(),))
    assert resize_vocab(config.build(), 30).scores("masked_token", ids(2, 5)).shape[-1] == 30


def test_a_vocabulary_without_a_row_for_each_token_is_refused() -> None:
    clusters = EXAMPLES[AdaptiveEmbeddingConfig].clusters  # type: ignore[attr-defined]
    for config in (
        replace(around(ATTENTION, CHANNEL), embedding=AdaptiveEmbeddingConfig(clusters=clusters)),
        replace(around(ATTENTION, CHANNEL), head=AdaptiveHeadConfig(clusters=clusters)),
    ):
        with pytest.raises(ConfigError, match=r"vocab: want 23, because .*clusters.* does not have one row"):
            with_vocab(config, 30)
    with pytest.raises(ConfigError, match="one that reads images"):
        with_vocab(preset("vit-base-16").config(layers=1, width=16, heads=2), 30)
    with pytest.raises(ConfigError, match="vocab: want at least 1"):
        resize_vocab(build("gpt2", layers=1, width=8, heads=2, vocab=9), 0)


def test_weights_begin_by_the_depth_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    depths: list[int] = []
    monkeypatch.setattr(
        "heddle.models.surgery.adapters.initialize", lambda model, init, depth, *_, **__: depths.append(depth)
    )
    add_adapters(build("gpt2", layers=3, width=16, heads=2, vocab=50), LoraConfig(rank=2))
    config = pair()
    add_adapters(config.build(), LoraConfig(rank=2))
    assert depths == [3, config.encoder.plan.depth() + config.decoder.plan.depth()]

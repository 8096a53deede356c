"""Language models: ties, memory given late, weights by name, lengths past the context, and refusals in one line."""

import pytest
import torch
from laws.cases import SMALL, preset_functions

from heddle.core import ConfigError, DamageError, UsageError, override, replace
from heddle.models import build_meta
from heddle.models.networks import LanguageModelConfig, Model, TieConfig, pre_norm
from heddle.models.presets import PRESETS, PresetConfig, build, preset, presets
from heddle.nn.attention import AttentionConfig
from heddle.nn.base import Context
from heddle.nn.layers import LayerNormConfig
from heddle.nn.positions import RotaryPositionConfig, SinusoidalPositionConfig
from heddle.nn.stack import ChainConfig, RepeatConfig

FAMILIES = sorted(name for name in preset_functions(LanguageModelConfig) if name in PRESETS)


def small(name: str, seed: int = 0) -> Model:
    return build(name, seed, vocab=23, context=12, **SMALL[name])


def ids(length: int = 9) -> torch.Tensor:
    return torch.randint(23, (2, length), generator=torch.Generator().manual_seed(0))


# --- ties and weights -------------------------------------------------------------------------------------------------


def test_tied_weights_are_one_tensor_with_one_name() -> None:
    model = small("gpt2")
    assert model.head.weight is model.embedding.weight
    assert "head.weight" not in model.weights()
    assert "head.weight" in small("llama").weights()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_on_the_meta_device_gets_memory_and_weights(name: str) -> None:
    model = small(name)
    bare = build_meta(model.config)
    bare.materialize("cpu")
    bare.load_weights(model.weights())
    assert torch.equal(bare(ids()), model(ids()))
    assert torch.equal(bare.logits(ids()), model.logits(ids()))
    assert (bare.head.weight is bare.embedding.weight) == (model.head.weight is model.embedding.weight)
    assert not any(t.is_meta for t in (*bare.parameters(), *bare.buffers()))


def test_materialised_sinusoids_are_filled_again() -> None:
    config = replace(preset("gpt2").config(**SMALL["gpt2"], vocab=23, context=12), position=SinusoidalPositionConfig())
    model, bare = config.build(), build_meta(config)
    bare.materialize("cpu")
    bare.load_weights(model.weights())
    assert torch.equal(bare(ids()), model(ids()))


def test_weights_are_a_copy_in_name_only() -> None:
    model = small("gpt2")
    held = model.weights()
    assert not any(w.requires_grad for w in held.values())
    assert held["embedding.weight"].data_ptr() == model.embedding.weight.data_ptr()


def test_loading_is_all_or_nothing_and_names_the_fault() -> None:
    model = small("gpt2")
    before = {name: w.clone() for name, w in model.weights().items()}
    ones = {name: torch.ones_like(w) for name, w in before.items()}
    lacking = {name: w for name, w in ones.items() if name != "norm.bias"}
    with pytest.raises(DamageError, match=r"missing \['norm.bias'\], unexpected \[\]"):
        model.load_weights(lacking)
    with pytest.raises(DamageError, match=r"unexpected \['stray'\]"):
        model.load_weights(ones | {"stray": torch.ones(1)})
    with pytest.raises(DamageError, match=r"norm.weight: want shape \(16,\), got \(3,\)"):
        model.load_weights(ones | {"norm.weight": torch.ones(3)})
    assert all(torch.equal(before[name], w) for name, w in model.weights().items())
    model.load_weights(ones)
    assert all((w == 1).all() for w in model.weights().values())


@pytest.mark.parametrize(
    ("tie", "words"),
    [
        (TieConfig(share="head.wieght", of="embedding.weight"), "wieght"),
        (TieConfig(share="head.weight", of="embeding.weight"), "embeding"),
        (TieConfig(share="head.weight", of="norm.weight"), r"\(16,\)"),
    ],
)
def test_a_tie_that_cannot_be_is_refused(tie: TieConfig, words: str) -> None:
    config = replace(preset("gpt2").config(**SMALL["gpt2"], vocab=23), ties=(tie,))
    with pytest.raises(ConfigError, match=f"ties: .*{words}"):
        config.build()


def test_ties_may_stand_the_other_way_round() -> None:
    config = preset("gpt2").config(**SMALL["gpt2"], vocab=23)
    turned = replace(config, ties=(TieConfig(share="embedding.weight", of="head.weight"),))
    model = turned.build()
    assert model.head.weight is model.embedding.weight
    assert model.weights().keys() == config.build().weights().keys()


# --- lengths ----------------------------------------------------------------------------------------------------------


def test_learned_positions_refuse_a_row_past_the_context() -> None:
    with pytest.raises(UsageError, match="length 13 exceeds the model's context of 12"):
        small("gpt2")(ids(13))
    with pytest.raises(UsageError, match="length 20"):
        small("gpt2").new_state(1, 20)


@pytest.mark.parametrize("name", ["first", "llama", "lstm_lm", "gru_lm"])
def test_other_models_run_past_their_context(name: str) -> None:
    model = small(name)
    whole = model(ids(40))
    state = model.new_state(2, 40)
    with torch.no_grad():
        for i in range(40):
            out, state = model.step(ids(40)[:, i : i + 1], state)
    torch.testing.assert_close(out[:, 0], whole[:, -1], atol=1e-5, rtol=1e-5)


def test_tables_grown_by_a_long_row_change_nothing_for_a_short_one() -> None:
    model = small("first")
    before = model(ids())
    model(ids(40))
    assert torch.equal(model(ids()), before)


# --- dtype ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_half_precision_compute_stays_near_and_keeps_weights_single(name: str) -> None:
    model = small(name)
    exact = model.logits(ids())
    model.compute = torch.bfloat16
    logits = model.logits(ids())
    assert logits.dtype == torch.bfloat16
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert (logits.float() - exact).abs().max() < 0.05 * max(exact.abs().max().item(), 0.1)
    model.head.nll(model(ids()), ids()).sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


def test_a_recurrent_model_is_not_worth_compiling() -> None:
    unrolled = {"rnn_lm", "gru_lm", "lstm_lm", "awd_lstm", "mogrifier_lm"}  # the QRNN's scan is no loop
    assert {name for name in FAMILIES if not small(name).should_compile()} == unrolled | {"transformer_xl"}


# --- names ------------------------------------------------------------------------------------------------------------


def test_presets_have_names_and_a_line_each() -> None:
    assert set(presets()) == set(PRESETS)
    assert all(len(named.description) > 20 for named in PRESETS.values())


def test_a_wrong_preset_or_option_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'gpt2-xl'"):
        build("gpt2xl")
    with pytest.raises(ConfigError, match="did you mean 'layers'"):
        build("gpt2", layer=2)
    with pytest.raises(ConfigError, match="dropout"):
        PresetConfig(name="llama", dropout=0.1).build()
    with pytest.raises(ConfigError, match="did you mean 'first'"):
        PresetConfig(name="frist")


def test_a_preset_config_builds_what_the_name_builds() -> None:
    options = SMALL["llama"] | {"vocab": 23, "context": 12}
    one, other = PresetConfig(name="llama", **options).build(3), build("llama", 3, **options)
    assert all(torch.equal(w, other.weights()[name]) for name, w in one.weights().items())


def test_a_preset_can_be_overridden_deep_inside() -> None:
    changed = override(PresetConfig(name="gpt2"), "plan.body.branches.1.part.activation", "relu").expand()
    assert isinstance(changed, LanguageModelConfig)
    assert changed.plan.body.branches[1].part.activation == "relu"


@pytest.mark.parametrize("field", ["vocab", "width", "context"])
def test_a_model_of_nothing_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field}: want at least 1, got 0"):
        replace(preset("gpt2").config(), **{field: 0})


def test_head_widths_must_agree_where_positions_are_shared() -> None:
    bodies = tuple(pre_norm(AttentionConfig(heads=heads), norm=LayerNormConfig()) for heads in (2, 4))
    config = LanguageModelConfig(
        vocab=9, width=16, context=8, plan=ChainConfig(bodies=bodies), position=RotaryPositionConfig()
    )
    with pytest.raises(ConfigError, match="one head width"):
        config.build()


def test_rotary_needs_attention() -> None:
    config = replace(preset("lstm_lm").config(width=16), position=RotaryPositionConfig())
    with pytest.raises(ConfigError, match="position: want none, or attention"):
        config.build()


def test_layers_leave_notes_in_the_context_they_hand_on() -> None:
    model = small("gpt2")
    _, ctx = model.run(ids(), Context().note("kept", torch.ones(1)))
    assert set(ctx.notes) == {"kept"}
    assert isinstance(model.config.plan, RepeatConfig)

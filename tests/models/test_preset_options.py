"""Every preset can be made small by its options alone: derived sizes are not kept; edits are."""

import math

import numpy as np
import pytest
import torch

from heddle.core import Config, ConfigError, decode, encode, override, replace, settings
from heddle.models.networks import LanguageModel, LanguageModelConfig, ModelConfig
from heddle.models.presets import PRESETS, PresetConfig, build, preset
from heddle.nn.positions import AlibiPositionConfig, RotaryPositionConfig

SIZES = {"layers": 2, "width": 48, "heads": 6, "vocab": 200}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_resized_by_layers_width_heads_and_vocab(name: str) -> None:
    known = PRESETS[name].option_names
    model = build(name, **{option: size for option, size in SIZES.items() if option in known})
    assert sum(p.numel() for p in model.parameters()) < 6_000_000


WIDE = {"layers": 1, "width": 512, "heads": 8, "vocab": 512, "context": 32, "experts": 2}
FAMILIES = {named.make: name for name, named in PRESETS.items() if isinstance(named.config(), LanguageModelConfig)}


@pytest.mark.parametrize("name", FAMILIES.values())
@torch.no_grad()
def test_a_wide_language_model_begins_by_knowing_nothing(name: str) -> None:
    model = build(
        name, **{option: size for option, size in WIDE.items() if option in PRESETS[name].option_names}
    ).eval()
    assert isinstance(model, LanguageModel)
    rows = torch.randint(512, (4, 33), generator=torch.Generator().manual_seed(0))
    loss = model.head.nll(model(rows[:, :-1]), rows[:, 1:]).mean().item()
    most = 1.2 if name == "gpt" else 1.05  # whose tied table, as published, follows the last norm at full size
    assert loss < most * math.log(512)


# --- a preset on the command line -------------------------------------------------------------------------------------


@settings
class Holder(Config):
    """Something that has a model, as a run has."""

    model: ModelConfig = PresetConfig()


def turned(*changes: tuple[str, object]) -> PresetConfig:
    holder = Holder()
    for path, value in changes:
        holder = override(holder, f"model.{path}", value)
    assert isinstance(holder.model, PresetConfig), "it is written out"
    return holder.model


def test_an_edit_stays_beside_the_name_whatever_is_turned_before_or_after_it() -> None:
    changes = (("position", "alibi"), ("layers", 1), ("vocab", 300))
    one, other = turned(*changes), turned(*reversed(changes))
    assert one == other == decode(ModelConfig, encode(one))
    full = one.expand()
    assert isinstance(full, LanguageModelConfig) and isinstance(full.position, AlibiPositionConfig)
    assert full == replace(PresetConfig(layers=1, vocab=300).expand(), position=AlibiPositionConfig())


def test_what_is_said_last_counts_and_undoes_what_it_replaces() -> None:
    again = turned(("position.base", 500.0), ("position", "rotary"), ("position.base", 700.0)).expand()
    assert isinstance(again, LanguageModelConfig) and again.position == RotaryPositionConfig(base=700.0)
    other = turned(("position", "rotary"), ("position.base", 500.0), ("position", "alibi")).expand()
    assert isinstance(other, LanguageModelConfig) and other.position == AlibiPositionConfig()
    assert turned(("edits.position", "alibi")) == turned(("position", "alibi"))


def test_a_preset_s_own_options_are_set_by_their_names() -> None:
    assert turned(("name", "window_lm"), ("n", 4)).expand() == preset("window_lm").config(n=4)
    assert turned(("name", "window_lm"), ("dials.n", 4)) == turned(("name", "window_lm"), ("n", 4))
    small = (("name", "mixtral-8x7b"), ("layers", 1), ("experts", 4))
    assert turned(*small).expand() == preset("mixtral-8x7b").config(layers=1, experts=4)


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("experts", 4, "model.experts: want one of layers, width, heads, vocab, context, dropout, plan, "),
        ("position.bases", 3, "model.position.bases: want one of base, .*; did you mean 'base'"),
        ("dials", {"layers": 3}, "model.dials.layers: want the field layers itself"),
        ("position", "alibby", "model.position.kind: want one of .*; did you mean 'alibi'"),
    ],
)
def test_a_change_that_fits_nothing_is_refused_at_once(path: str, value: object, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        turned((path, value))


def test_numbers_of_numpy_are_numbers() -> None:
    theirs = preset("gpt2").config(layers=np.int64(1), width=np.int32(16), heads=2, dropout=np.float32(0.5))
    assert theirs == preset("gpt2").config(layers=1, width=16, heads=2, dropout=0.5)


def test_edits_of_a_file_are_checked_where_they_are() -> None:
    with pytest.raises(ConfigError, match=r"^model\.position\.kind: want one of"):
        decode(Holder, {"model": {"kind": "preset", "edits": {"position": "nowhere"}}})
    deep: object = 1
    for _ in range(500):
        deep = [deep]
    with pytest.raises(ConfigError, match="levels of nesting"):
        decode(Holder, {"model": {"kind": "preset", "edits": {"position": deep}}})

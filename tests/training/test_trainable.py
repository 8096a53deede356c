"""Fine-tuning: adapters, frozen and unfrozen weights, new tokens; started from another run, and resumed exactly."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from reliability.harness import differences, tiny, trainer_for, write_text

from heddle.checkpoints import RunSource
from heddle.core import ConfigError, encode, override, replace
from heddle.core.system import parse_overrides
from heddle.models.networks import LanguageModelConfig
from heddle.models.presets import build, preset
from heddle.models.surgery import merge_adapters
from heddle.nn.adapters import LoraConfig
from heddle.recipes import RECIPES
from heddle.training import RunConfig, apply_overrides
from heddle.training.optimizers import MuonConfig, PlainAverageConfig, SGDConfig
from heddle.training.trainable import choose_trainable, initial_config, initial_model


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text.txt")


def short(text: Path, **changes: Any) -> RunConfig:
    base = {"training__steps": 6, "every__validate": 3, "every__save": 3, "hardware__dtype": "float32"}
    return tiny(text, **(base | changes))


@pytest.fixture
def parent(text: Path, tmp_path: Path) -> Path:
    trainer_for(short(text), tmp_path / "parent").fit()
    return tmp_path / "parent"


def child_of(parent: Path, text: Path, **changes: Any) -> RunConfig:
    return short(
        text, **({"init": str(parent), "adapters": "lora", "training__optimizer__learning_rate": 0.05} | changes)
    )


def test_only_adapters_learn_beside_the_weights_of_the_parent(parent: Path, text: Path, tmp_path: Path) -> None:
    base = RunSource(parent).model()
    trainer = trainer_for(child_of(parent, text, adapters__rank=2), tmp_path / "child")
    inputs = torch.arange(30)[None]
    assert torch.equal(trainer.model.eval().logits(inputs), base.logits(inputs))  # type: ignore[operator]
    trainer.fit()
    model = RunSource(tmp_path / "child").model()
    weights, learned = model.weights(), trainer.model.trainable().keys()
    assert all(torch.equal(weights[name], weight) for name, weight in base.weights().items()), "the base stays"
    assert all(weights[name].any() for name in learned if name.endswith(".up")), "adapters move"
    state = trainer.take_step.optimizers.tensors()
    assert {name.rpartition("/")[0] for name in state} == learned, "no optimizer state for what does not learn"
    assert model.logits(inputs).sub(merge_adapters(model).logits(inputs)).abs().max() < 1e-5  # type: ignore[operator]


@pytest.mark.parametrize(
    "optimizer",
    [None, MuonConfig(learning_rate=0.01), SGDConfig(learning_rate=0.1, momentum=0.9)],
    ids=["adamw", "muon", "sgd"],
)
def test_a_cut_run_under_adapters_ends_in_the_same_bits(
    parent: Path, text: Path, tmp_path: Path, optimizer: Any
) -> None:
    config = child_of(parent, text, adapters__dropout=0.1)
    if optimizer is not None:
        config = replace(config, training=replace(config.training, optimizer=optimizer))
    trainer_for(config, tmp_path / "whole" / "run").fit()
    cut = trainer_for(override(config, "training.steps", 3), tmp_path / "cut" / "run")
    cut.fit()
    resolved = replace(config, model=cut.model.config)  # as the run's own config.json has it
    again = trainer_for(resolved, tmp_path / "cut" / "run")
    assert again.step == 3
    again.fit()
    assert differences(tmp_path / "cut" / "run", tmp_path / "whole" / "run") == []


def test_a_fresh_model_can_learn_by_adapters_and_resume_by_its_first_config(text: Path, tmp_path: Path) -> None:
    config = short(text, adapters={"kind": "lora", "rank": 2, "targets": ["query", "value"]})
    trainer_for(override(config, "training.steps", 3), tmp_path / "run").fit()
    trainer = trainer_for(config, tmp_path / "run")
    assert trainer.step == 3 and len(trainer.model.trainable()) == 4


def test_the_average_of_frozen_weights_is_the_weights_themselves(parent: Path, text: Path, tmp_path: Path) -> None:
    config = child_of(parent, text, training__average=encode(PlainAverageConfig()))
    trainer = trainer_for(config, tmp_path / "child")
    average = trainer.take_step.average
    assert average is not None
    own, learned = trainer.model.weights(), trainer.model.trainable()
    assert all((average.weights[name].data_ptr() == own[name].data_ptr()) != (name in learned) for name in own)
    trainer.fit()
    with average.in_place(trainer.model):
        assert all(torch.equal(average.weights[name], weight) for name, weight in trainer.model.weights().items())


def test_a_run_without_adapters_goes_on_with_those_of_its_parent_and_new_ones_lie_over_them(
    parent: Path, text: Path, tmp_path: Path
) -> None:
    trainer_for(child_of(parent, text), tmp_path / "child").fit()
    before, inputs = RunSource(tmp_path / "child").model(), torch.arange(30)[None]
    going = trainer_for(child_of(tmp_path / "child", text, adapters=None), tmp_path / "going").model.eval()
    assert going.config.expand().adapters == (LoraConfig(),)
    assert torch.equal(going.logits(inputs), before.logits(inputs))  # type: ignore[operator]
    anew = trainer_for(child_of(tmp_path / "child", text, adapters={"rank": 2}), tmp_path / "anew").model.eval()
    assert anew.config.expand().adapters == (LoraConfig(rank=2),)
    assert anew.logits(inputs).sub(before.logits(inputs)).abs().max() < 1e-5  # type: ignore[operator]


# --- frozen and unfrozen ----------------------------------------------------------------------------------------------


def test_frozen_patterns_keep_weights_as_they_are(parent: Path, text: Path, tmp_path: Path) -> None:
    patterns = ["embedding.*", "stack.0.mixer.*"]
    config = child_of(parent, text, adapters=None, frozen=patterns)
    trainer_for(config, tmp_path / "child").fit()
    base, made = RunSource(parent).model().weights(), RunSource(tmp_path / "child").model().weights()
    still = {name for name in base if torch.equal(base[name], made[name])}
    assert still == {name for name in base if name.startswith(("embedding.", "stack.0.mixer."))}


def test_thawed_patterns_learn_beside_adapters() -> None:
    model = build("gpt2", layers=1, width=8, heads=2, vocab=9)
    choose_trainable(model, ["*"], ["norm.*"])
    assert model.trainable().keys() == {"norm.weight", "norm.bias"}
    choose_trainable(model, [], ["head.weight"])
    assert "embedding.weight" in model.trainable(), "a tied matrix has two names"


@pytest.mark.parametrize(
    ("frozen", "unfrozen", "match"),
    [
        (["embeding.weight"], [], r"frozen\.0: want a pattern .*did you mean 'embedding\.weight'\?"),
        ([], ["norm.*", "stack.7.*"], r"unfrozen\.1: want a pattern"),
        (["*"], [], "frozen: all weights are frozen"),
    ],
)
def test_a_pattern_without_weights_and_a_model_without_learning_are_refused(
    frozen: list[str], unfrozen: list[str], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        choose_trainable(build("gpt2", layers=1, width=8, heads=2, vocab=9), frozen, unfrozen)


def test_what_learns_cannot_change_while_a_run_goes_on(text: Path, tmp_path: Path) -> None:
    trainer_for(short(text, frozen=["embedding.*"]), tmp_path / "run").fit()
    with pytest.raises(ConfigError, match=r"frozen: cannot change from \['embedding\.\*'\] in a resumed run"):
        trainer_for(short(text), tmp_path / "run")


# --- new tokens -------------------------------------------------------------------------------------------------------


def test_a_run_makes_room_for_tokens_that_its_parent_lacks(text: Path) -> None:
    base = preset("gpt2").config(layers=1, width=8, heads=2, vocab=20).build()
    config = short(text, adapters="lora", unfrozen=["embedding.weight"])
    config = replace(config, model=initial_config(base.config, config, vocab=23))
    model = initial_model(base, config)
    assert isinstance(model.config, LanguageModelConfig) and model.config.vocab == 23
    inputs = torch.arange(12)[None]
    assert torch.equal(model.eval().logits(inputs)[..., :20], base.eval().logits(inputs))  # type: ignore[operator]
    assert initial_config(base.config, short(text), vocab=19) == base.config, "room to spare is left alone"


# --- the command line -------------------------------------------------------------------------------------------------


def test_adapters_read_well_as_words() -> None:
    config = RECIPES["first"]()
    assert apply_overrides(config, parse_overrides(["adapters=lora"])).adapters == LoraConfig()
    assert apply_overrides(config, parse_overrides(["adapters.rank=4"])).adapters == LoraConfig(rank=4)
    words = ["adapters=lora", "adapters.targets=[query, value]", "frozen=['*.norm.*']"]
    assert apply_overrides(config, parse_overrides(words)).adapters == LoraConfig(targets=("query", "value"))
    with pytest.raises(ConfigError, match=r"adapters\.rnak: want one of rank"):
        apply_overrides(config, parse_overrides(["adapters.rnak=4"]))
    with pytest.raises(ConfigError, match=r"adapters\.kind: want one of lora, got 'loar'; did you mean 'lora'\?"):
        apply_overrides(config, parse_overrides(["adapters=loar"]))


def test_the_run_folder_says_what_was_adapted(parent: Path, text: Path, tmp_path: Path) -> None:
    trainer_for(child_of(parent, text, adapters__rank=2), tmp_path / "child").fit()
    config = json.loads((tmp_path / "child" / "config.json").read_text())
    assert config["adapters"]["rank"] == 2 == config["model"]["adapters"][0]["rank"]

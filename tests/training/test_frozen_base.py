"""Runs with adapters hold what learns alone; their base is found again, or one line tells where it was looked for."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from reliability.harness import differences, tiny, trainer_for, write_config, write_text

import heddle
from heddle.checkpoints import RunSource, find_source, to_hugging_face
from heddle.checkpoints.store import CHECKPOINTS, open_run
from heddle.cli.main import main
from heddle.core import ConfigError, DamageError, UsageError, encode, override, replace
from heddle.training import RunConfig
from heddle.training.optimizers import PlainAverageConfig

INPUTS = torch.arange(30)[None]


def short(text: Path, **changes: Any) -> RunConfig:
    base = {"training__steps": 4, "every__validate": 2, "every__save": 2, "hardware__dtype": "float32"}
    return tiny(text, **(base | changes))


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_text(tmp_path / "text.txt")


@pytest.fixture
def parent(text: Path, tmp_path: Path) -> Path:
    trainer_for(short(text), tmp_path / "runs" / "parent").fit()
    return tmp_path / "runs" / "parent"


@pytest.fixture
def child(parent: Path, text: Path, tmp_path: Path) -> Path:
    trainer_for(child_of(parent, text), tmp_path / "runs" / "child").fit()
    return tmp_path / "runs" / "child"


def child_of(parent: Path, text: Path, **changes: Any) -> RunConfig:
    rate = {"training__optimizer__learning_rate": 0.05}
    return short(text, **({"init": str(parent), "adapters": {"kind": "lora", "rank": 2}} | rate | changes))


def logits(folder: Path) -> torch.Tensor:
    return RunSource(folder).model().logits(INPUTS)  # type: ignore[operator]


def alter(run: Path) -> None:
    """Train a run by other steps, under the same names of checkpoints."""
    config = replace(tiny(run.parent.parent / "text.txt"), seed=7)
    shutil.rmtree(run)
    trainer_for(override(override(config, "training.steps", 4), "every.save", 2), run).fit()


def as_hugging_face(parent: Path, to: Path) -> Path:
    source = find_source(parent)
    to_hugging_face(source, source.model(), to)
    return to


# --- what checkpoints hold --------------------------------------------------------------------------------------------


def test_checkpoints_hold_what_learns_and_the_average_of_it(child: Path, parent: Path) -> None:
    saved, model = open_run(child), RunSource(child).model()
    learned = {name for name in model.weights() if ".adapter." in name}
    assert learned and saved.names("model") == saved.names("average") == learned
    assert {name.rpartition("/")[0] for name in saved.names("optimizer")} == learned
    sizes = [(open_run(run).path / "model.safetensors").stat().st_size for run in (child, parent)]
    assert sizes[0] < sizes[1] / 4
    base = RunSource(parent).model().weights()
    assert all(torch.equal(model.weights()[name], weight) for name, weight in base.items())
    assert saved.state["base"]["name"] == str(parent) and Path(saved.state["base"]["path"]) == open_run(parent).path
    assert RunSource(child).describe() == f"a run of heddle at step 4, over {parent}"


def test_other_weights_that_learn_are_stored_and_so_are_those_that_are_not_of_the_base(
    parent: Path, text: Path, tmp_path: Path
) -> None:
    trainer_for(child_of(parent, text, unfrozen=["norm.*"]), tmp_path / "child").fit()
    held = open_run(tmp_path / "child").names("model")
    assert {name for name in held if ".adapter." not in name} == {"norm.weight"}
    over = child_of(tmp_path / "child", text, adapters={"kind": "lora", "rank": 3})
    trainer_for(over, tmp_path / "over").fit()  # the adapters of the first are merged
    merged = {name for name in open_run(tmp_path / "over").names("model") if ".adapter." not in name}
    assert merged == {"norm.weight"} | {
        name.partition(".adapter.")[0] + ".weight" for name in held if ".adapter" in name
    }
    assert logits(tmp_path / "over").isfinite().all()


def test_a_run_over_a_run_with_adapters_has_the_same_base(child: Path, parent: Path, text: Path) -> None:
    trainer_for(child_of(child, text, adapters=None, training__average=None), Path("runs/going")).fit()
    wanted = logits(Path("runs/going"))
    shutil.rmtree(child)
    assert torch.equal(logits(Path("runs/going")), wanted), "the run in between is not needed"
    assert Path(open_run(Path("runs/going")).state["base"]["path"]).parent.parent == parent


@pytest.mark.parametrize(
    ("changes", "all_held"),
    [
        ({"keep__weights": "all"}, True),
        ({"adapters": None, "frozen": ["embedding.*"]}, True),
        ({"adapters": None, "frozen": ["embedding.*"], "keep__weights": "trained"}, False),
        ({"adapters": None, "keep__weights": "trained"}, True),
    ],
)
def test_which_weights_checkpoints_hold_can_be_chosen(
    changes: dict[str, Any], all_held: bool, parent: Path, text: Path, tmp_path: Path
) -> None:
    trainer_for(child_of(parent, text, **changes), tmp_path / "child").fit()
    checkpoint = open_run(tmp_path / "child")
    assert (checkpoint.names("model") == RunSource(tmp_path / "child").model().weights().keys()) == all_held
    assert ("base" in checkpoint.state) != all_held
    if all_held:
        shutil.rmtree(parent)
        assert logits(tmp_path / "child").isfinite().all()


def test_a_fresh_model_has_no_base(text: Path, tmp_path: Path) -> None:
    trainer_for(short(text, adapters="lora"), tmp_path / "run").fit()
    assert "embedding.weight" in open_run(tmp_path / "run").names("model")
    with pytest.raises(ConfigError, match=r"keep.weights: want auto or all where no init names another model"):
        short(text, keep__weights="trained")


# --- exact resume -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("average", [None, encode(PlainAverageConfig())], ids=["none", "plain"])
def test_a_cut_run_ends_in_the_same_bits_and_in_those_of_a_run_that_holds_all(
    average: Any, parent: Path, text: Path, tmp_path: Path
) -> None:
    config = child_of(parent, text, adapters__dropout=0.1, unfrozen=["norm.*"], training__average=average)
    trainer_for(config, tmp_path / "a" / "run").fit()
    cut = trainer_for(override(config, "training.steps", 2), tmp_path / "b" / "run")
    cut.fit()
    again = trainer_for(replace(config, model=cut.model.config), tmp_path / "b" / "run")
    assert again.step == 2
    again.fit()
    assert differences(tmp_path / "b" / "run", tmp_path / "a" / "run") == []
    trainer_for(override(config, "keep.weights", "all"), tmp_path / "c" / "run").fit()
    assert torch.equal(logits(tmp_path / "a" / "run"), logits(tmp_path / "c" / "run"))


def test_a_run_that_holds_all_goes_on_so_without_its_base(child: Path, parent: Path, text: Path) -> None:
    config = child_of(parent, text, keep__weights="all")
    trainer_for(config, Path("runs/old")).fit()
    shutil.rmtree(parent)
    going_config = override(replace(config, model=RunSource(Path("runs/old")).config()), "training.steps", 5)
    going = trainer_for(going_config, Path("runs/old"))
    assert going.step == 4 and going.frozen is None
    going.fit()
    with pytest.raises(ConfigError, match=r"keep.weights: want all, the value of the resumed run; .*, got 'auto'"):
        trainer_for(override(going_config, "keep.weights", "auto"), Path("runs/old"))


# --- where the base is ------------------------------------------------------------------------------------------------


def test_the_base_is_found_where_it_was_or_beside_the_run_or_by_its_name(
    parent: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer_for(child_of(Path("runs/parent"), text), tmp_path / "runs" / "child").fit()
    wanted = logits(tmp_path / "runs" / "child")
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    assert torch.equal(logits(tmp_path / "runs" / "child"), wanted), "from another folder"
    (tmp_path / "runs" / "child").rename(tmp_path / "away" / "child")
    assert torch.equal(logits(tmp_path / "away" / "child"), wanted), "the run has moved"
    (tmp_path / "away" / "child").rename(tmp_path / "runs" / "child")
    (tmp_path / "runs").rename(tmp_path / "moved")
    assert torch.equal(logits(tmp_path / "moved" / "child"), wanted), "both have moved"
    (tmp_path / "moved" / "child").rename(tmp_path / "child")
    (tmp_path / "moved").rename(tmp_path / "away" / "runs")
    assert torch.equal(logits(tmp_path / "child"), wanted), "by the name that was given, from here"


def test_a_base_that_is_gone_is_told_by_name_and_found_by_its_new_place(
    child: Path, parent: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted, place = logits(child), open_run(parent).path
    parent.rename("elsewhere")
    said = (
        f"{child}: its checkpoints hold only the weights that learn; the others are those of {parent}, which is not "
        f"at {place}; put it back, or name its place: --base PATH"
    )
    with pytest.raises(UsageError) as refused:
        RunSource(child).model()
    assert str(refused.value) == said
    assert main(["generate", "the", "-m", "runs/child", "--max-tokens", "2"]) == 2
    assert capsys.readouterr().err == f"heddle: {said.replace(str(child), 'runs/child', 1)}\n"
    assert main(["generate", "the", "-m", "runs/child", "--max-tokens", "2", "--base", "elsewhere"]) == 0
    assert main(["evaluate", "-m", "runs/child", "--data", "text.txt", "--base", "nowhere"]) == 2
    assert "no run is called 'nowhere'" in capsys.readouterr().err
    assert torch.equal(heddle.load("runs/child", base="elsewhere").logits(INPUTS), wanted)
    assert main(["show", "runs/child"]) == 0, "which needs no weights"
    assert main(["convert", "runs/child", "whole", "--to", "heddle", "--base", "elsewhere"]) == 0
    assert main(["convert", "runs/child", "merged", "--base", "elsewhere"]) == 0
    shutil.rmtree("elsewhere")
    assert torch.equal(logits(Path("whole")), wanted), "a copy that holds all"
    assert (heddle.load("merged").logits(INPUTS) - wanted).abs().max() < 1e-5


def test_a_run_resumes_with_its_base_at_a_new_place_and_remembers_it(
    child: Path, parent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parent.rename("elsewhere")
    assert main(["train", "runs/child", "training.steps=5"]) == 2
    assert "name its place: --base PATH" in capsys.readouterr().err
    assert main(["train", "runs/child", "training.steps=5", "--base", "elsewhere"]) == 0
    assert logits(child).isfinite().all(), "the new checkpoint knows the place"
    Path("elsewhere").rename("third")
    assert main(["train", "runs/child", "training.steps=6", "init=third"]) == 0
    assert logits(child).isfinite().all() and RunSource(child).checkpoint.step == 6


def test_a_base_that_was_altered_is_refused(child: Path, parent: Path) -> None:
    alter(parent)
    with pytest.raises(DamageError, match=f"of {parent}, but {parent}.* has other weights than those that the run was"):
        RunSource(child).model()


def test_a_folder_of_another_library_is_a_base(parent: Path, text: Path, tmp_path: Path) -> None:
    folder = as_hugging_face(parent, tmp_path / "hf")
    trainer_for(child_of(folder, text), tmp_path / "runs" / "child").fit()
    assert all(".adapter." in name for name in open_run(tmp_path / "runs" / "child").names("model"))
    wanted = logits(tmp_path / "runs" / "child")
    folder.rename(tmp_path / "other")
    with pytest.raises(UsageError, match=f"those of {folder}, which is not at {folder}"):
        logits(tmp_path / "runs" / "child")
    found = heddle.load(tmp_path / "runs" / "child", base=tmp_path / "other")
    assert torch.equal(found.logits(INPUTS), wanted)


def test_a_base_must_hold_its_weights_itself(child: Path, parent: Path) -> None:
    with pytest.raises(UsageError, match="child: holds only what it learnt; want the model that it was trained from"):
        heddle.load(child, base=child)
    state = open_run(child).path / "state.json"
    assert json.loads(state.read_text())["base"].keys() == {"name", "path", "beside", "sha256"}


# --- the base goes on -------------------------------------------------------------------------------------------------


def test_a_base_that_trains_on_keeps_the_checkpoint_that_is_needed(child: Path, parent: Path, text: Path) -> None:
    wanted, needed = logits(child), open_run(parent).path
    config = replace(short(text), model=RunSource(parent).config())
    trainer_for(override(config, "training.steps", 12), parent).fit()
    assert needed.exists() and len(list((parent / CHECKPOINTS).glob("step-*"))) <= 4
    assert torch.equal(logits(child), wanted)
    shutil.rmtree(child)
    trainer_for(override(config, "training.steps", 16), parent).fit()
    assert not needed.exists(), "nobody needs it any more"


def test_a_base_that_cannot_be_written_to_serves_all_the_same(parent: Path, text: Path, tmp_path: Path) -> None:
    write_config(tmp_path / "child.yaml", child_of(parent, text, name="child"))
    (parent / CHECKPOINTS).chmod(0o555)
    try:
        assert main(["train", "child.yaml"]) == 0
    finally:
        (parent / CHECKPOINTS).chmod(0o755)
    assert os.path.isdir("runs/child") and logits(Path("runs/child")).isfinite().all()

"""The speed run at a size for any machine: its recipe trains, each choice is one edit, trying out leaves no trace."""

import json
import lzma
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from reliability.harness import write_text

from heddle.cli.main import main
from heddle.core import diff, replace
from heddle.data.sources import CorpusConfig, PreparedSource
from heddle.recipes import RECIPES
from heddle.training import RunEnvironment, set_up
from heddle.training.assemble import resolve_model
from heddle.training.loop import Trainer

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the benchmark."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import speedrun

    return speedrun


@pytest.fixture
def ids(bench: ModuleType, tmp_path: Path) -> Path:
    """Prepare a few small books."""
    words = write_text(tmp_path / "text.txt").read_text()
    for name, first in (("train-00", 0), ("valid", 2000)):
        with lzma.open(tmp_path / f"{name}.jsonl.xz", "wt") as file:
            file.writelines(json.dumps({"text": words[first + i :: 7]}) + "\n" for i in range(4))
    config = bench.changed(RECIPES["speedrun"](), [*bench.TINY, "tokenizer.vocab=300"])
    found = bench.prepared(tmp_path, tmp_path / "out", config, None)
    assert isinstance(found, Path)
    return found


def trainer_of(bench: ModuleType, ids: Path, folder: Path) -> Trainer:
    """Set a tiny run up."""
    config = bench.changed(RECIPES["speedrun"](), [*bench.TINY, "hardware={device: cpu, dtype: float32}"])
    config = replace(config, data=CorpusConfig(sources=(PreparedSource(path=str(ids)),)))
    trainer = set_up(config, RunEnvironment(folder))
    trainer.callbacks, trainer.steps = [], 3
    return trainer


def test_each_choice_is_taken_out_by_an_edit_that_can_be_built(bench: ModuleType) -> None:
    recipe = RECIPES["speedrun"]()
    whole = replace(recipe, model=resolve_model(recipe, 16_384, None))
    for name, edit in bench.WITHOUT.items():
        variant = edit(recipe)
        variant = replace(variant, model=resolve_model(variant, 16_384, None))
        assert 1 <= len(diff(whole, variant)) <= 3, name


def test_trying_the_step_out_leaves_no_trace(bench: ModuleType, ids: Path, tmp_path: Path) -> None:
    tried, untried = (trainer_of(bench, ids, tmp_path / name) for name in ("tried", "untried"))
    assert bench.try_out(tried, 4) > 0
    for trainer in (tried, untried):
        trainer.fit()
    assert tried.loader.consumed == untried.loader.consumed
    ours, theirs = tried.snapshot(), untried.snapshot()
    for group in ("model", "optimizer", "guard"):
        assert ours.tensors[group].keys() == theirs.tensors[group].keys()
        assert all(torch.equal(tensor, theirs.tensors[group][name]) for name, tensor in ours.tensors[group].items())


def test_the_watch_measures_every_byte_of_the_held_out_text(bench: ModuleType, ids: Path, tmp_path: Path) -> None:
    from heddle.data.shards import Shards
    from heddle.text.tokenizers import load_tokenizer

    trainer = trainer_of(bench, ids, tmp_path / "run")
    shards = Shards.open(ids / "valid")
    watch = bench.Stopwatch(shards, load_tokenizer(ids / "tokenizer.json"), trainer.model.context, looks=2)
    trainer.callbacks = [watch]
    trainer.fit()
    assert [look["step"] for look in watch.curve] == [1, 3]
    assert all(look["bytes"] == shards.bytes and look["tokens"] == shards.tokens for look in watch.curve)
    assert 0 < watch.curve[0]["seconds"] <= watch.curve[1]["seconds"]
    assert watch.curve[1]["bits_per_byte"] < watch.curve[0]["bits_per_byte"]


def test_the_recipe_trains_at_a_small_size(
    bench: ModuleType, ids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = [word for word in bench.TINY if not word.startswith("tokenizer")]
    assert main(["train", "speedrun", f"data={ids}", *sizes, "hardware.device=cpu"]) == 0
    lines = [json.loads(line) for line in Path("runs/speedrun/metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "checkpoint" not in line]
    assert lines[-1]["step"] == 12 and "bits_per_byte" in lines[-1]


def test_a_process_that_trained_before_trains_with_another_seed_as_a_new_one_does(
    bench: ModuleType, ids: Path, tmp_path: Path
) -> None:
    config = bench.changed(RECIPES["speedrun"](), [*bench.TINY, "hardware={device: cpu, dtype: float32}"])
    job = bench.Job("tiny", None, (), None, 1)
    old, new = (bench.Runner(job, config, ids, tmp_path / name) for name in ("old", "new"))
    first, second, alone = old.train(0), old.train(1), new.train(1)
    assert first["bits_per_byte"] != second["bits_per_byte"] == alone["bits_per_byte"]
    ours, theirs = old.trainer.model.weights(), new.trainer.model.weights()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert json.loads((tmp_path / "old" / "tiny-1" / "config.json").read_text())["seed"] == 1


def test_variants_are_told_by_their_mean_and_beside_the_recipe(bench: ModuleType) -> None:
    bits = {("speedrun", 0): 1.4, ("speedrun", 1): 1.42, ("muon", 0): 1.5, ("muon", 1): 1.54}
    lines = [{"name": n, "seed": s, "bits_per_byte": b, "seconds": 9.0, "steps": 10} for (n, s), b in bits.items()]
    recipe, muon = bench.summary(lines)
    assert recipe.strip() == "speedrun: 1.4100 ± 0.0141 bits per byte, 2 seeds, 9.0 s, 10 steps"
    assert muon.endswith("+0.1100 ± 0.0141 beside the recipe")

"""Run folders: the newest good checkpoint, the best, or a named one is loaded; anything else is refused."""

import json
import os
from pathlib import Path

import pytest
import torch
from cli.runs import CONTEXT, TOKENIZER, config, damage, save_run

from heddle.checkpoints import RunSource
from heddle.checkpoints.store import Snapshot, Store, find_run, list_runs
from heddle.core import ConfigError, DamageError, EnvironmentFault, UsageError
from heddle.core.system import choose_hardware
from heddle.models.networks import AutoregressiveModel, Model
from heddle.text.tokenizers import ByteTokenizer

PRESETS = ["first", "gpt2", "llama", "lstm_lm", "gru_lm"]


def same(loaded: Model, model: Model) -> bool:
    found, wanted = loaded.weights(), model.weights()
    return found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("name", PRESETS)
def test_load_gives_back_what_was_saved(tmp_path: Path, name: str) -> None:
    dials = {"kv_heads": 1, "hidden": 24} if name == "llama" else {}
    model = save_run(tmp_path / "run", config(name, **dials))
    source = RunSource(tmp_path / "run")
    loaded = source.model()
    assert isinstance(loaded, AutoregressiveModel) and same(loaded, model)
    assert source.checkpoint.step == 10
    assert source.tokenizer().fingerprint == TOKENIZER.fingerprint
    assert source.settings()["model"]["name"] == name
    assert not loaded.training
    rows = torch.arange(2 * CONTEXT).view(2, CONTEXT)
    assert torch.equal(loaded.logits(rows), model.eval().logits(rows))


def test_ties_stay_tied_after_loading(tmp_path: Path) -> None:
    save_run(tmp_path / "run")
    model = RunSource(tmp_path / "run").model()
    assert model.get_parameter("head.weight") is model.get_parameter("embedding.weight")


def test_weights_take_the_dtype_requested(tmp_path: Path) -> None:
    model = save_run(tmp_path / "run")
    loaded = RunSource(tmp_path / "run").model(choose_hardware("cpu", "bfloat16"))
    assert {w.dtype for w in loaded.parameters()} == {torch.bfloat16}
    wanted = {name: weight.bfloat16() for name, weight in model.weights().items()}
    assert all(torch.equal(weight, wanted[name]) for name, weight in loaded.weights().items())


def test_the_moving_average_is_used_where_there_is_one(tmp_path: Path) -> None:
    model = save_run(tmp_path / "run", average=True)
    found = RunSource(tmp_path / "run").model().weights()
    assert all(torch.equal(found[name], weight + 1) for name, weight in model.weights().items())


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_run(tmp_path / "run", steps=(10, 20))
    damage(tmp_path / "run" / "checkpoints" / "step-00000020")
    assert RunSource(tmp_path / "run").checkpoint.step == 10
    (record,) = caplog.records
    assert "step-00000020/model.safetensors" in record.getMessage()
    assert "\n" not in record.getMessage()


def test_a_run_with_no_good_checkpoint_is_damage(tmp_path: Path) -> None:
    save_run(tmp_path / "run", steps=(10, 20))
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        damage(path)
    with pytest.raises(DamageError, match="no good checkpoint is left, 2 damaged") as fault:
        RunSource(tmp_path / "run").model()
    assert "\n" not in str(fault.value)


def test_best_has_the_lowest_metric_and_newest_is_the_default(tmp_path: Path) -> None:
    save_run(tmp_path / "run", steps=(13, 15, 20))  # metrics 6, 1, 6
    assert RunSource(tmp_path / "run").checkpoint.step == 20
    assert RunSource(tmp_path / "run", best=True).checkpoint.step == 15


def test_a_checkpoint_folder_loads_by_itself(tmp_path: Path) -> None:
    save_run(tmp_path / "run", steps=(10, 20))
    assert RunSource(tmp_path / "run" / "checkpoints" / "step-00000010").checkpoint.step == 10


def test_a_run_without_checkpoints_is_reported(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(UsageError, match="holds no checkpoint"):
        RunSource(tmp_path / "run").model()


def test_a_checkpoint_without_its_config_files_is_reported(tmp_path: Path) -> None:
    Store(tmp_path / "run" / "checkpoints").save(Snapshot(1, {"model": {"w": torch.ones(1)}}, {}))
    with pytest.raises(UsageError, match=r"want config.json and tokenizer.json"):
        RunSource(tmp_path / "run").model()


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    save_run(tmp_path / "run", config(vocab=100))
    with pytest.raises(ConfigError, match="at most 100 ids"):
        RunSource(tmp_path / "run").model()


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    save_run(tmp_path / "run", tokenizer=ByteTokenizer().train([]))
    run = tmp_path / "run"
    plain = json.loads((run / "config.json").read_text())
    plain["model"]["width"] = 32
    texts = {"config.json": json.dumps(plain), "tokenizer.json": (run / "tokenizer.json").read_text()}
    Store(run / "checkpoints").save(Snapshot(20, {"model": RunSource(run).model().weights()}, {}, texts))
    with pytest.raises(DamageError, match="want shape"):
        RunSource(run).model()


# --- which run is meant -----------------------------------------------------------------------------------------------


def test_a_run_is_found_by_path_by_name_and_as_the_newest(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for age, name in enumerate(("late", "old", "older")):
        (runs / name / "checkpoints").mkdir(parents=True)
        (runs / name / "checkpoints" / "step-00000001").mkdir()
        os.utime(runs / name / "checkpoints", (1e9 - age, 1e9 - age))
    (runs / "not-a-run").mkdir()
    (runs / "just-begun" / "checkpoints").mkdir(parents=True)
    assert find_run(runs / "old") == runs / "old"
    assert find_run("old", runs) == runs / "old"
    assert find_run(None, runs) == runs / "late"


def test_a_missing_run_offers_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "runs" / "first" / "checkpoints").mkdir(parents=True)
    with pytest.raises(UsageError, match="did you mean 'first'"):
        find_run("frist", tmp_path / "runs")


def test_no_runs_and_no_run_are_distinguished(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run yet"):
        find_run(None, tmp_path / "runs")
    with pytest.raises(UsageError, match="not a run"):
        find_run(tmp_path, tmp_path / "runs")


def test_a_folder_that_cannot_be_read_hides_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("good", "closed"):
        (tmp_path / "runs" / name / "checkpoints" / "step-00000001").mkdir(parents=True)
    plain = Path.stat

    def stat(path: Path, **given: bool) -> os.stat_result:
        if "closed" in path.parts[:-1]:
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path, **given)

    monkeypatch.setattr(Path, "stat", stat)
    assert list_runs(tmp_path / "runs") == [tmp_path / "runs" / "good"]
    assert find_run(None, tmp_path / "runs") == find_run("good", tmp_path / "runs") == tmp_path / "runs" / "good"
    with pytest.raises(EnvironmentFault, match="permission denied"):
        find_run("closed", tmp_path / "runs")

"""Atomic checkpoints: saved whole or not at all; the newest good one is found, and the right ones are kept."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.checkpoints.store import Snapshot, Store, open_checkpoint, verify
from heddle.core import ConfigError, DamageError, EnvironmentFault, HeddleError, UsageError


def snapshot(step: int = 1, metric: float | None = None, **state: Any) -> Snapshot:
    weights = {"a": torch.full((3, 2), float(step)), "b": torch.arange(step, step + 4)}
    return Snapshot(step, {"model": weights, "optimizer": {"m": torch.ones(2)}}, state, {"config.json": "{}"}, metric)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_equal_bits(left: Tensor, right: Tensor) -> None:
    assert left.dtype == right.dtype and left.shape == right.shape
    flat = [t.contiguous().reshape(-1).view(torch.uint8) for t in (left, right)]
    assert torch.equal(*flat)


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_what_is_saved_comes_back_in_every_bit(tmp_path: Path) -> None:
    odd = torch.randn(5, 7)[:, ::2]
    shared = torch.randn(4)
    tensors = {
        "bf16": torch.randn(3, 5).bfloat16().t(),
        "fp32": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
        "fp64": torch.randn(2, dtype=torch.float64),
        "fp8": torch.randn(4).to(torch.float8_e4m3fn),
        "int64": torch.tensor([2**62, -(2**62)]),
        "u16": torch.tensor([1, 65535], dtype=torch.uint16),
        "bool": torch.tensor([True, False, True]),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 3),
        "strided": odd,
        "expanded": torch.ones(1).expand(3, 3),
        "left": shared[:2],
        "right": shared[1:],
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
        "a name, with “quotes” \n and breaks": torch.ones(1),
    }
    state = {"rows": 12, "nested": {"list": [1, 2.5, None, True, "é\u2028"]}, "small": 5e-324}
    texts = {"config.json": '{"width": 3}', "tokenizer.json": "Wörter\r\n"}
    Store(tmp_path).save(Snapshot(7, {"model": tensors, "none": {}}, state, texts, 1.25))
    found = Store(tmp_path).newest()
    assert found is not None
    assert (found.step, found.metric, found.state, found.texts) == (7, 1.25, state, texts)
    assert found.groups == ("model", "none") and found.tensors("none") == {}
    back = found.tensors("model")
    assert set(back) == set(tensors)
    for name, tensor in tensors.items():
        assert_equal_bits(back[name], tensor)


def test_the_weights_file_is_what_the_reference_library_writes(tmp_path: Path) -> None:
    from safetensors.torch import save

    tensors = {"b": torch.randn(3, 2), "a": torch.arange(3), "c": torch.randn(5).bfloat16()}
    path = Store(tmp_path).save(Snapshot(0, {"model": tensors}, {}))
    assert (path / "model.safetensors").read_bytes() == save(tensors, metadata={"format": "pt"})


def test_a_loaded_tensor_outlives_its_file(tmp_path: Path) -> None:
    path = Store(tmp_path).save(snapshot(3))
    loaded = open_checkpoint(path).tensors()
    (path / "model.safetensors").write_bytes(b"")
    assert loaded["a"].tolist() == [[3.0, 3.0]] * 3


def test_an_empty_or_absent_folder_has_no_checkpoint_and_is_left_alone(tmp_path: Path) -> None:
    store = Store(tmp_path / "none")
    assert store.newest() is None and store.best() is None and store.list() == ()
    store.sweep()
    assert not (tmp_path / "none").exists()


def test_newest_can_be_bounded_by_a_step(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for step in (10, 20, 30):
        store.save(snapshot(step))
    for bound, want in ((10, 10), (29, 20), (30, 30), (99, 30)):
        found = store.newest(bound)
        assert found is not None and found.step == want
    assert store.newest(9) is None


def test_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path, keep_last=2, keep_best=2)
    for step, metric in enumerate([3.0, 1.0, 5.0, 2.0, 4.0, float("nan"), None]):
        store.save(snapshot(step, metric))
    assert [(e.step, e.metric) for e in store.list()] == [(1, 1.0), (3, 2.0), (5, None), (6, None)]
    best = store.best()
    assert best is not None and best.step == 1
    assert names(tmp_path) == [f"step-{s:08d}" for s in (1, 3, 5, 6)]


@pytest.mark.parametrize("count", range(1, 8))
def test_no_more_is_pruned_than_was_requested(tmp_path: Path, count: int) -> None:
    store = Store(tmp_path, keep_last=4, keep_best=0)
    for step in range(count):
        store.save(snapshot(step))
    assert [e.step for e in store.list()] == list(range(count))[-4:]


def test_a_step_saved_again_replaces_the_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(snapshot(5, turn=1))
    store.save(snapshot(5, turn=2))
    store.save(snapshot(5, turn=3))
    found = store.newest()
    assert found is not None and found.state == {"turn": 3}
    assert len(names(tmp_path)) == 1


def test_damage_is_reported_passed_over_and_never_removed(tmp_path: Path) -> None:
    store = Store(tmp_path, keep_last=2, keep_best=0)
    for step in (1, 2, 3):
        store.save(snapshot(step))
    flip(tmp_path / "step-00000003" / "model.safetensors")
    found = store.newest()
    assert found is not None and found.step == 2
    (damage,) = store.damaged
    assert damage.path.name == "step-00000003" and "model.safetensors: want sha256" in damage.reason
    store.save(snapshot(3, again=True))
    store.save(snapshot(4))
    assert names(tmp_path) == ["step-00000003", "step-00000003-2", "step-00000004"]
    assert store.newest() is not None and store.damaged == ()


def test_the_best_is_verified_too(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for step in (1, 2):
        store.save(snapshot(step, metric=float(step)))
    flip(tmp_path / "step-00000001" / "state.json")
    best = store.best()
    assert best is not None and best.step == 2
    assert "state.json" in store.damaged[0].reason


def test_a_rewound_run_keeps_what_it_just_saved(tmp_path: Path) -> None:
    store = Store(tmp_path, keep_last=1, keep_best=0)
    Store(tmp_path).save(snapshot(100))
    flip(tmp_path / "step-00000100" / "model.safetensors")
    store.save(snapshot(50))
    assert (tmp_path / "step-00000050").is_dir()


def test_a_folder_under_another_steps_name_is_damage(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(snapshot(1))
    (tmp_path / "step-00000001").rename(tmp_path / "step-00000009")
    assert store.newest() is None and store.list() == ()
    assert "found step 1" in store.damaged[0].reason


def test_links_do_not_pass_for_checkpoints(tmp_path: Path) -> None:
    path = Store(tmp_path / "real").save(snapshot(1))
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "step-00000001").symlink_to(path)
    store = Store(tmp_path / "linked")
    assert store.newest() is None and "link" in store.damaged[0].reason


def test_files_beyond_the_manifest_are_ignored(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.save(snapshot(1))
    (path / "notes.pkl").write_bytes(b"\x80\x04.")
    (tmp_path / "step-1").mkdir()
    (tmp_path / "readme.txt").write_text("mine")
    found = store.newest()
    assert found is not None and set(found.texts) == {"config.json"} and store.damaged == ()


def test_tensors_changed_after_verification_are_refused(tmp_path: Path) -> None:
    found = open_checkpoint(Store(tmp_path).save(snapshot(1)))
    flip(found.path / "model.safetensors")
    with pytest.raises(DamageError, match="changed since"):
        found.tensors()
    (found.path / "optimizer.safetensors").unlink()
    with pytest.raises(DamageError, match="gone since"):
        found.tensors("optimizer")
    with pytest.raises(UsageError, match="did you mean 'optimizer'"):
        found.tensors("optimiser")


def test_verify_says_nothing_of_a_good_one_and_names_the_fault_of_another(tmp_path: Path) -> None:
    path = Store(tmp_path).save(snapshot(1))
    verify(path)
    (path / "config.json").unlink()
    with pytest.raises(DamageError, match=r"config\.json: missing"):
        verify(path)


BAD_SNAPSHOTS = [
    (Snapshot(-1, {}, {}), "step"),
    (Snapshot(True, {}, {}), "step"),
    (Snapshot(1, {"../up": {}}, {}), "safetensors"),
    (Snapshot(1, {"model": {"x": torch.ones(1, device="meta")}}, {}), r"tensors\.model\.x"),
    (Snapshot(1, {"model": {"x": torch.ones(2).to_sparse()}}, {}), "dense"),
    (Snapshot(1, {"model": {"x": torch.ones(1, dtype=torch.complex64)}}, {}), "complex64"),
    (Snapshot(1, {"model": {"__metadata__": torch.ones(1)}}, {}), "__metadata__"),
    (Snapshot(1, {"model": {"\ud800": torch.ones(1)}}, {}), "UTF-8"),
    (Snapshot(1, {"model": dict.fromkeys(map(str, range(100_001)), torch.ones(1000))}, {}), "more than 100000"),
    (Snapshot(1, {"model": {"x" * (1 << 20): torch.ones(1)}}, {}), "header of"),
    (Snapshot(1, {}, {"a": float("nan")}), "state"),
    (Snapshot(1, {}, {"a": torch.ones(1)}), "state"),
    (Snapshot(1, {}, {"a": "\ud800"}), "state"),
    (Snapshot(1, {}, {"a": [[]] * 200_001}), "at most 200000 values"),
    (Snapshot(1, {}, {"a": {"b": (1, 2)}}), r"state\.a\.b"),
    (Snapshot(1, {}, {"a": [{1: 2}]}), r"state\.a\.0"),
    (Snapshot(1, {}, {"a": "x" * (5 << 20)}), r"state\.json"),
    (Snapshot(1, {}, {}, {"state.json": "{}"}), "state.json"),
    (Snapshot(1, {}, {}, {"manifest.json": "{}"}), "manifest.json"),
    (Snapshot(1, {}, {}, {"/etc/config.json": "{}"}), "plain file name"),
    (Snapshot(1, {}, {}, {".hidden.json": "{}"}), "plain file name"),
    (Snapshot(1, {}, {}, {"model.pt": ""}), "plain file name"),
    (Snapshot(1, {}, {}, {"more.safetensors": ""}), "texts"),
    (Snapshot(1, {}, {}, {"a.txt": "\ud800"}), "UTF-8"),
]


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(("bad", "named"), BAD_SNAPSHOTS)
def test_what_could_not_be_read_back_is_refused_at_the_call(
    tmp_path: Path, bad: Snapshot, named: str, background: bool
) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        Store(tmp_path, background=background).save(bad)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == []


@pytest.mark.parametrize("keep", [{"keep_last": 0}, {"keep_best": -1}])
def test_nonsense_to_keep_is_refused(tmp_path: Path, keep: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="or more"):
        Store(tmp_path, **keep)


# --- in the background ------------------------------------------------------------------------------------------------


def test_weights_changed_right_after_a_background_save_do_not_reach_the_disk(tmp_path: Path) -> None:
    store = Store(tmp_path, keep_last=1, background=True)
    weight = torch.randn(256, 64)
    equal = 0
    for step in range(100):
        state = {"list": [step]}
        meant = hashlib.sha256(weight.numpy().tobytes()).hexdigest()
        store.save(Snapshot(step, {"model": {"w": weight}}, state))
        weight.normal_()
        state["list"][0] = -1
        found = store.newest()
        assert found is not None and found.state == {"list": [step]}
        equal += hashlib.sha256(found.tensors()["w"].numpy().tobytes()).hexdigest() == meant
    assert equal == 100
    print(f"R3 (background part): {equal}/100 hashes equal")


def test_a_background_failure_surfaces_once_at_the_next_call(tmp_path: Path) -> None:
    store = Store(tmp_path, background=True)
    store.save(snapshot(1))
    store.wait()
    shutil.rmtree(tmp_path)
    tmp_path.write_text("not a folder")
    store.save(snapshot(2))
    with pytest.raises(EnvironmentFault, match="step-00000002: not saved"):
        store.save(snapshot(3))
    tmp_path.unlink()
    store.save(snapshot(4))
    store.wait()
    assert names(tmp_path) == ["step-00000004"]


def test_a_program_that_ends_lets_its_background_save_finish(tmp_path: Path) -> None:
    program = (
        "import sys, torch; from pathlib import Path; from heddle.checkpoints.store import Snapshot, Store\n"
        "store = Store(Path(sys.argv[1]), background=True)\n"
        "store.save(Snapshot(1, {'model': {'w': torch.ones(4_000_000)}}, {}))"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    assert names(tmp_path) == ["step-00000001"]
    verify(tmp_path / "step-00000001")


# --- left behind ------------------------------------------------------------------------------------------------------


def ended_process() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_hidden_folders_of_dead_processes_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    living = f".saving-{os.getppid()}-abc"
    for name in (living, f".saving-{os.getpid()}-1", f".saving-{ended_process()}-2", f".gone-{ended_process()}-3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
    (tmp_path / ".git").mkdir()
    store = Store(tmp_path)
    assert store.newest() is None and len(names(tmp_path)) == 5, "reading never writes"
    store.save(snapshot(1))
    assert names(tmp_path) == sorted([".git", living, "step-00000001"])


def test_a_second_store_leaves_a_save_in_flight_alone(tmp_path: Path) -> None:
    first, second = Store(tmp_path, background=True), Store(tmp_path)
    for step in range(20):
        first.save(Snapshot(step, {"model": {"w": torch.ones(200_000)}}, {}))
        second.sweep()
    first.wait()
    assert len(names(tmp_path)) == 3


# --- formats ----------------------------------------------------------------------------------------------------------


def rewrite(path: Path, **changes: Any) -> None:
    from heddle.checkpoints.store.manifest import render

    data = json.loads((path / "manifest.json").read_text()) | changes
    (path / "manifest.json").write_text(render(data))


def test_an_old_format_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from heddle.checkpoints.store import manifest

    def rename_loss(data: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in data.items() if k != "loss"} | {"metric": data["loss"]}

    def rename_rows(state: dict[str, Any]) -> dict[str, Any]:
        return {"rows": state["samples"]}

    path = Store(tmp_path).save(snapshot(1, samples=5))
    old = json.loads((path / "manifest.json").read_text()) | {"format": 0, "loss": 2.5}
    del old["metric"]
    (path / "manifest.json").write_text(manifest.render(old))
    with pytest.raises(UsageError, match="format 0 is no longer read"):
        open_checkpoint(path)
    monkeypatch.setitem(manifest.MIGRATIONS, 0, manifest.Migration(rename_loss, rename_rows))
    found = open_checkpoint(path)
    assert found.metric == 2.5 and found.state == {"rows": 5}
    assert Store(tmp_path).list()[0].metric == 2.5


def test_a_newer_format_is_refused_by_name_rather_than_passed_over(tmp_path: Path) -> None:
    store = Store(tmp_path, keep_last=1, keep_best=0)
    Store(tmp_path).save(snapshot(1))
    rewrite(Store(tmp_path).save(snapshot(2)), format=9, writer="heddle 7.1", shape="unheard of")
    with pytest.raises(UsageError, match=r"written by 'heddle 7\.1' in format 9; this Heddle reads up to format 1"):
        store.newest()
    store.save(snapshot(3))
    assert names(tmp_path) == ["step-00000002", "step-00000003"], "what we cannot read we do not remove"


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "1"},
        {"format": True},
        {"format": -(10**30)},
        {"step": -1},
        {"step": 1.5},
        {"metric": "low"},
        {"files": {}},
        {"files": {"../state.json": {"bytes": 2, "sha256": "x"}}},
        {"files": {"state.json": {"bytes": 2}}},
        {"files": [1]},
        {"surprise": 1},
    ],
)
def test_a_manifest_that_fits_its_checksum_but_not_its_schema_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = Store(tmp_path).save(snapshot(1))
    rewrite(path, **changes)
    with pytest.raises(HeddleError) as caught:
        verify(path)
    assert "manifest.json" in str(caught.value) and "\n" not in str(caught.value)

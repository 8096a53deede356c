"""Safetensors reader: each tensor is read once into its weight; shapes are checked before memory is allocated."""

import gc
import json
import random
from pathlib import Path

import pytest
import torch
from reliability.foreign import PRESETS, folder

from heddle.checkpoints.hf import is_hf_folder, load_model, save_model, write_folder
from heddle.checkpoints.hf import weights as filling
from heddle.checkpoints.hf.folder import SafetensorsFolder
from heddle.checkpoints.store import TensorFile, serialize
from heddle.checkpoints.store.safetensors_io import DTYPES
from heddle.core import ConfigError, DamageError, UsageError
from heddle.core.system import choose_hardware
from heddle.models.networks import Model
from heddle.models.presets import build


def written(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    path.write_bytes(b"".join(serialize(tensors, "test")))
    return path


def test_every_dtype_is_read_as_it_is(tmp_path: Path) -> None:
    want = {str(t): torch.arange(6).reshape(2, 3).to(t) for t in DTYPES} | {"none": torch.empty(0, 3)}
    want["scalar"] = torch.tensor(2.5)
    got = TensorFile(written(tmp_path / "a.safetensors", want))
    for name, tensor in want.items():
        read = got.read(name)
        assert read.dtype == tensor.dtype and read.shape == tensor.shape
        assert torch.equal(read.view(-1).view(torch.uint8), tensor.view(-1).view(torch.uint8))


def test_a_tensor_is_turned_into_another_dtype_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.checkpoints.store.safetensors_reader.CHUNK", 64)
    want = torch.randn(7, 19).to(torch.bfloat16)
    into = torch.empty(7, 19)
    TensorFile(written(tmp_path / "a.safetensors", {"w": want})).read_into("w", into)
    assert torch.equal(into, want.float())


def test_a_file_that_was_cut_while_open_is_reported(tmp_path: Path) -> None:
    path = written(tmp_path / "a.safetensors", {"w": torch.ones(100)})
    file = TensorFile(path)
    with path.open("r+b") as cut:
        cut.truncate(path.stat().st_size - 8)
    with pytest.raises(DamageError, match="tensor 'w' is cut short"):
        file.read("w")


def test_a_side_that_no_tensor_can_have_is_reported(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [0, 1 << 63], "data_offsets": [0, 0]}  # no numbers, so the sizes agree
    header = json.dumps({"w": entry}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(DamageError, match="tensor 'w': its header is wrong"):
        TensorFile(tmp_path / "a.safetensors")


@pytest.mark.parametrize("preset", PRESETS)
def test_several_readers_give_what_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str) -> None:
    model = build(preset, **PRESETS[preset])
    save_model(model, tmp_path)
    monkeypatch.setattr(filling, "SMALL", 0)
    got = load_model(tmp_path)
    assert not any(weight.requires_grad is False for weight in got.parameters())
    assert all(torch.equal(weight, got.weights()[name]) for name, weight in model.weights().items())


def test_shards_and_half_precision_load_as_they_are(tmp_path: Path) -> None:
    model = load_model(folder(tmp_path / "whole")).to(torch.bfloat16)
    save_model(model, tmp_path / "half")
    config = json.loads((tmp_path / "half" / "config.json").read_text())
    weights = dict(SafetensorsFolder(tmp_path / "half"))
    write_folder(tmp_path / "shards", config, weights, shard=3000)
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 3
    again = load_model(tmp_path / "shards", choose_hardware("cpu", "bfloat16"))
    assert all(torch.equal(weight, again.weights()[name]) for name, weight in model.weights().items())
    assert next(again.parameters()).dtype == torch.bfloat16


def test_no_memory_is_taken_before_all_shapes_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path / "a")
    config = tmp_path / "a" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": 12}))

    def taken(model: Model, device: object) -> None:
        raise AssertionError("memory was taken")

    monkeypatch.setattr(Model, "materialize", taken)
    with pytest.raises(DamageError, match=r"embed_tokens\.weight: want the shape of .*, \(12, 16\), found \(11, 16\)"):
        load_model(tmp_path / "a")


def test_loading_leaves_no_file_open(tmp_path: Path) -> None:
    folder(tmp_path / "a")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        load_model(tmp_path / "a")
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_a_snapshot_in_a_hubs_cache_loads_through_its_links(tmp_path: Path) -> None:
    made, cache = folder(tmp_path / "a"), tmp_path / "models--a--b"
    snapshot = cache / "snapshots" / "c0ffee"
    (cache / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for i, name in enumerate(("config.json", "model.safetensors")):
        (cache / "blobs" / f"{i:064}").write_bytes((made / name).read_bytes())
        (snapshot / name).symlink_to(f"../../blobs/{i:064}")
    assert is_hf_folder(snapshot)
    want, got = load_model(made).weights(), load_model(snapshot).weights()
    assert all(torch.equal(weight, got[name]) for name, weight in want.items())
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(made / "model.safetensors")
    with pytest.raises(DamageError, match="a link, not a file"):
        load_model(snapshot)


# --- checksums of exported weights ------------------------------------------------------------------------------------


def exported(path: Path) -> Path:
    save_model(build("llama", **PRESETS["llama"]), path)
    return path


def test_every_flipped_bit_of_exported_weights_is_noticed(tmp_path: Path) -> None:
    made = exported(tmp_path / "made")
    path, rng = made / "model.safetensors", random.Random(0)
    whole = path.read_bytes()
    for at in [8, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(40))]:
        data = bytearray(whole)
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        with pytest.raises((DamageError, UsageError)):
            load_model(made)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DamageError, match=r"model\.safetensors: want sha256 .*; if it was .* remove checksums\.json"):
        load_model(made)
    (made / "checksums.json").unlink()  # changed on purpose
    load_model(made)


def test_weights_that_the_checksums_do_not_list_are_refused(tmp_path: Path) -> None:
    made = exported(tmp_path / "made")
    path = made / "checksums.json"
    path.write_text(path.read_text().replace("model.safetensors", "other.safetensors"))
    with pytest.raises(DamageError, match=r"model\.safetensors: not in checksums\.json"):
        load_model(made)
    path.write_text('{"model.safetensors": 7}')
    with pytest.raises(ConfigError, match=r"checksums\.json"):
        load_model(made)


def test_every_shard_has_its_checksum(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.full((64,), float(i)) for i in range(4)}
    write_folder(tmp_path, {"model_type": "llama"}, tensors, shard=256)
    assert len(SafetensorsFolder(tmp_path)) == 4
    last = max(tmp_path.glob("*.safetensors"))
    last.write_bytes(last.read_bytes()[:-4] + b"abcd")
    with pytest.raises(DamageError, match=last.name):
        SafetensorsFolder(tmp_path)

"""Pickled weights: what torch.save wrote is read bit by bit; code in a pickle is refused and never run."""

import collections
import copyreg
import io
import json
import os
import pickle
import random
import struct
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heddle.checkpoints.formats import unpickle_folder
from heddle.checkpoints.formats.pytorch_pickle import PickledFile
from heddle.checkpoints.hf.folder import SafetensorsFolder
from heddle.core import DamageError, HeddleError, UsageError

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


def same(left: Tensor, right: Tensor) -> bool:
    """Compare bits: a NaN is itself."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (left.detach(), right.detach())]
    return bool(torch.equal(*bits))


def tensors() -> dict[str, Tensor]:
    """Return tensors of every dtype and every way to lie in a storage."""
    draw = torch.Generator().manual_seed(0)
    made = {str(t): torch.randint(0, 2, (3, 5), generator=draw).to(t) for t in DTYPES}
    whole = torch.randn(6, 8, generator=draw)
    made |= {"whole": whole, "tied": whole, "turned": whole.T, "row": whole[2], "column": whole[:, 3]}
    made |= {"steps": whole[1::2, ::3], "corner": whole[2:4, 3:], "expanded": whole[:1].expand(1, 8)}
    made |= {"scalar": torch.tensor(3.5), "none": torch.empty(0, 4), "odd": torch.tensor([float("nan"), -0.0])}
    made |= {"parameter": nn.Parameter(whole[0].clone()), "bytes": torch.arange(7, dtype=torch.uint8)}
    return made | {"after": torch.randn(3, dtype=torch.float64, generator=draw)}  # behind seven bytes: not aligned


def saved(thing: Any, path: Path, zipped: bool = True) -> Path:
    torch.save(thing, path, _use_new_zipfile_serialization=zipped)
    return path


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_tensors_come_back_bit_by_bit(tmp_path: Path, zipped: bool) -> None:
    want = tensors()
    got = PickledFile(saved(want, tmp_path / "a.bin", zipped))
    assert list(got) == list(want)
    assert [name for name in want if not same(got[name], want[name])] == []


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_state_dict_with_its_metadata_comes_back(tmp_path: Path, zipped: bool) -> None:
    want = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).state_dict()
    assert isinstance(want, collections.OrderedDict) and want._metadata  # type: ignore[attr-defined]
    got = PickledFile(saved(want, tmp_path / "a.bin", zipped))
    assert all(same(got[name], want[name]) for name in want) and len(got) == len(want)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_is_read(tmp_path: Path, protocol: int) -> None:
    torch.save({"w": torch.arange(4)}, tmp_path / "a.bin", pickle_protocol=protocol)
    assert same(PickledFile(tmp_path / "a.bin")["w"], torch.arange(4))


def test_a_storage_that_is_aligned_is_not_copied(tmp_path: Path) -> None:
    got = PickledFile(saved({"a": torch.zeros(1 << 10), "b": torch.zeros(4)}, tmp_path / "a.bin"))
    assert got["a"].untyped_storage().data_ptr() == got["a"].untyped_storage().data_ptr()


# --- folders ----------------------------------------------------------------------------------------------------------


def folder(path: Path, weights: dict[str, Tensor], shards: int = 1) -> Path:
    """Make a folder with pickled weights, in one file or several."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": 3}))
    (path / "vocab.txt").write_text("a\nb\n")
    (path / "chat_template.jinja").write_text("{{ messages }}")
    (path / "modeling_evil.py").write_text("raise SystemExit")
    (path / "training_args.bin").write_bytes(b"cos\nsystem\n.")
    if shards == 1:
        saved(weights, path / "pytorch_model.bin")
        return path
    names = [f"pytorch_model-{i + 1:05}-of-{shards:05}.bin" for i in range(shards)]
    places = {name: names[i % shards] for i, name in enumerate(weights)}
    for file in names:
        saved({name: tensor for name, tensor in weights.items() if places[name] == file}, path / file)
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return path


@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_is_written_anew_as_safetensors(tmp_path: Path, shards: int) -> None:
    want = tensors()
    source = folder(tmp_path / "in", want, shards)
    (source / "secret.json").symlink_to("/etc/hostname")
    os.mkfifo(source / "pipe.txt")
    names = unpickle_folder(source, tmp_path / "out")
    assert sorted(names) == sorted(want)
    got = SafetensorsFolder(tmp_path / "out")
    assert [name for name in want if not same(got[name], want[name])] == []
    found = {path.name for path in (tmp_path / "out").iterdir()}
    assert found == {"config.json", "vocab.txt", "chat_template.jinja", "model.safetensors", "checksums.json"}


def test_a_folder_that_holds_something_is_not_written_to(tmp_path: Path) -> None:
    source = folder(tmp_path / "in", {"w": torch.ones(2)})
    with pytest.raises(UsageError, match="want a new or an empty folder"):
        unpickle_folder(source, source)


@pytest.mark.parametrize("name", ["../evil.bin", "/etc/passwd", "a/b.bin", "model.safetensors", "a\nb.bin"])
def test_an_index_that_points_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    source = folder(tmp_path / "in", {"a": torch.ones(2), "b": torch.ones(2)}, 2)
    (source / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(DamageError, match=r"want \.bin files of this folder"):
        unpickle_folder(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tensor_that_an_index_promises_must_be_there(tmp_path: Path) -> None:
    source = folder(tmp_path / "in", {"a": torch.ones(2), "b": torch.ones(2)}, 2)
    places = {"a": "pytorch_model-00001-of-00002.bin", "c": "pytorch_model-00001-of-00002.bin"}
    (source / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(DamageError, match="lists tensor 'c'"):
        unpickle_folder(source, tmp_path / "out")


def test_a_link_to_weights_elsewhere_is_refused(tmp_path: Path) -> None:
    source = folder(tmp_path / "in", {"w": torch.ones(2)})
    (source / "pytorch_model.bin").rename(tmp_path / "outside.bin")
    (source / "pytorch_model.bin").symlink_to(tmp_path / "outside.bin")
    with pytest.raises(DamageError, match="a link, not a file"):
        unpickle_folder(source, tmp_path / "out")


def test_a_snapshot_in_a_hubs_cache_is_read_through_its_links(tmp_path: Path) -> None:
    made = folder(tmp_path / "in", {"w": torch.ones(2)})
    cache = tmp_path / "models--a--b"
    (cache / "blobs").mkdir(parents=True)
    (cache / "snapshots" / "c0ffee").mkdir(parents=True)
    for i, name in enumerate(("config.json", "pytorch_model.bin", "vocab.txt")):
        (made / name).rename(cache / "blobs" / f"{i:040}")
        (cache / "snapshots" / "c0ffee" / name).symlink_to(f"../../blobs/{i:040}")
    assert unpickle_folder(cache / "snapshots" / "c0ffee", tmp_path / "out") == ["w"]
    assert (tmp_path / "out" / "vocab.txt").read_text() == "a\nb\n"


# --- attacks ----------------------------------------------------------------------------------------------------------


class Call:
    """Pickles as a call of something."""

    def __init__(self, what: Callable[..., Any], *given: Any) -> None:
        self.what, self.given = what, given

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.what, self.given


class Set:
    """Pickles with a state to be set."""

    def __setstate__(self, state: Any) -> None:
        os.system(state["line"])


def archive(pickled: bytes, storages: dict[str, bytes] | None = None, method: int = zipfile.ZIP_STORED) -> bytes:
    """Return an archive around a pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        file.writestr("archive/data.pkl", pickled)
        for key, data in (storages or {"0": bytes(16)}).items():
            file.writestr(f"archive/data/{key}", data)
    return buffer.getvalue()


def tensor(
    size: bytes, strides: bytes, offset: bytes = b"K\0", items: bytes = b"K\4", kind: bytes = b"FloatStorage"
) -> bytes:
    """Return codes that describe a tensor of the storage "0"."""
    storage = b"(X\7\0\0\0storagectorch\n" + kind + b"\nX\1\0\0\0" + b"0X\3\0\0\0cpu" + items + b"tQ"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + offset + size + strides + b"\x89}tR"


def table(value: bytes) -> bytes:
    """Return a pickle of a table with one entry."""
    return b"\x80\2}X\1\0\0\0w" + value + b"s."


def whole(number: int) -> bytes:
    data = number.to_bytes(17, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def calls(canary: Path) -> Iterator[tuple[str, bytes]]:
    """Yield pickles that call something, in every way that pickle knows."""
    line = f"touch {canary}"
    for protocol in range(6):
        yield f"reduce-{protocol}", pickle.dumps({"w": Call(os.system, line)}, protocol)
    for name, what in {
        "eval": Call(eval, f"__import__('os').system({line!r})"),
        "exec": Call(exec, f"import os; os.system({line!r})"),
        "import": Call(__import__, "os"),
        "getattr": Call(getattr, os, "system"),
        "open": Call(open, str(canary), "w"),
        "torch-load": Call(torch.load, str(canary)),
        "deep": [[{"a": (Call(os.system, line),)}]],
    }.items():
        yield (
            name,
            pickle.dumps({"w": what}) if name != "getattr" else b"\x80\2cbuiltins\ngetattr\ncos\nX\6\0\0\0system\x86R.",
        )
    made = Set()
    made.__dict__["line"] = line
    yield "setstate", pickle.dumps({"w": made})
    escaped = line.encode()
    text = b"X" + struct.pack("<I", len(escaped)) + escaped
    yield "inst", b"(" + text + b"ios\nsystem\n."
    yield "inst-known", b"(icollections\nOrderedDict\n."
    yield "obj", b"(cos\nsystem\n" + text + b"o."
    yield "newobj", b"\x80\2csubprocess\nPopen\n" + text + b"\x85\x81."
    yield "newobj-ex", b"\x80\4csubprocess\nPopen\n" + text + b"\x85}\x92."
    yield "stack-global", b"\x80\4\x8c\2os\x8c\6system\x93" + text + b"\x85R."
    yield "stack-global-built", b"\x80\4(X\1\0\0\0oX\1\0\0\0stX\6\0\0\0system\x93."
    yield "stack-global-list", b"\x80\4]q\0h\0ah\0h\0\x93."
    yield "dotted", b"\x80\4\x8c\5torch\x8c\12_utils.sys\x93."
    yield "by-memo", b"\x80\2cposix\nsystem\nq\0" + text + b"q\1h\0h\1\x85R."
    for number, code in enumerate((b"\x82\1", b"\x83\1\0", b"\x84\1\0\0\0")):
        yield f"extension-{number}", b"\x80\2" + code + text + b"\x85R."
    yield "persistent-text", b"Pos.system\n."
    yield "persistent-call", b"\x80\2cos\nsystem\n" + text + b"\x86Q."
    yield "persistent-module", b"\x80\2(X\6\0\0\0modulecos\nsystem\nX\1\0\0\0aX\1\0\0\0btQ."
    yield "persistent-nested", b"\x80\2" + tensor(b"K\4\x85", b"K\1\x85") + b"Q."
    yield "build-tensor", table(tensor(b"K\4\x85", b"K\1\x85") + b"}X\1\0\0\0aK\1sb")
    yield "build-table", b"\x80\2ccollections\nOrderedDict\n)R}X\t\0\0\0__class__K\1sb."
    yield "build-name", b"\x80\2ctorch._utils\n_rebuild_tensor_v2\n}X\t\0\0\0_metadataK\1sb."
    yield "ordered-filled", b"\x80\2ccollections\nOrderedDict\n]\x85R."
    yield "call-dtype", b"\x80\2ctorch\nfloat32\n)R."
    yield "call-storage", b"\x80\2ctorch\nFloatStorage\nJ\0\0\0\x7f\x85R."
    yield "call-table", b"\x80\2})R."
    yield "set-item-of-name", b"\x80\2ctorch\nfloat32\nX\1\0\0\0aK\1s."
    yield "append-to-name", b"\x80\2ccollections\nOrderedDict\nK\1a."
    yield "other-function", b"\x80\2ctorch._utils\n_import_dotted_name\nX\2\0\0\0os\x85R."
    yield "sparse", b"\x80\2ctorch._utils\n_rebuild_sparse_tensor\n)R."
    yield "numpy", b"\x80\2cnumpy.core.multiarray\n_reconstruct\n)R."
    yield "codec", b"\x80\2c_codecs\nencode\nX\1\0\0\0aX\6\0\0\0latin1\x86R."
    yield "bytes", b"\x80\5\x96\4\0\0\0\0\0\0\0abcd."
    yield "buffer", b"\x80\5\x97."
    yield "set", b"\x80\4\x8f(K\1\x90."


def swollen() -> Iterator[tuple[str, bytes]]:
    """Yield pickles that would take time or memory without end, or do not hold together."""
    yield "long4", b"\x80\2\x8b" + struct.pack("<i", 1 << 22) + b"\xff" * (1 << 22) + b"."
    yield "long4-past-end", b"\x80\2\x8b" + struct.pack("<i", (1 << 31) - 1) + b"."
    yield "long4-negative", b"\x80\2\x8b" + struct.pack("<i", -5) + b"."
    yield "long-digits", b"L" + b"9" * 100_000 + b"L\n."
    yield "text-past-end", b"\x80\4\x8d" + struct.pack("<Q", 1 << 60) + b"a."
    yield "codes", b"\x80\2" + b"N0" * 600_000 + b"N."
    yield "marks", b"(" * 300_000 + b"."
    yield "lists", b"]" * 300_000 + b"a" * 299_999 + b"."
    yield "tuples", b")" + b"\x85" * 300_000 + b"."
    yield "laughs", b"\x80\2]" + b"2\x86" * 60 + b"."
    yield "laughs-as-value", table(b")" + b"2\x86" * 60)
    yield "laughs-as-key", b"\x80\2})" + b"2\x86" * 60 + b"K\1s."
    yield "laughs-as-name", b"\x80\4)" + b"2\x86" * 60 + b"2\x93."
    yield "laughs-as-callee", b"\x80\4)" + b"2\x86" * 60 + b")R."
    yield "memo", b"\x80\2N" + b"".join(b"r" + struct.pack("<I", i * 9999) for i in range(100_000)) + b"."
    yield "memo-missing", b"\x80\2h\7."
    yield "itself", b"\x80\2]q\0h\0a."
    yield "huge", b"\x80\2N" + b"X" + struct.pack("<I", 17 << 20) + b"a" * (17 << 20) + b"0."
    yield "empty", b""
    yield "no-stop", b"\x80\2N"
    yield "nothing", b"."
    yield "two", b"NN."
    yield "underflow", b"\x80\2R."
    yield "unmarked", b"\x80\2Nu."
    yield "noise", bytes(range(256))


def shapes() -> Iterator[tuple[str, bytes]]:
    """Yield tables whose tensor does not lie within its storage."""
    yield "too-many", table(tensor(b"K\5\x85", b"K\1\x85"))
    yield "offset", table(tensor(b"K\1\x85", b"K\1\x85", offset=b"K\4"))
    yield "offset-negative", table(tensor(b"K\1\x85", b"K\1\x85", offset=b"J\xff\xff\xff\xff"))
    yield "stride", table(tensor(b"K\2\x85", b"K\4\x85"))
    yield "stride-negative", table(tensor(b"K\2\x85", b"J\xff\xff\xff\xff\x85"))
    yield "stride-zero", table(tensor(b"J\0\0\0\x7fJ\0\0\0\x7f\x86", b"K\0K\0\x86"))
    yield "side-huge", table(tensor(whole(1 << 62) + whole(1 << 62) + b"\x86", b"K\1K\1\x86"))
    yield "side-negative", table(tensor(b"J\xff\xff\xff\xff\x85", b"K\1\x85"))
    yield "side-real", table(tensor(b"G@\x10\0\0\0\0\0\0\x85", b"K\1\x85"))
    yield "side-true", table(tensor(b"\x88\x85", b"K\1\x85"))
    yield "sides", table(tensor(b"(" + b"K\1" * 1000 + b"t", b"(" + b"K\1" * 1000 + b"t"))
    yield "strides-fewer", table(tensor(b"K\2K\2\x86", b"K\1\x85"))
    yield "storage-longer", table(tensor(b"K\1\x85", b"K\1\x85", items=b"K\5"))
    yield "storage-huge", table(tensor(b"K\1\x85", b"K\1\x85", items=whole(1 << 62)))
    yield "storage-overflow", table(tensor(b"K\1\x85", b"K\1\x85", items=whole(1 << 64)))
    yield "storage-unknown", table(tensor(b"K\1\x85", b"K\1\x85", kind=b"QInt8Storage"))
    yield "storage-name", table(tensor(b"K\1\x85", b"K\1\x85", kind=b"float32"))
    yield "not-a-table", b"\x80\2" + tensor(b"K\1\x85", b"K\1\x85") + b"."
    yield "not-a-tensor", table(b"K\1")
    yield "key-a-number", b"\x80\2}K\1" + tensor(b"K\1\x85", b"K\1\x85") + b"s."


def archives() -> Iterator[tuple[str, bytes]]:
    """Yield archives that do not hold together."""
    good = archive(table(tensor(b"K\4\x85", b"K\1\x85")))
    plain = table(tensor(b"K\4\x85", b"K\1\x85"))
    yield "deflated", archive(plain, {"0": bytes(64 << 20)}, zipfile.ZIP_DEFLATED)
    yield "deflated-pickle", archive(b"N0" * (8 << 20), method=zipfile.ZIP_DEFLATED)
    yield "no-storage", archive(plain, {"1": bytes(16)})
    yield "short-storage", archive(plain, {"0": bytes(12)})
    yield "cut", good[:-30]
    yield "cut-half", good[: len(good) // 2]
    end = good.rfind(b"PK\5\6")
    yield "entries-many", good[: end + 10] + b"\xff\xff" + good[end + 12 :]
    yield "list-past-end", good[: end + 16] + b"\xff\xff\xff\x7f" + good[end + 20 :]
    entry = good.find(b"PK\1\2")
    yield "local-past-end", good[: entry + 42] + b"\xff\xff\xff\x7f" + good[entry + 46 :]
    yield "size-past-end", good[: entry + 20] + b"\xff\xff\0\0\xff\xff\0\0" + good[entry + 28 :]
    second = good.find(b"PK\1\2", entry + 1)
    yield "overlap", good[: second + 42] + good[entry + 42 : entry + 46] + good[second + 46 :]
    other = archive(b"N.").replace(b"archive/data.pkl", b"brchive/data.pkl")
    yield "no-pickle", other.replace(b"brchive/data.pkl", b"brchive/data.pk_")
    many = b"".join(b"X\5\0\0\0" + b"%05dh\1" % i for i in range(100))
    big = b"J\0\0\1\0"
    shared = b"\x80\2" + tensor(big + b"\x85", b"K\1\x85", items=big) + b"q\0010}(" + many + b"u."
    yield "shared-without-end", archive(shared, {"0": bytes(4 << 16)})
    listed = (b"PK\1\2" + bytes(42)) * 400_000
    last = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(listed), 30, 0)
    yield "list-without-end", b"PK\3\4" + bytes(26) + listed + last
    yield "listed-twice", b"PK\3\4" + bytes(26) + listed[:92] + last[:10] + struct.pack("<HIIH", 2, 92, 30, 0)
    buffer = io.BytesIO(good)
    with zipfile.ZipFile(buffer, "a") as file:
        file.writestr("archive/byteorder", "big")
    yield "big-endian", buffer.getvalue()


def attacks(canary: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every file; pickles both in an archive and, where they could stand there, in the older layout."""
    for name, data in [*calls(canary), *swollen(), *shapes()]:
        yield f"zip-{name}", archive(data)
    for name, data in calls(canary):
        yield f"bare-{name}", data
    head = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({"little_endian": True}, 2)
    storage = struct.pack("<q", 4) + bytes(16)
    for name, data in [*calls(canary), *shapes()]:
        yield f"legacy-{name}", head + data + pickle.dumps(["0"], 2) + storage
    good = table(tensor(b"K\4\x85", b"K\1\x85"))
    yield "legacy-cut", head + good + pickle.dumps(["0"], 2) + storage[:-1]
    yield "legacy-length", head + good + pickle.dumps(["0"], 2) + struct.pack("<q", 1 << 62) + bytes(16)
    yield "legacy-negative", head + good + pickle.dumps(["0"], 2) + struct.pack("<q", -4) + bytes(16)
    yield "legacy-keys", head + good + pickle.dumps(["0", "0"], 2) + storage * 2
    yield "legacy-strange-key", head + good + pickle.dumps(["1"], 2) + storage
    yield "legacy-evil-keys", head + good + pickle.dumps(Call(os.system, f"touch {canary}"), 2) + storage
    yield from archives()


def test_hostile_pickles_are_refused_and_run_nothing(tmp_path: Path, frozen_heap: None) -> None:
    canary, path = tmp_path / "canary", tmp_path / "pytorch_model.bin"
    copyreg.add_extension("os", "system", 1)
    refused, accepted, slowest = 0, [], 0.0
    try:
        for name, data in attacks(canary):
            path.write_bytes(data)
            start = time.process_time()
            try:
                PickledFile(path)
                accepted.append(name)
            except HeddleError as error:
                said, refused = str(error), refused + 1
                assert len(said.splitlines()) == 1 and len(said) < 600 and str(path) in said, (name, said)
            spent = time.process_time() - start
            assert spent < 1, (name, spent)
            slowest = max(slowest, spent)
    finally:
        copyreg.remove_extension("os", "system", 1)
    print(f"pickles: {refused}/{refused} refused, slowest {slowest * 1000:.0f} ms")
    assert accepted == [] and refused > 150 and not canary.exists()


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_mutated_files_are_refused_or_read(tmp_path: Path, zipped: bool) -> None:
    made = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).state_dict() | {"half": torch.ones(3).half()}
    good, draw, path = saved(made, tmp_path / "good.bin", zipped).read_bytes(), random.Random(3), tmp_path / "a.bin"
    refused = 0
    for _ in range(400):
        harmed = bytearray(good)
        for _ in range(draw.choice([1, 1, 2, 6])):
            harmed[draw.randrange(len(good))] = draw.randrange(256)
        path.write_bytes(bytes(harmed)[: len(good) if draw.random() < 0.8 else draw.randrange(len(good))])
        try:
            found = PickledFile(path)
            assert all(found[name].numel() < 1000 for name in found)
        except HeddleError as error:
            refused += 1
            assert len(str(error).splitlines()) == 1
    assert 50 < refused < 400


def test_the_parts_of_the_attacks_are_right_by_themselves(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(archive(table(tensor(b"K\2K\2\x86", b"K\2K\1\x86")), {"0": torch.arange(4.0).numpy().tobytes()}))
    assert same(PickledFile(path)["w"], torch.arange(4.0).view(2, 2))


def test_the_calls_work_on_a_careless_loader(tmp_path: Path) -> None:
    for name in ("reduce-2", "inst", "stack-global", "by-memo", "setstate"):
        pickle.loads(dict(calls(tmp_path / name))[name])
        assert (tmp_path / name).exists(), "else the attack proves nothing"


@pytest.mark.parametrize(
    ("name", "said"),
    [("reduce-2", "posix.system"), ("inst", "os.system"), ("stack-global", "os.system"), ("eval", "builtins.eval")],
)
def test_what_a_pickle_wants_to_call_is_named(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "a.bin").write_bytes(archive(dict(calls(tmp_path / "canary"))[name]))
    with pytest.raises(UsageError, match=f"wants to call {said}; refused, nothing was executed") as told:
        PickledFile(tmp_path / "a.bin")
    assert str(tmp_path / "a.bin") in str(told.value)

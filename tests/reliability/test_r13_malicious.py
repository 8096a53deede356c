"""R13 (checkpoints and configs): hostile artefacts in every slot run nothing and are refused at once.

Nor does our source hold a call that could run them.

This file is also the victim: run as a program, it opens what it is pointed at and tells how that went.
"""

import ast
import gzip
import hashlib
import io
import itertools
import json
import os
import pickle
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heddle.checkpoints.store import Snapshot, Store, open_checkpoint
from heddle.checkpoints.store.manifest import render
from heddle.core import Config, HeddleError, decode, settings
from heddle.core.system import parse_json, parse_yaml

SOURCE = Path(__file__).parents[2] / "src" / "heddle"
SLOTS = ("model.safetensors", "optimizer.safetensors", "state.json", "config.json", "tokenizer.json", "manifest.json")


# --- the victim -------------------------------------------------------------------------------------------------------


@settings
class Width(Config):
    """A config of one field."""

    width: int = 1


def use(folder: Path) -> None:
    """Do with a checkpoint all that a user of it would."""
    found = open_checkpoint(folder)
    for group in found.groups:
        found.tensors(group)
    for name, text in found.texts.items():
        data = parse_json(text, name) if name.endswith(".json") else parse_yaml(text, name)
        if name.startswith("config"):
            decode(Width, data)


def peak(since_now: bool = False) -> float:
    """Return the most memory held so far, in megabytes, after a fresh start if asked for."""
    if since_now:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def victim(root: Path) -> None:
    """Open every artefact below a folder and print a line of JSON for each."""
    use(root / "good")
    for folder in sorted(root.glob("bad-*")):
        before, start = peak(since_now=True), time.perf_counter()
        try:
            use(folder)
            answer = "accepted"
        except HeddleError as error:
            answer = str(error)
        spent = {"seconds": time.perf_counter() - start, "megabytes": peak() - before}
        print(json.dumps({"name": folder.name, "answer": answer, "debug": __debug__} | spent))


# --- the attacker -----------------------------------------------------------------------------------------------------


class Payload:
    """Runs a command when unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.canary}",)


def executables(canary: Path) -> dict[str, bytes]:
    """Return everything that a careless loader would run."""
    payload = Payload(canary)
    files = {f"pickle{protocol}": pickle.dumps(payload, protocol) for protocol in (0, 2, 5)}
    for name, zipped in (("torch-zip", True), ("torch-legacy", False)):
        buffer = io.BytesIO()
        torch.save({"w": payload}, buffer, _use_new_zipfile_serialization=zipped)
        files[name] = buffer.getvalue()
    for name, write in (("npy", np.save), ("npz", np.savez)):
        buffer = io.BytesIO()
        write(buffer, np.array([payload], dtype=object), allow_pickle=True)
        files[name] = buffer.getvalue()
    return files


def zip_bomb() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(64 << 20))
    return buffer.getvalue()


def tensor_file(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def entry(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def headers() -> dict[str, bytes]:
    """Return malformed and oversized safetensors files."""
    many = {str(i): entry(shape=[0], offsets=[0, 0]) for i in range(100_001)}
    return {
        "length-2e63": tensor_file(b"{}", length=1 << 63),
        "length-past-end": tensor_file(b"{}", length=100 << 20),
        "header-17mb": tensor_file(b"{" + b" " * (17 << 20) + b"}"),
        "entries-100001": tensor_file(json.dumps(many, separators=(",", ":")).encode()),
        "metadata-million": tensor_file(
            json.dumps({"__metadata__": dict.fromkeys(map(str, range(10**6)), "")}).encode()
        ),
        "depth-100000": tensor_file(b'{"a":' + b"[" * 100_000),
        "overlap": tensor_file(json.dumps({"a": entry(), "b": entry()}).encode(), bytes(4)),
        "negative": tensor_file(json.dumps({"a": entry(offsets=[-4, 0])}).encode(), bytes(4)),
        "beyond": tensor_file(json.dumps({"a": entry(shape=[1 << 40], offsets=[0, 1 << 42])}).encode(), bytes(4)),
        "overflow": tensor_file(json.dumps({"a": entry(shape=[1 << 62, 1 << 62])}).encode(), bytes(4)),
        "hole": tensor_file(json.dumps({"a": entry(offsets=[8, 12])}).encode(), bytes(12)),
        "object-dtype": tensor_file(json.dumps({"a": entry(dtype="O")}).encode(), bytes(4)),
    }


YAML_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in itertools.pairwise("abcdefghi")
)
TEXTS = {
    "state.json": {
        "depth": "[" * 100_000 + "]" * 100_000,
        "nan": '{"loss": NaN}',
        "digits": '{"rows": ' + "9" * 5000 + "}",
        "list": "[]",
        "huge": '{"a": "' + "x" * (5 << 20) + '"}',
    },
    "config.json": {
        "target": '{"_target_": "os.system", "command": "touch canary"}',
        "depth": '{"width":' * 100_000,
        "infinity": '{"width": Infinity}',
    },
    "config.yaml": {
        "python": "!!python/object/apply:os.system ['touch canary']",
        "module": "width: !!python/module:os",
        "bomb": YAML_BOMB,
    },
}  # fmt: skip


class Attacker:
    """Makes one folder per attack, each a good checkpoint but for one thing, with a manifest that agrees to it."""

    def __init__(self, root: Path) -> None:
        self.root, self.count = root, 0
        self.good = Store(root / "store").save(
            Snapshot(
                1,
                {"model": {"w": torch.ones(4)}, "optimizer": {"m": torch.ones(4)}},
                {"rows": 1},
                {"config.json": '{"width": 2}', "tokenizer.json": "{}"},
            )
        )
        self._copy("good")

    def _copy(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir()
        for path in self.good.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        return folder

    def folder(self, name: str) -> Path:
        self.count += 1
        return self._copy(f"bad-{name}")

    def plant(self, slot: str, name: str, data: bytes) -> None:
        """Put bytes in a slot, and let the manifest agree."""
        folder = self.folder(f"{slot}-{name}")
        (folder / slot).write_bytes(data)
        if slot != "manifest.json":
            self.agree(folder, slot)

    def agree(self, folder: Path, slot: str, listed: str | None = None) -> None:
        data = (folder / slot).read_bytes()
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["files"][slot if listed is None else listed] = {
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        (folder / "manifest.json").write_text(render(manifest))

    def plant_links(self, outside: Path) -> None:
        """Put links, a pipe and a folder where files belong."""
        for slot in ("model.safetensors", "state.json", "tokenizer.json", "manifest.json"):
            folder = self.folder(f"link-{slot}")
            (outside / f"{slot}-out").write_bytes((folder / slot).read_bytes())
            (folder / slot).unlink()
            (folder / slot).symlink_to(outside / f"{slot}-out")
        for slot in ("model.safetensors", "manifest.json"):
            folder = self.folder(f"pipe-{slot}")
            (folder / slot).unlink()
            os.mkfifo(folder / slot)
        folder = self.folder("folder-state.json")
        (folder / "state.json").unlink()
        (folder / "state.json").mkdir()

    def plant_names(self, outside: Path) -> None:
        """List files that are not in the folder, or not of our kinds, in manifests whose checksums fit."""
        (outside / "secret.json").write_text("{}")
        climbing = os.path.relpath(outside / "secret.json", self.root / "bad-name-0")
        names = [str(outside / "secret.json"), climbing, "sub/../state.json", "evil.pkl", "model.pt", ".evil.json",
                 "a\x00.json", "a\nb.json", "", "..", "x" * 300 + ".json"]  # fmt: skip
        for i, name in enumerate(names):
            folder = self.folder(f"name-{i}")
            self.agree(folder, "config.json", listed=name)

    def plant_all(self, canary: Path, outside: Path) -> int:
        bombs = {"zip-bomb": zip_bomb(), "gzip-bomb": gzip.compress(bytes(64 << 20))}
        for slot in SLOTS:
            for name, data in (executables(canary) | bombs).items():
                self.plant(slot, name, data)
        for name, data in headers().items():
            self.plant("model.safetensors", name, data)
        for slot, texts in TEXTS.items():
            for name, text in texts.items():
                self.plant(slot, name, text.encode())
        self.plant_links(outside)
        self.plant_names(outside)
        return self.count


def attack(root: Path, *options: str) -> list[dict[str, Any]]:
    """Let a child process open every artefact; return what it told."""
    command = [sys.executable, *options, str(Path(__file__).resolve()), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=root)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def judge(tmp_path: Path) -> int:
    """Attack a normal child and one without asserts; return how many artefacts each has refused."""
    root, outside, canary = tmp_path / "root", tmp_path / "outside", tmp_path / "canary"
    root.mkdir()
    outside.mkdir()
    count = Attacker(root).plant_all(canary, outside)
    for debug, options in ((True, ()), (False, ("-O",))):
        answers = attack(root, *options)
        assert len(answers) == count >= 40
        for answer in answers:
            assert answer["debug"] is debug
            assert answer["answer"] != "accepted", answer["name"]
            assert len(answer["answer"].splitlines()) == 1 and len(answer["answer"]) < 1000, answer
            assert answer["seconds"] < 2 and answer["megabytes"] < 200, answer
    assert not canary.exists() and list(tmp_path.rglob("canary")) == []
    return count


def test_r13_hostile_artefacts_are_refused_and_run_nothing(tmp_path: Path) -> None:
    count = judge(tmp_path)
    print(f"R13: {count}/{count} refused, normal and -O, 0 canaries")


@pytest.mark.full
def test_r13_full(tmp_path: Path) -> None:
    count = judge(tmp_path)
    found = unsafe_calls(SOURCE)
    print(f"R13: {count}/{count} refused, normal and -O, 0 canaries, {len(found)} unsafe loads in our source")
    assert found == []


def test_r13_the_payload_works_on_a_careless_loader(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    pickle.loads(executables(canary)["pickle2"])
    assert canary.exists(), "else the attack proves nothing"


# --- the source -------------------------------------------------------------------------------------------------------

BARRED_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
BARRED_CALLS = {"eval", "exec", "__import__", "compile", "os.system", "os.popen"}
BARRED_CALLS |= {"torch.load", "torch.hub.load", "torch.hub.load_state_dict_from_url"}
BARRED_CALLS |= {"yaml.unsafe_load", "yaml.full_load", "yaml.load_all"}


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def unsafe_in(text: str) -> list[str]:
    """Name every import and call in a source text that could run what it loads."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"import {m}" for m in modules if m.split(".")[0] in BARRED_MODULES]
            if isinstance(node, ast.ImportFrom) and node.module in ("torch", "yaml", "os"):
                found += [f"{node.module}.{a.name}" for a in node.names if f"{node.module}.{a.name}" in BARRED_CALLS]
        if isinstance(node, ast.Call):
            found += unsafe_call(node)
    return found


def unsafe_call(node: ast.Call) -> list[str]:
    name, words = dotted(node.func), {k.arg: k.value for k in node.keywords}
    if name == "yaml.load":
        loader = words.get("Loader")
        return [] if loader is not None and dotted(loader) == "StrictLoader" else [name]
    risky = [k for k in ("allow_pickle", "trust_remote_code", "shell") if k in words and not is_false(words[k])]
    return [name] if name in BARRED_CALLS else [f"{name}({k}=…)" for k in risky]


def is_false(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def unsafe_calls(folder: Path) -> list[str]:
    return [f"{p.name}: {what}" for p in sorted(folder.rglob("*.py")) for what in unsafe_in(p.read_text("utf-8"))]


def test_r13_our_source_has_no_unsafe_load() -> None:
    assert unsafe_calls(SOURCE) == []
    assert sum(p.read_text("utf-8").count("yaml.load(") for p in SOURCE.rglob("*.py")) == 1


def test_r13_our_guards_do_not_vanish_with_asserts() -> None:
    for room in ("core", "checkpoints"):
        for path in sorted((SOURCE / room).rglob("*.py")):
            asserts = [n.test for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Assert)]
            # `assert isinstance(…)` tells the type checker what is so already; anything else may be a guard
            guards = [
                ast.unparse(n) for n in asserts if not (isinstance(n, ast.Call) and dotted(n.func) == "isinstance")
            ]
            assert guards == [], path.name


@pytest.mark.parametrize(
    "planted",
    [
        "import pickle",
        "from pickle import loads",
        "import joblib.numpy_pickle as np",
        "torch.load(path, weights_only=True)",
        "from torch import load",
        "eval(text)",
        "exec(text)",
        "__import__(name)",
        "yaml.load(text)",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.full_load(text)",
        "np.load(path, allow_pickle=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=flag)",
        "subprocess.run(line, shell=True)",
        "os.system(line)",
    ],
)
def test_r13_the_scan_sees_a_planted_call(planted: str) -> None:
    assert unsafe_in(planted) != []


def test_r13_the_scan_leaves_honest_calls_alone() -> None:
    for honest in ("model.eval()", "re.compile(x)", "torch.compile(m)", "np.load(p, allow_pickle=False)"):
        assert unsafe_in(honest) == []
    assert unsafe_in("yaml.load(t, Loader=StrictLoader)") == []


if __name__ == "__main__":
    victim(Path(sys.argv[1]))

"""R13, R17 (others' models): hostile folders and GGUF files run nothing, read nothing outside, and are refused at once.

This file is also the victim: run as a program, it loads what it is pointed at and tells how that went.
"""

import json
import logging
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from reliability.foreign import copied, folder, gguf, join, llama_keys, llama_tensors, split, text_of
from reliability.test_r13_malicious import executables, headers, peak, zip_bomb

from heddle.checkpoints import find_source
from heddle.checkpoints.hf import load_model
from heddle.core import HeddleError

SLOWEST, MOST = 2.0, 200  # seconds, megabytes


# --- the victim -------------------------------------------------------------------------------------------------------


def victim(root: Path) -> None:
    """Load every model below a folder and print a line of JSON for each."""
    logging.disable()
    load_model(root / "good")
    find_source(root / "good.gguf").model()
    for path in sorted(root.glob("bad-*")):
        before, start = peak(since_now=True), time.process_time()
        try:
            find_source(path).model() if path.suffix == ".gguf" else load_model(path)
            answer = "accepted"
        except HeddleError as error:
            answer = str(error)
        spent = {"seconds": time.process_time() - start, "megabytes": peak() - before}
        print(json.dumps({"name": path.name, "answer": answer, "debug": __debug__} | spent))


# --- the attacker -----------------------------------------------------------------------------------------------------

ABSURD = [-1, 0, 1 << 20, 1 << 31, 10**12, 1 << 63, 10**30, 1e308, "1e999", "NaN", True, None, "big", [], {}]
NUMBERS = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"]
LAUGHS = '{"model_type": "llama", "a": ' + "[" * 100_000 + "]" * 100_000 + "}"


def configs(canary: Path) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Yield what to change in a config, or what to write in its place."""
    code = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
    yield "unknown-family", {"model_type": "evil", "auto_map": code, "trust_remote_code": True}
    yield "path-as-family", {"model_type": f"../../{canary}"}
    for i, value in enumerate([None, 5, [], {}, ["llama"], "x" * 3000, "a\nb"]):
        yield f"family-{i}", {"model_type": value}
    for name in NUMBERS:
        for i, value in enumerate(ABSURD):
            yield f"{name}-{i}", {name: value}
    yield "positions", {"max_position_embeddings": 10**12}
    yield "positions-2", {"max_position_embeddings": (1 << 31) - 1}
    yield "everything", {name: 1 << 30 for name in NUMBERS}
    yield "heads", {"num_attention_heads": 1 << 30, "hidden_size": 1 << 31, "head_dim": 2}
    yield "rope", {"rope_parameters": {"rope_type": "llama3", "factor": "1e999"}}
    yield "rope-theta", {"rope_parameters": {"rope_type": "default", "rope_theta": "NaN"}}
    yield "activation", {"hidden_act": "__import__('os').system"}
    yield "nested", LAUGHS
    yield "not-json", "\x80\x04cos\nsystem\n"
    yield "list", "[]"
    yield "long", '{"model_type": "llama", "a": "' + "x" * (5 << 20) + '"}'
    yield "many", '{"model_type": "llama", "a": [' + "[]," * 1_000_000 + "[]]}"
    yield "twice", '{"model_type": "llama", "model_type": "gpt2"}'


def written(change: dict[str, Any], path: Path) -> str:
    """Return a config with something changed; quoted numbers that JSON lacks stand bare."""
    text = json.dumps(json.loads(path.read_text()) | change)
    return text.replace('"1e999"', "1e999").replace('"NaN"', "NaN")


def indices() -> Iterator[tuple[str, Any]]:
    """Yield what an index could say."""
    outside = ["../outside/model.safetensors", "/etc/passwd", "sub/model.safetensors", "..", "", "evil.bin", "a\0b"]
    outside += ["link.safetensors", "pipe.safetensors", "folder.safetensors", "none.safetensors", "x" * 5000]
    for i, name in enumerate(outside):
        yield f"file-{i}", {"weight_map": {"model.norm.weight": name}}
    yield "no-map", {}
    yield "list", []
    yield "map-list", {"weight_map": ["model.safetensors"]}
    yield "map-number", {"weight_map": {"model.norm.weight": 5}}
    yield "empty", {"weight_map": {}}
    yield "promise", {"weight_map": {"nothing.weight": "model.safetensors"}}
    yield "many", {"weight_map": {str(i): f"{i}.safetensors" for i in range(100_000)}}


def weights(good: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield files of weights whose tensors are not the model's."""
    header, data = split(good)
    names = [name for name in header if name != "__metadata__"]
    first = header[names[0]]
    yield "missing", join({name: header[name] for name in names[:-1]}, data[: header[names[-1]]["data_offsets"][0]])
    yield "renamed", join({("evil" if name == names[3] else name): header[name] for name in names}, data)
    yield "newline", join({("evil\nname" * 300 if name == names[3] else name): header[name] for name in names}, data)
    yield "turned", join(header | {names[0]: first | {"shape": first["shape"][::-1]}}, data)
    yield "flat", join(header | {names[0]: first | {"shape": [1, *first["shape"]]}}, data)
    yield "half", join(header | {names[0]: first | {"dtype": "F16", "shape": [2, *first["shape"]]}}, data)
    yield "sides", join(header | {names[0]: first | {"shape": [1] * 100 + first["shape"]}}, data)
    yield "strange", join(header | {"more": {"dtype": "F32", "shape": [0], "data_offsets": [len(data)] * 2}}, data)
    yield "empty", join({}, b"")


def ggufs() -> Iterator[tuple[str, bytes]]:
    """Yield files that are not what they say."""
    keys, tensors = llama_keys(), llama_tensors()
    good = gguf(keys, tensors)
    start = b"GGUF" + struct.pack("<I", 3)
    yield "empty", b""
    yield "magic", b"GGML" + good[4:]
    yield "version", good[:4] + struct.pack("<I", 99) + good[8:]
    yield "tensors-2e63", start + struct.pack("<QQ", 1 << 63, 0)
    yield "keys-2e63", start + struct.pack("<QQ", 0, 1 << 63)
    yield "text-2e62", start + struct.pack("<QQQ", 0, 1, 1 << 62) + b"a"
    lists = struct.pack("<IIQ", 9, 9, 1 << 20)
    yield "list-long", start + struct.pack("<QQ", 0, 1) + text_of("a") + struct.pack("<IIQ", 9, 0, 1 << 40)
    yield (
        "lists-deep",
        start + struct.pack("<QQ", 0, 1) + text_of("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 10_000,
    )
    yield "lists-wide", start + struct.pack("<QQ", 0, 1) + text_of("a") + lists + struct.pack("<IQ", 8, 1 << 20) * 1000
    yield "texts", start + struct.pack("<QQ", 0, 1) + text_of("a") + struct.pack("<IIQ", 9, 8, 1 << 21) + bytes(8 << 21)
    yield "type", start + struct.pack("<QQ", 0, 1) + text_of("a") + struct.pack("<I", 77)
    yield "utf8", start + struct.pack("<QQ", 0, 1) + struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<II", 4, 1)
    for name in keys:
        yield f"without-{name}", gguf({k: v for k, v in keys.items() if k != name}, tensors)
        for i, value in enumerate([0, (1 << 32) - 1, -1.5, float("nan"), float("inf"), "big", True, [], [1, 2]]):
            yield f"{name}-{i}", gguf(keys | {name: value}, tensors)
    yield (
        "key-twice",
        good[:16]
        + struct.pack("<Q", len(keys) + 1)
        + text_of("general.name")
        + struct.pack("<I", 8)
        + text_of("x")
        + good[24:],
    )
    for name in ("token_embd.weight", "blk.0.attn_q.weight", "blk.1.ffn_down.weight", "output_norm.weight"):
        rest = {n: t for n, t in tensors.items() if n != name}
        yield f"no-{name}", gguf(keys, rest)
        yield f"turned-{name}", gguf(keys, rest | {name: torch.ones(3, 5)})
        yield f"strange-{name}", gguf(keys, rest | {name: tensors[name], "evil.weight": torch.ones(2)})
    yield "layer-huge", gguf(keys, tensors | {"blk.99999999999.attn_q.weight": torch.ones(16, 16)})
    place = good.find(text_of("blk.0.attn_q.weight")) + 8 + len("blk.0.attn_q.weight")
    for i, sides in enumerate([(0, 1 << 63), (1 << 63, 1 << 63), (1 << 32, 1 << 32), (0, 16)]):
        yield f"sides-{i}", good[: place + 4] + struct.pack("<QQ", *sides) + good[place + 20 :]
    yield "kind", good[: place + 20] + struct.pack("<I", 99) + good[place + 24 :]
    yield "offset", good[: place + 24] + struct.pack("<Q", 1 << 62) + good[place + 32 :]
    yield "sides-99", good[:place] + struct.pack("<I", 99) + good[place + 4 :]
    yield "cut", good[: len(good) // 2]


class Attacker:
    """Makes one model per attack, each good but for one thing."""

    def __init__(self, root: Path, outside: Path) -> None:
        self.root, self.outside, self.count = root, outside, 0
        self.good = folder(root / "good")
        (root / "good.gguf").write_bytes(gguf(llama_keys(), llama_tensors()))

    def make(self, name: str) -> Path:
        self.count += 1
        return copied(self.good, self.root / f"bad-{name}")

    def plant_links(self) -> None:
        """Put links, a pipe and a folder where files belong."""
        for slot in ("config.json", "model.safetensors"):
            made = self.make(f"link-{slot}")
            (self.outside / slot).write_bytes((made / slot).read_bytes())
            (made / slot).unlink()
            (made / slot).symlink_to(self.outside / slot)
            made = self.make(f"pipe-{slot}")
            (made / slot).unlink()
            os.mkfifo(made / slot)
            made = self.make(f"folder-{slot}")
            (made / slot).unlink()
            (made / slot).mkdir()
        made = self.make("false-snapshot")
        (made / "snapshots").mkdir()
        inner = made / "snapshots" / "c0ffee"
        inner.mkdir()
        (inner / "config.json").symlink_to(self.outside / "config.json")
        made.rename(self.root / "hub")
        inner = self.root / "hub" / "snapshots" / "c0ffee"
        (self.root / "bad-false-snapshot").symlink_to(inner)

    def plant_all(self, canary: Path) -> int:
        for name, change in configs(canary):
            made = self.make(f"config-{name}")
            config = made / "config.json"
            config.write_text(change if isinstance(change, str) else written(change, config))
            (made / "evil.py").write_text(f"open({str(canary)!r}, 'w')\nclass Evil: pass\n")
        for name, data in executables(canary).items() | {("zip-bomb", zip_bomb())}:
            (self.make(f"pickle-{name}") / "model.safetensors").write_bytes(data)
            self.count += 1
            (self.root / f"bad-pickle-{name}.gguf").write_bytes(data)
        made = self.make("bin-only")
        (made / "model.safetensors").unlink()
        (made / "pytorch_model.bin").write_bytes(executables(canary)["torch-zip"])
        for name, data in [*headers().items(), *weights((self.good / "model.safetensors").read_bytes())]:
            (self.make(f"weights-{name}") / "model.safetensors").write_bytes(data)
        for name, index in indices():
            made = self.make(f"index-{name}")
            (made / "model.safetensors.index.json").write_text(json.dumps(index))
            (made / "link.safetensors").symlink_to(self.outside / "model.safetensors")
            (made / "folder.safetensors").mkdir()
            os.mkfifo(made / "pipe.safetensors")
        for name, data in ggufs():
            self.count += 1
            (self.root / f"bad-{name}.gguf").write_bytes(data)
        self.plant_links()
        return self.count


def attack(root: Path, *options: str) -> list[dict[str, Any]]:
    """Let a child process load every model; return what it told."""
    command = [sys.executable, *options, str(Path(__file__).resolve()), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=root)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


HARMLESS = {  # these say nothing that would have to be refused
    "bad-general.name", "bad-without-general.name", "bad-tokenizer", "bad-without-tokenizer",
    "bad-without-llama.attention.head_count_kv", "bad-without-llama.rope.freq_base",
}  # fmt: skip


def judge(tmp_path: Path, *runs: tuple[bool, tuple[str, ...]]) -> tuple[int, int]:
    """Attack children; return how many models each has refused, and how many were harmless."""
    root, outside, canary = tmp_path / "root", tmp_path / "outside", tmp_path / "canary"
    root.mkdir()
    outside.mkdir()
    count, taken = Attacker(root, outside).plant_all(canary), 0
    for debug, options in runs:
        answers, taken = attack(root, *options), 0
        assert len(answers) == count >= 40
        for answer in answers:
            assert answer["debug"] is debug
            if answer["answer"] == "accepted":
                taken += 1
                assert answer["name"].startswith(tuple(HARMLESS)), answer["name"]
            assert len(answer["answer"].splitlines()) == 1 and len(answer["answer"]) < 1000, answer
            assert answer["seconds"] < SLOWEST and answer["megabytes"] < MOST, answer
    assert not canary.exists() and list(tmp_path.rglob("canary")) == []
    return count - taken, taken


def test_r13_hostile_models_of_others_are_refused_and_run_nothing(tmp_path: Path) -> None:
    refused, harmless = judge(tmp_path, (True, ()))
    print(f"R13: others' models: {refused} refused, {harmless} harmless, 0 canaries")


@pytest.mark.full
def test_r13_foreign_full(tmp_path: Path) -> None:
    refused, harmless = judge(tmp_path, (True, ()), (False, ("-O",)))
    print(f"R13: others' models: {refused} refused, {harmless} harmless, normal and -O, 0 canaries")


# --- what is said -----------------------------------------------------------------------------------------------------


def told(path: Path, harm: Callable[[Path], object]) -> str:
    """Return what is said of a folder that something was done to."""
    folder(path)
    harm(path)
    with pytest.raises(HeddleError) as error:
        load_model(path)
    return str(error.value)


def test_an_unknown_family_is_told_with_those_nearest_to_it(tmp_path: Path) -> None:
    def harm(path: Path) -> None:
        (path / "config.json").write_text(written({"model_type": "Qwen_2"}, path / "config.json"))

    said = told(tmp_path / "a", harm)
    assert said.startswith(f"{tmp_path / 'a' / 'config.json'}: model_type 'Qwen_2' is not known")
    assert "did you mean 'qwen2'?" in said


@pytest.mark.parametrize("what", ["missing", "turned"])
def test_a_tensor_that_is_missing_or_misshapen_is_named_with_its_folder(tmp_path: Path, what: str) -> None:
    def harm(path: Path) -> None:
        data = (path / "model.safetensors").read_bytes()
        (path / "model.safetensors").write_bytes(dict(weights(data))[what])

    said = told(tmp_path / "a", harm)
    assert said.startswith(f"{tmp_path / 'a'}: tensor ")
    names = [name for name in split((folder(tmp_path / "b") / "model.safetensors").read_bytes())[0] if name[0] != "_"]
    assert (names[-1] if what == "missing" else names[0]) in said
    assert ("is missing" if what == "missing" else "want the shape of") in said


def test_a_gguf_file_without_a_tensor_names_it_and_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(dict(ggufs())["no-blk.1.ffn_down.weight"])
    with pytest.raises(HeddleError, match=r"a\.gguf: tensor model\.layers\.1\.mlp\.down_proj\.weight is missing"):
        find_source(path).model()


if __name__ == "__main__":
    victim(Path(sys.argv[1]))

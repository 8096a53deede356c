"""R14: mutated safetensors headers and configs: none crashes, is slow or swells, and no unknown key goes unnamed.

Run as a program, this file reads swollen headers: memory is measured where no other test has left any.
"""

import ctypes
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from heddle.checkpoints.store import Snapshot, Store
from heddle.checkpoints.store.safetensors_io import read_tensors
from heddle.core import Config, ConfigError, HeddleError, decode, encode, part, settings
from heddle.core.system import parse_json, parse_yaml, read_config, to_yaml

SLOWEST = 1.0  # seconds of this process; other work on the machine does not count
SPARE = 24  # megabytes beyond twice the file: what the parsed form of a small file, and noise, may take


def peak(since_now: bool = False) -> float:
    """Return the most memory held so far, in megabytes, after a fresh start if asked for."""
    if since_now:
        ctypes.CDLL(None).malloc_trim(0)  # else memory kept from earlier work would hide what is used now
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


@dataclass
class Tally:
    """What became of the mutants."""

    refused: int = 0
    accepted: int = 0
    slowest: float = 0.0

    def take(self, what: object, use: Callable[[], object]) -> str:
        """Try one; anything but success or an error of one line fails the test."""
        start, told = time.process_time(), ""
        try:
            use()
            self.accepted += 1
        except HeddleError as error:
            told = str(error)
            self.refused += 1
            assert len(told.splitlines()) == 1 and len(told) < 1000, (what, told[:2000])
        spent = time.process_time() - start
        self.slowest = max(self.slowest, spent)
        assert spent < SLOWEST, (what, spent)
        return told

    def __str__(self) -> str:
        return f"{self.refused} refused, {self.accepted} harmless, slowest {self.slowest * 1000:.0f} ms"


# --- headers ----------------------------------------------------------------------------------------------------------

HOSTILE: list[Any] = [None, True, -1, 0, 1, 1 << 31, 1 << 53, 1 << 63, 1 << 64, 10**400, 1.5, -0.0, 1e308]
HOSTILE += [float("nan"), float("inf"), "", "F32", "O", "\x00", "é\u2028", "x" * 5000, [], [[]], {}, [0] * 2000]
HOSTILE += [[-1, 4], [1 << 63, 1 << 63], {"a": {"b": {}}}, {"dtype": "F32"}]


def mutate_tree(data: Any, draw: random.Random) -> Any:
    """Change one thing somewhere in plain data: a value, a key, a missing or a repeated entry."""
    if isinstance(data, dict) and data and draw.random() < 0.85:
        name = draw.choice(list(data))
        act = draw.randrange(6)
        rest = {k: v for k, v in data.items() if k != name}
        if act == 0:
            return rest
        if act == 1:
            return rest | {draw.choice(["__metadata__", "", "_target_", "a\nb", "x" * 3000, "\ud800"]): data[name]}
        if act == 2:
            return data | {name + draw.choice(["2", " ", "\x00"]): data[name]}
        return data | {name: mutate_tree(data[name], draw)}
    if isinstance(data, list) and data and draw.random() < 0.7:
        at = draw.randrange(len(data))
        return [*data[:at], mutate_tree(data[at], draw), *data[at + draw.randrange(2) :]]
    return draw.choice(HOSTILE)


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """Change bytes without regard to what they mean."""
    out = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 8])):
        at = draw.randrange(len(out) + 1)
        act = draw.randrange(5)
        if act == 0 and out:
            out[at % len(out)] ^= 1 << draw.randrange(8)
        elif act == 1:
            out[at:at] = bytes(draw.choices(b'{}[]":,0123456789-eE\\u\x00\xff ', k=draw.choice([1, 3, 40])))
        elif act == 2:
            del out[at : at + draw.choice([1, 5, 60])]
        elif act == 3:
            out[at:at] = draw.choice([b"[", b"{", b'{"a":', b"- "]) * draw.choice([10, 200, 100_000])
        else:
            out[at:at] = out[at : at + 80] * draw.choice([1, 50])
    return bytes(out)


def split(file: bytes) -> tuple[bytes, bytes]:
    length = int.from_bytes(file[:8], "little")
    return file[8 : 8 + length], file[8 + length :]


def join(header: bytes, data: bytes, length: int | None = None) -> bytes:
    return ((len(header) if length is None else length) % (1 << 64)).to_bytes(8, "little") + header + data


def header_mutants(original: bytes, draw: random.Random, count: int) -> Iterator[bytes]:
    header, data = split(original)
    for i in range(count):
        if i % 5 == 0:
            length = draw.choice(
                [0, 1, 7, 1 << 62, -1, len(header) + draw.randrange(-40, 400), draw.randrange(1 << 40)]
            )
            yield join(header, data, length)
        elif i % 5 < 3:
            yield join(json.dumps(mutate_tree(json.loads(header), draw)).encode("utf-8", "replace"), data)
        elif i % 5 == 3:
            yield join(mutate_bytes(header, draw), data)
        else:
            yield original[: draw.randrange(len(original))] if draw.random() < 0.3 else mutate_bytes(original, draw)


def original_file(tmp_path: Path) -> bytes:
    tensors = {
        f"layer.{i}.weight": torch.randn(2, 3).to(t) for i, t in enumerate([torch.float32, torch.bfloat16, torch.int64])
    }
    path = Store(tmp_path).save(
        Snapshot(1, {"model": tensors | {"scalar": torch.tensor(1), "none": torch.empty(0)}}, {})
    )
    return (path / "model.safetensors").read_bytes()


def run_headers(tmp_path: Path, count: int) -> Tally:
    tally, path = Tally(), tmp_path / "mutant.safetensors"
    for mutant in header_mutants(original_file(tmp_path / "store"), random.Random(14), count):
        path.write_bytes(mutant)
        tally.take(mutant[:400], lambda: read_tensors(path))
    assert tally.refused + tally.accepted == count and tally.refused > 0.8 * count
    return tally


def swollen_headers() -> Iterator[tuple[str, bytes, int]]:
    """Yield large headers that would take many times their size once parsed, and how much data lies behind them."""
    one = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    for data in (0, 64 << 20):
        yield "entries", json.dumps({str(i): one for i in range(100_000)}).encode(), data
        yield "metadata", json.dumps({"__metadata__": dict.fromkeys(map(str, range(10**6)), "")}).encode(), data
        yield "shape", json.dumps({"a": one | {"shape": [1] * 5_000_000}}).encode(), data
        yield "lists", b'{"a":[' + b"[]," * 5_000_000 + b"[]]}", data
        yield "depth", b'{"a":' + b"[" * (15 << 20), data
        yield "text", b'{"__metadata__":{"a":"' + b"x" * (15 << 20) + b'"}}', data
        yield (
            "small",
            json.dumps({"a": one | {"shape": [1] * 349_000}}, separators=(",", ":")).encode()[: 1 << 20],
            data,
        )


def test_r14_mutated_headers_are_refused_or_harmless(tmp_path: Path) -> None:
    print(f"R14: 500 headers: {run_headers(tmp_path, 500)}")


def read_swollen(folder: Path) -> None:
    """Read every swollen header, and tell what it cost."""
    tally, path, most = Tally(), folder / "swollen.safetensors", 0.0
    for name, header, data in swollen_headers():
        with path.open("wb") as file:
            file.write(join(header, b""))
            file.truncate(8 + len(header) + data)
        size, before = path.stat().st_size / 2**20, peak(since_now=True)
        tally.take(name, lambda: read_tensors(path))
        grown = peak() - before
        assert grown < 2 * size + SPARE, (name, size, grown)
        most = max(most, grown)
    print(f"R14: swollen headers: {tally}, at most {most:.0f} MB")
    assert tally.accepted == 0


def test_r14_swollen_headers_cost_little(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]
    print(done.stdout, end="")


@pytest.mark.full
def test_r14_headers_full(tmp_path: Path) -> None:
    print(f"R14: 5000 headers: {run_headers(tmp_path, 5000)}")


# --- configs ----------------------------------------------------------------------------------------------------------


class Mixer(Config):
    """A family of two."""


@part("attention")
class Attention(Mixer):
    heads: int = 4
    window: int | None = None
    position: Literal["rotary", "learned"] = "rotary"


@part("lstm")
class Lstm(Mixer):
    hidden: int = 8


@settings
class Stack(Config):
    layers: int = 2
    mixers: tuple[Mixer, ...] = (Attention(), Lstm())
    rates: tuple[float, float] = (0.9, 0.95)


@settings
class Run(Config):
    """A config with every kind of field."""

    name: str = "first"
    dropout: float = 0.1
    tied: bool = True
    stack: Stack = Stack()
    sources: dict[str, float]
    budget: int | str = 5


BASE = encode(Run(sources={"books": 1.0, "code": 2.0}))
KEYS = ["widht", "_target_", "__class__", "kind2", "", "a.b", "a\nb", "\u2028", "\x1b[31m", "stack.layers", "1", "é"]
KEYS += ["x" * 900]  # YAML itself refuses keys over 1,024 characters


def json_of(data: Any) -> str:
    return json.dumps(data)  # writes NaN and infinity, as an attacker would


def load(text: str, language: str) -> None:
    decode_again(parse_json(text) if language == "json" else parse_yaml(text))


def decode_again(data: Any) -> None:
    config = decode(Run, data)
    assert decode(Run, parse_yaml(to_yaml(encode(config)))) == config, "what is taken can be written and read again"


def config_mutants(draw: random.Random, count: int) -> Iterator[tuple[str, str]]:
    for i in range(count):
        language = "json" if i % 2 else "yaml"
        text = json_of(BASE) if language == "json" else to_yaml(BASE)
        if i % 4 < 2:
            yield json_of(mutate_tree(BASE, draw)), language  # JSON is YAML too
        else:
            yield mutate_bytes(text.encode(), draw).decode("utf-8", "replace"), language


def put_key(data: Any, key: str, draw: random.Random) -> Any:
    """Add an unknown key to some table that is a config."""
    places: list[Callable[[Any], None]] = [
        lambda d: d.update({key: 1}),
        lambda d: d["stack"].update({key: 1}),
        lambda d: d["stack"]["mixers"][0].update({key: 1}),
        lambda d: d["stack"]["mixers"][1].update({key: 1}),
    ]
    copy = json.loads(json.dumps(data))
    draw.choice(places)(copy)
    return copy


def shown(key: str) -> str:
    """Return the part of a key that a message of one line can show."""
    return repr(key)[1:-1][:60]


def run_unknown_keys(count: int) -> tuple[int, int]:
    draw, named, tally = random.Random(41), 0, Tally()
    for i in range(count):
        key = draw.choice(KEYS) if i % 2 else "".join(draw.choices("abcdefgh_", k=draw.randrange(7, 20)))
        text = json_of(put_key(BASE, key, draw))
        told = tally.take(text, lambda text=text, i=i: load(text, "json" if i % 3 else "yaml"))
        named += shown(key) in told
    return named, count


def bombs(many: int) -> Iterator[tuple[str, str, str]]:
    """Yield configs made to exhaust whoever reads them, each with its name and language."""
    for language in ("json", "yaml"):
        for opener in ("[", "{", '{"a":', '[{"a":[', '{"stack":'):
            yield f"depth {opener}", opener * 100_000, language
            yield f"depth 500 {opener}", opener * 500, language
        yield "lists", "[" + "[]," * many + "[]]", language
        yield "tables", "[" + "{}," * many + "{}]", language
        yield "numbers", "[" + "300," * (many - 1) + "1]", language
        yield "texts", "[" + '"ab",' * (many * 4 // 5) + '"b"]', language
        yield "keys", "{" + ",".join(f'"{i}":1' for i in range(many // 4)) + "}", language
        yield "keys twice", "{" + ",".join(f'"{i}":1' for i in [*range(many // 4), 5]) + "}", language
        yield "digits", "1" * 4 * many, language
        yield "fraction", "0." + "1" * 4 * many, language
        yield "exponent", "1e" + "9" * many, language
        yield "text", '{"name": "' + "x" * 3 * many + '"}', language
        yield "key", '{"' + "x" * 3 * many + '": 1}', language
        yield "kind", '{"stack": {"mixers": ["' + "x" * 3 * many + '"]}}', language
        yield "nan", '{"dropout": NaN}', language
        yield "huge", '{"dropout": 1e999}', language
        yield "long", '{"dropout": ' + "9" * 4000 + "}", language
        yield "target", '{"_target_": "os.system", "_args_": ["true"]}', language
        yield "surrogate", '{"name": "\\ud800"}', language
        yield "twice", '{"name": "a", "name": "b"}', language
    yield "aliases", "a: &a [x]\n" + "".join(f"b{i}: &b{i} [*a, *a]\n" for i in range(99)), "yaml"
    yield "merge", "a: &a {b: 1}\nc:\n  <<: *a\n", "yaml"
    yield "self", "&a [*a]", "yaml"
    yield "python", "!!python/object/apply:os.system [true]", "yaml"
    yield "binary", "name: !!binary " + "A" * 100_000, "yaml"
    yield "pairs", "? " * 50_000, "yaml"
    yield "dashes", "- " * 50_000, "yaml"
    yield "words", "a: " + "x " * many, "yaml"
    yield "lines", "a:\n" * 100_000, "yaml"
    yield "quotes", '"' * 100_000, "yaml"
    yield "inf", "dropout: .inf", "yaml"
    yield "documents", "---\n" * 10_000, "yaml"
    yield "key of lists", "{[1]: 2}", "yaml"
    yield "key of keys", "{{a: 1}: 2}", "yaml"
    yield "directive", "%YAML 9.9\n---\na: 1", "yaml"
    yield "date", "name: 2001-12-14t21:59:43.10-05:00", "yaml"
    yield "set", "!!set {a, b}", "yaml"
    yield "control", "name: \x07", "yaml"


def run_configs(count: int) -> Tally:
    tally = Tally()
    for text, language in config_mutants(random.Random(40), count):
        tally.take((language, text[:600]), lambda text=text, language=language: load(text, language))
    assert tally.refused > 0.5 * count
    return tally


def test_r14_the_unharmed_config_loads() -> None:
    load(json_of(BASE), "json")
    load(json_of(BASE), "yaml")
    load(to_yaml(BASE), "yaml")


def test_r14_mutated_configs_are_refused_or_harmless() -> None:
    print(f"R14: 200 configs: {run_configs(200)}")
    named, tried = run_unknown_keys(100)
    print(f"R14: {named}/{tried} unknown keys named")
    assert named == tried


def test_r14_the_measure_sees_a_text_that_swells() -> None:
    text = "[" + "[]," * 1_000_000 + "[]]"
    before = peak(since_now=True)
    json.loads(text)
    assert peak() - before > 2 * len(text) / 2**20 + SPARE


@pytest.mark.parametrize("many", [3_000, 60_000, 1_000_000])  # below, at and beyond the bounds on size
def test_r14_config_bombs_cost_little(tmp_path: Path, many: int) -> None:
    tally, most = Tally(), 0.0
    for name, text, language in bombs(many):
        path = tmp_path / f"bomb.{language}"
        path.write_text(text, encoding="utf-8")
        size, before = path.stat().st_size / 2**20, peak(since_now=True)
        tally.take((name, language), lambda path=path: decode_again(read_config(path)))
        grown = peak() - before
        assert grown < 2 * size + SPARE, (name, language, size, grown)
        most = max(most, grown)
    print(f"R14: bombs of {many}: {tally}, at most {most:.1f} MB")


@pytest.mark.parametrize("text", ['{"name": "\\ud800"}', '{"name": "a", "name": "b"}', '{"dropout": NaN}'])
def test_r14_json_that_others_let_pass_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_json(text)


@pytest.mark.full
def test_r14_configs_full() -> None:
    print(f"R14: 1000 configs: {run_configs(1000)}")
    named, tried = run_unknown_keys(1000)
    print(f"R14: {named}/{tried} unknown keys named")
    assert named == tried


if __name__ == "__main__":
    read_swollen(Path(sys.argv[1]))

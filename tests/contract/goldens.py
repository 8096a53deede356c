"""Goldens: what small models, short runs and their decoding give today, and the script that writes or compares it.

    PYTHONPATH=CHECKOUT/src .venv/bin/python tests/contract/goldens.py OUT.json       collect all of a checkout
    .venv/bin/python tests/contract/goldens.py --compare A.json B.json                bit by bit; exit code 1: differs
    .venv/bin/python tests/contract/goldens.py --freeze                               write names.json and goldens.json

It uses stable doors only (heddle.build, heddle.load, the command line, the registry of configs), so that the same
script runs on old and on new checkouts.
"""

import contextlib
import hashlib
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from contract import cases, compare, names, renames
from torch import Tensor

import heddle

HERE = Path(__file__).parent
NAMES, GOLDENS = HERE / "names.json", HERE / "goldens.json"
TIMED = ("tokens_per_second", "mfu", "seconds", "memory")  # of metrics.jsonl: what no two runs share
NEW = 12  # tokens
SAMPLE = 16  # values kept of a tensor


def digest(tensors: list[Tensor]) -> str:
    """Return one hash of tensors' shapes and bits, whatever their order and their names."""
    each = [hashlib.sha256(str(tuple(t.shape)).encode() + _bytes(t)).hexdigest() for t in tensors]
    return hashlib.sha256("".join(sorted(each)).encode()).hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous()
    return plain.float().numpy().tobytes() if plain.is_floating_point() else plain.numpy().tobytes()


def numbers(tensor: Tensor) -> dict[str, Any]:
    """Return a tensor's bits as a hash, its largest value, and a few of its values."""
    flat = tensor.detach().float().flatten()
    places = torch.linspace(0, flat.numel() - 1, SAMPLE).long()
    return {"sha256": digest([tensor]), "largest": flat.abs().max().item(), "values": flat[places].tolist()}


# --- logits -----------------------------------------------------------------------------------------------------------


def logits(label: str) -> dict[str, Any]:
    """Return the scores that a small model gives fixed ids; noise that its shapes alone decide wakes all its parts."""
    model = names.model(label, seed=3)
    if label == "vit":  # reads images, which no public door takes
        return numbers(torch.cat([w.flatten() for w in model.state_dict().values()]))
    with torch.no_grad():
        for weight in model.parameters():
            seed = int(hashlib.sha256(str(tuple(weight.shape)).encode()).hexdigest()[:8], 16)
            weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))
    draw = torch.Generator().manual_seed(7)
    ids, source = (torch.randint(4, 96, (2, size), generator=draw).tolist() for size in (11, 9))
    lm = heddle.LM(model, None)
    return numbers(lm.logits(ids, source=source) if reads_pairs(model) else lm.logits(ids))


def reads_pairs(model: torch.nn.Module) -> bool:
    """Tell an encoder-decoder, by the names of its two sides, since its class may move."""
    return {"encoder", "decoder"} <= {name for name, _ in model.named_children()}


# --- runs -------------------------------------------------------------------------------------------------------------


@cache
def _known() -> frozenset[str]:
    """Return every dotted path of the configs of those recipes that the cases use."""
    used = {recipe for recipe, _, _ in cases.RUNS.values() if "/" not in recipe}
    return frozenset(path for recipe in used for path in compare.flat(names.recipe(recipe), inner=True))


def key(old: str) -> str:
    """Return what the checkout calls a config key."""
    return next((new for new in cases.KEYS.get(old, ()) if new in _known()), old)


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder that holds the texts."""
    before = Path.cwd()
    folder.mkdir(parents=True, exist_ok=True)
    cases.write_texts(folder)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def train(name: str) -> Path:
    """Train a case through the command line, after the one that it starts from; return the run's folder."""
    recipe, changes, _ = cases.RUNS[name]
    if name in cases.BEFORE and not Path("runs", cases.BEFORE[name]).exists():
        train(cases.BEFORE[name])
    if recipe.startswith("runs/"):  # goes on with a run, whose folder is known by its recipe
        names.said("train", recipe, *(f"{key(path)}={value}" for path, value in changes.items()))
        return Path(recipe)
    words = {"name": name} | changes | {path: value for path, value in cases.ALL.items() if path not in changes}
    first = [
        path for path in ("model", "tokenizer", "data", "training.optimizer", "training.schedule") if path in words
    ]
    order = dict.fromkeys([*first, *words])  # a kind is chosen before its fields are set
    names.said("train", recipe, *(f"{key(path)}={words[path]}" for path in order))
    return Path("runs", name)


def run(name: str, folder: Path) -> dict[str, Any]:
    """Train a case, and decode from it: losses, weights, ids and scores."""
    with inside(folder):
        made = train(name)
        lines = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
        lines = [line for line in lines if not set(renames.ADDED_LINES) & set(line)]
        lm = heddle.load(made, device="cpu")
        weights = list(lm.model.state_dict().values())
        return {
            "metrics": [{k: v for k, v in line.items() if k not in TIMED} for line in lines],
            "weights": {
                "sha256": digest(weights),
                "norm": sum(w.double().square().sum().item() for w in weights) ** 0.5,
            },
            "decoding": {way: WAYS[way](lm, made) for way in cases.RUNS[name][2]},
        }


# --- decoding ---------------------------------------------------------------------------------------------------------

Way = Callable[[Any, Path], Any]


def _ids(**wishes: Any) -> Way:
    """Continue ids, or answer them."""
    return lambda lm, _: lm.generate_ids([lm.tokenizer.encode(p) for p in cases.PROMPTS], max_tokens=NEW, **wishes)


def _text(**wishes: Any) -> Way:
    """Continue texts."""
    return lambda lm, _: lm.generate(cases.PROMPTS, max_tokens=NEW, **wishes)


def _ruled(**rules: Any) -> Way:
    """Continue texts under rules."""
    return lambda lm, _: lm.generate(cases.PROMPTS, max_tokens=NEW, rules=heddle.rules(**rules))


def _packed(weights: str) -> Way:
    """Continue ids and score texts with weights in few bits."""

    def way(_: Any, made: Path) -> Any:
        lm = heddle.load(made, device="cpu", weights=weights)
        return {"ids": _ids()(lm, made), "score": _score(lm, made)}

    return way


def _lookup(lm: Any, _: Path) -> Any:
    """Continue texts that repeat themselves, with what followed before as a draft."""
    texts = [f"{prompt}{prompt}{prompt}" for prompt in cases.PROMPTS]
    draft = heddle.LookupDraft()
    plain, drafted = lm.generate(texts, max_tokens=NEW), lm.generate(texts, max_tokens=NEW, draft=draft)
    drawn = lm.generate(texts, max_tokens=NEW, draft=heddle.LookupDraft(), temperature=0.7, seed=5)
    return {"plain": plain, "drafted": drafted, "drawn": drawn}


def _score(lm: Any, _: Path) -> Any:
    """Score two sentences; an encoder-decoder reads them reversed as its sources."""
    source = {"source": [" ".join(reversed(s.split())) for s in cases.SENTENCES]}
    found = lm.score(cases.SENTENCES, **(source if reads_pairs(lm.model) else {}))
    return [{"ids": s.ids.tolist(), "logprobs": s.logprobs.tolist(), "bits": s.bits_per_byte} for s in found]


def _odds(*more: str) -> Way:
    """Continue a text through the command line, with the odds of each token."""
    wishes = ("--device", "cpu", "--json", "--logprobs", "2", "--max-tokens", "6", *more)
    return lambda _, made: json.loads(
        names.said("generate", cases.PROMPTS[0], "-m", str(made), *wishes).splitlines()[-1]
    )


WAYS: dict[str, Way] = {
    "greedy": _ids(),
    "sampled": _ids(temperature=0.9, top_k=50, top_p=0.95, seed=11, samples=2),
    "beams": _ids(beams=4, length_penalty=0.6),
    "groups": _ids(beams=4, groups=2, diversity=0.5, samples=2),
    "coverage": _ids(beams=2, coverage=0.2),
    "contrast": _ids(contrast=0.6, top_k=4),
    "penalties": _ids(repetition=1.3, presence=0.2, frequency=0.1, temperature=1.0, min_p=0.01, seed=2),
    "int8": _packed("int8"),
    "int4": _packed("int4"),
    "cache": _odds("--cache", "quantised"),
    "lookup": _lookup,
    "regex": _ruled(regex="[a-e]{3,6} (dog|cat)+"),
    "forbid": _ruled(forbid=["a", "e"], require="dog"),
    "score": _score,
    "embed": lambda lm, _: numbers(lm.embed(cases.SENTENCES)),
    "odds": _odds("--temperature", "0.5", "--seed", "4"),
}


# --- the script -------------------------------------------------------------------------------------------------------


def collect_goldens(tell: Callable[[str], object] = lambda line: None) -> dict[str, Any]:
    """Return all that is computed."""
    found: dict[str, Any] = {"logits": {label: logits(label) for label in cases.MODELS}, "runs": {}}
    with tempfile.TemporaryDirectory() as place:
        for name in cases.RUNS:
            start = time.perf_counter()
            found["runs"][name] = run(name, Path(place, name))
            tell(f"{name}: {time.perf_counter() - start:.1f} s")
    return found


def main(words: list[str]) -> int:
    """Collect, freeze or compare."""
    if words[:1] == ["--compare"]:
        before, after = (json.loads(Path(path).read_text()) for path in words[1:3])
        lines = compare.bitwise(before, after)
        print("\n".join(lines) if lines else "no difference")
        return int(bool(lines))
    start = time.perf_counter()
    print(f"heddle of {names.where()}", file=sys.stderr)
    found = {"names": names.collect()}
    print(f"names: {time.perf_counter() - start:.1f} s", file=sys.stderr)
    found["goldens"] = collect_goldens(lambda line: print(line, file=sys.stderr))
    if words == ["--freeze"]:
        NAMES.write_text(compare.pretty(found["names"]))
        GOLDENS.write_text(compare.pretty(found["goldens"]))
    else:
        Path(words[0]).write_text(compare.pretty(found))
    print(f"all: {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    os.environ.setdefault("HEDDLE_CACHE", tempfile.mkdtemp(prefix="heddle-contract-"))
    sys.exit(main(sys.argv[1:]))

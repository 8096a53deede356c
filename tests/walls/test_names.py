"""Retired names stay retired: no class, function, parameter, config key or file has a name that the field does not use.

The table is that of decision 0028. A word counts in the sense that was retired; an exception is listed with its reason.
Fields are config keys, and parameters of the command line are its options.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[2] / "src" / "heddle"

# Retired as a word of any name: the field's word stands beside it.
WORDS = {
    "how": "config, generation",
    "wish wishes wished": "options",
    "odds": "probabilities, logprobs",
    "guide guides guided guidance": "constraint",
    "bites track": "block decoder, verifier",
    "meeting meet meets met": "attention inputs, query, key, value",
    "asked answered": "requested, query",
    "together": "fused",
    "horizon horizons widen": "window warm-up",
    "sums": "gradient accumulation, reduction",
    "remembering remembered carrying": "stateful, recurrent",
    "recall recalled": "update of the KV cache",
    "bent bend": "softcap, activation",
    "surroundings": "run environment",
    "judge judges judged judging": "cross entropy, score",
    "likeness": "similarity",
    "lesson lessons": "chat encoding, training example",
    "furnish furnished": "project, build",
    "heed heeded": "use",
    "told tell tells telling said say saying whoever": "report, describe, options",
    "room rooms door house": "capacity, package, API",
    "thawed": "unfrozen",
    "overtime calm attentive": "rnn_op, activation_penalty, attention_rnn",
}
# Retired as a whole name.
NAMES = {
    "Opening": "Prefill",
    "Act": "CapturedGraph",
    "Fixed": "StaticState",
    "Walk": "StepDecoder",
    "Sums": "GradientAccumulation",
    "Roles": "SpecialTokens",
    "Cache": "KVCache",
    "Exact": "FullStore",
    "Rounded": "Int8Store",
    "Recording": "HasAuxiliaryLoss",
    "Packed": "QuantizedLinear",
    "Until": "StopStringConstraint",
    "at_rest": "eval_mode",
    "wide": "upcast",
    "few": "gemv",
    "hand_on": "publish",
    "leave": "publish",
    "give": "project",
    "pack": "quantize",
}
# Retired as a key of a config, that is as a field of a class.
KEYS = {
    "rate": "learning_rate",
    "decay": "weight_decay",
    "micro": "micro_batch",
    "also": "mix",
    "products": "matmul",
    "recompute": "activation_checkpointing",
}
# Retired as the stem of a file.
FILES = (
    "wishes opening preparing recorded sums recall few coded judge narrow split moving near sparse window "
    "overtime calm attentive asked kept spelling stretches recompute average pieces risk until likeness tuning "
    "write lessons placing openers named reading words lines packing "
)
# "FILE: NAME": why the name stays.
ALLOWED = {
    "core/metrics/entities.py: recall": "the share of entities that are found, beside precision",
    "decoding/knn/approximate.py: recall": "the share of the nearest neighbours that a search finds",
    "decoding/knn/approximate.py: measure_recall": "the share of the nearest neighbours that a search finds",
    "models/presets/captioners.py: show_attend_tell": "what its paper calls it: Show, Attend and Tell",
    "nn/layers/dropout.py: rate": "a dropout rate",
    "training/optimizers/optimizers.py: decay": "the share of steps in which a schedule decays (WSD)",
    "training/optimizers/weight_averaging.py: decay": "the decay of a moving average",
    "tasks/correcting/corrector.py: odds": "a ratio of two probabilities, and a key of the JSON output",
    "tasks/correcting/suggestions.py: rate": "the share of misspelt words, an error rate",
    "tasks/generation/chat.py: say": "what a user does in a conversation: a turn",
    "tasks/rescoring/rescore.py: sums": "counts that are summed",
}


class Name(NamedTuple):
    """A name, where it stands, and whether it is a field of a class."""

    path: str
    name: str
    field: bool = False


@cache
def names() -> list[Name]:
    """Return the names of all classes, functions, parameters and annotated fields."""
    return [name for path in sorted(SOURCE.rglob("*.py")) for name in _names_in(path)]


def _names_in(path: Path) -> Iterator[Name]:
    own = path.relative_to(SOURCE).as_posix()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            yield Name(own, node.name)
            for one in node.body:
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                    yield Name(own, one.target.id, field=True)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Name(own, node.name)
            yield from (Name(own, one.arg) for one in ast.walk(node.args) if isinstance(one, ast.arg))


def words(name: str) -> set[str]:
    """Split a name into its words, lower-cased."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)}


RETIRED = {word: better for row, better in WORDS.items() for word in row.split()}


def better(name: Name) -> str | None:
    """Return the field's word for a retired name; None: it is not retired."""
    plain = name.name.lstrip("_")
    found = NAMES.get(plain) or (KEYS.get(plain) if name.field else None)
    return found or next((RETIRED[word] for word in sorted(words(plain)) if word in RETIRED), None)


def faults() -> list[str]:
    """Return every use of a retired name, with the field's word."""
    found = {name: better(name) for name in names()}
    kept = {name for name in found if f"{name.path}: {name.name}" in ALLOWED}
    return sorted({f"{n.path}: {n.name}; say: {word}" for n, word in found.items() if word and n not in kept})


def test_retired_names_stay_retired() -> None:
    assert faults() == []


def test_retired_files_stay_retired() -> None:
    assert [path for path in sorted(SOURCE.rglob("*")) if path.stem in FILES.split()] == []


def test_every_exception_is_needed() -> None:
    needed = {f"{name.path}: {name.name}" for name in names() if better(name)}
    assert sorted(ALLOWED.keys() - needed) == []


def test_a_retired_name_is_noticed() -> None:
    for name in ("odds_of", "GuidedRow", "_wishes", "Opening", "at_rest"):
        assert better(Name("", name)), name
    assert better(Name("", "micro", field=True)) and not better(Name("", "rate"))
    assert not better(Name("", "sliding_window_attend")) and not better(Name("", "PackedRows"))

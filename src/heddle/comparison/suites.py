"""Suites of the library: `pocket` for two CPU cores, one family of parts at a time, and Narang's table."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from heddle.comparison.suite import (
    BudgetConfig,
    Edit,
    Suite,
    Variant,
    edit_model,
    read_suite,
    set_fields,
    swap_parts,
)
from heddle.core import UsageError, hint
from heddle.models.presets import PresetConfig
from heddle.recipes import RECIPES
from heddle.training import RunConfig

SuiteFunction = Callable[[], Suite]
SUITES: dict[str, SuiteFunction] = {}


def register_suite(make: SuiteFunction) -> SuiteFunction:
    """Register a suite of your own by the name of its function; a decorator."""
    SUITES[make.__name__] = make
    return make


def find_suite(name: str) -> Suite:
    """Return a suite by its name, or from a YAML or JSON file."""
    if name in SUITES:
        return SUITES[name]()
    path = Path(name)
    if path.suffix in (".yaml", ".yml", ".json"):
        if not path.is_file():
            raise UsageError(f"{name}: no such file")
        return read_suite(path)
    known = f"; suites: {', '.join(SUITES)}"
    raise UsageError(f"no suite is called {name!r}{hint(name, SUITES, known)}")


def _run(recipe: str, *overrides: str) -> RunConfig:
    return set_fields(*overrides)(RECIPES[recipe]())


def _small() -> RunConfig:
    """Return a base for a GPU: the small default model, a few minutes a run on a CPU."""
    return _run("first")


def _swaps(**kinds: str) -> tuple[Variant, ...]:
    return tuple(Variant(name, swap_parts(swap)) for name, swap in kinds.items())


def other_model(name: str, **sizes: Any) -> Edit:
    """Return an edit that takes another preset, with the vocabulary and the context of the base."""

    def edit(model: Any) -> Any:
        preset = PresetConfig(name=name, vocab=model.vocab, **sizes)
        return preset.expand()

    return edit_model(edit)


@register_suite
def pocket() -> Suite:
    """Five variants of a tiny Transformer on the built-in data: minutes on two CPU cores."""
    base = _run(
        "first",
        "model.layers=2",
        "model.width=64",
        "model.heads=4",
        "tokenizer.vocab=1024",
        "rows.length=128",
        "validation_rows=128",
    )
    variants = (
        *_swaps(layer_norm="norm=layer_norm", alibi="position=alibi", learned_positions="position=learned"),
        *_swaps(no_positions="position=none"),
        Variant("lstm", other_model("lstm_lm", layers=1, width=128)),
    )
    return Suite("pocket", base, variants, BudgetConfig(tokens=200 * 8 * 128))


@register_suite
def norms() -> Suite:
    """Normalization of every branch: layer norm, RMSNorm, partial RMSNorm, none."""
    kinds = ("layer_norm", "partial_rms_norm", "offset_rms_norm", "none")
    return Suite("norms", _small(), _swaps(**{kind: f"norm={kind}" for kind in kinds}))


@register_suite
def positions() -> Suite:
    """Positions: none, learned, sinusoidal, T5's bias, ALiBi, against rotary ones."""
    kinds = ("none", "learned", "sinusoidal", "t5", "alibi")
    return Suite("positions", _small(), _swaps(**{kind: f"position={kind}" for kind in kinds}))


@register_suite
def recurrent() -> Suite:
    """Recurrent language models at about the size of the base: RNN, GRU, LSTM, QRNN."""
    names: Sequence[str] = ("rnn_lm", "gru_lm", "lstm_lm", "qrnn_lm")
    return Suite("recurrent", _small(), tuple(Variant(n, other_model(n, layers=2, width=256)) for n in names))

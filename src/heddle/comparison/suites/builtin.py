"""Suites of the library: `pocket` for two CPU cores, one family of parts at a time, and Narang's table."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from heddle.comparison.suites.narang import narang
from heddle.comparison.suites.suite import (
    BudgetConfig,
    Suite,
    Variant,
    other_model,
    read_suite,
    set_fields,
    swap_parts,
)
from heddle.core import UsageError, hint
from heddle.models.presets import PRESETS
from heddle.recipes import RECIPES
from heddle.training import RunConfig, resolve_run

SuiteFunction = Callable[[], Suite]
SUITES: dict[str, SuiteFunction] = {"narang": narang}
FILES = (".yaml", ".yml", ".json")


def register_suite(make: SuiteFunction) -> SuiteFunction:
    """Register a suite of your own by the name of its function; a decorator."""
    SUITES[make.__name__] = make
    return make


def find_suite(name: str) -> Suite:
    """Return a suite by its name, or from a YAML or JSON file."""
    if name in SUITES:
        return SUITES[name]()
    if Path(name).suffix in FILES:
        if not Path(name).is_file():
            raise UsageError(f"{name}: no such file")
        return read_suite(Path(name))
    known = f"; suites: {', '.join(SUITES)}; or a recipe and what to change in it, such as first norm:layer_norm"
    raise UsageError(f"no suite is called {name!r}{hint(name, [*SUITES, *RECIPES], known)}")


def choose_suite(target: str, names: Sequence[str]) -> Suite:
    """Return the suite that the words of a command mean.

    The target is a suite, a file, or a recipe as the base. The names are variants of the suite, all of them where none
    is given, or changes of the base: norm:layer_norm swaps every norm, model:lstm_lm takes another preset.
    """
    suite, _, only = target.partition("/")
    if suite in SUITES and only:
        target, names = suite, [only, *names]
    changes = [changed(name) for name in names if ":" in name]
    if target in RECIPES and target not in SUITES:
        if len(changes) < len(names) or not changes:
            other = next((name for name in names if ":" not in name), "nothing")
            raise UsageError(
                f"{target}: want what to change in it, such as norm:layer_norm or model:lstm_lm, got {other}"
            )
        return Suite(target, resolve_run(target, [], Path("runs"), RECIPES).config, tuple(changes))
    found = find_suite(target)
    chosen = [name for name in names if ":" not in name]
    kept = found.only(chosen).variants if chosen else () if changes else found.variants
    return dataclasses.replace(found, variants=(*kept, *changes))


def changed(word: str) -> Variant:
    """Return a variant from a change of the base: FAMILY:KIND, or model:PRESET."""
    family, _, kind = word.partition(":")
    if family == "model":
        if kind not in PRESETS:
            raise UsageError(f"{word}: no preset is called {kind!r}{hint(kind, PRESETS)}")
        return Variant(word, other_model(kind))
    return Variant(word, swap_parts(f"{family}={kind}"))


# --- the suites -------------------------------------------------------------------------------------------------------


def _run(recipe: str, *overrides: str) -> RunConfig:
    return set_fields(*overrides)(RECIPES[recipe]())


def _small() -> RunConfig:
    """Return the small default model, a few minutes a run on a CPU."""
    return _run("first", "validation_rows=256")


def _swaps(family: str, *kinds: str) -> tuple[Variant, ...]:
    return tuple(Variant(kind, swap_parts(f"{family}={kind}")) for kind in kinds)


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
        "hardware.dtype=float32",
    )
    variants = (
        *_swaps("norm", "layer_norm"),
        *_swaps("position", "alibi", "learned"),
        Variant("no_positions", swap_parts("position=none")),
        Variant("lstm", other_model("lstm_lm", layers=1, width=128)),
    )
    return Suite("pocket", base, variants, BudgetConfig(tokens=200 * 8 * 128))


@register_suite
def norms() -> Suite:
    """Normalization of every branch: layer norm, partial RMSNorm, offset RMSNorm, none, against RMSNorm."""
    return Suite("norms", _small(), _swaps("norm", "layer_norm", "partial_rms_norm", "offset_rms_norm", "none"))


@register_suite
def positions() -> Suite:
    """Positions: none, learned, sinusoidal, T5's bias, ALiBi, against rotary ones."""
    return Suite("positions", _small(), _swaps("position", "none", "learned", "sinusoidal", "t5", "alibi"))


@register_suite
def recurrent() -> Suite:
    """Recurrent language models at about the size of the base: RNN, GRU, LSTM, QRNN."""
    names = ("rnn_lm", "gru_lm", "lstm_lm", "qrnn_lm")
    return Suite("recurrent", _small(), tuple(Variant(n, other_model(n, layers=2, width=256)) for n in names))


def _parts(name: str, *swaps: str) -> Variant:
    return Variant(name, swap_parts(*swaps))


def _attention(**fields: object) -> str:
    """Return the swap of every attention, with four heads and normalized queries and keys unless told otherwise."""
    usual = {"kind": "attention", "heads": 4, "projections": {"norm": {"kind": "rms_norm"}}}
    return f"mixer={json.dumps(usual | fields)}"


@register_suite
def attention() -> Suite:
    """Attention: heads, shared keys and values, scores, windows, sinks, value residual, latent, no attention at all."""
    sizes = {"latent": 64, "widths": {"key": 32, "rotary": 16, "value": 32}}
    variants = (
        _parts("one_head", _attention(heads=1)),
        _parts("sixteen_heads", _attention(heads=16)),
        _parts("multi_query", _attention(kv_heads=1)),
        _parts("grouped_query", _attention(kv_heads=2)),
        _parts("no_qk_norm", _attention(projections={})),
        _parts("additive_scores", "score=additive", "position=alibi"),  # a rotation means nothing to them
        _parts("sink", "score=sink"),
        _parts("window", "mask={kind: window, size: 64}"),
        _parts("window_with_sinks", "mask={kind: window, size: 64, sinks: 4}"),
        _parts("value_residual", "values=value_residual"),
        _parts("latent", _attention(kind="latent_attention", **sizes)),
        _parts("synthesizer", "mixer={kind: synthesizer, heads: 4}", "position=alibi"),
        _parts("lightweight_convolution", "mixer={kind: lightweight_convolution, taps: 15}", "position=none"),
    )
    return Suite("attention", _run("first", "validation_rows=256", "model.heads=4"), variants)


@register_suite
def llama() -> Suite:
    """A Llama-like base (2023) and a dozen edits: norms, gates, positions, heads, ties, biases, experts."""
    base = _run(
        "first",
        "name=llama",
        "model={name: llama, layers: 4, width: 128, heads: 4, context: 256}",
        "validation_rows=256",
    )
    variants = (
        _parts("layer_norm", "norm=layer_norm"),
        _parts("no_norm", "norm=none"),
        _parts("alibi", "position=alibi"),
        _parts("no_positions", "position=none"),
        _parts("gelu_feed_forward", "channel={kind: feed_forward, activation: gelu}"),
        _parts("relu_squared_feed_forward", "channel={kind: feed_forward, activation: relu_squared}"),
        _parts("geglu", "channel={kind: gated_feed_forward, activation: gelu}"),
        _parts("experts", "channel={kind: experts, experts: 4, expert: {kind: gated_feed_forward, hidden: 176}}"),
        _parts("multi_query", _attention(kv_heads=1, projections={})),
        _parts("qk_norm", _attention()),
        _parts("biases", _attention(projections={"bias": True, "output_bias": True})),
        _parts("value_residual", "values=value_residual"),
        _parts("layer_scale", "join=layer_scale"),
        Variant("tied_embeddings", set_fields("model.ties=[{share: head.weight, of: embedding.weight}]")),
    )
    return Suite("llama", base, variants)

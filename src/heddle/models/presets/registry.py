"""Registry of presets: every model by name, with the options (sizes, hyperparameters) that change it."""

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, TypeVar

from heddle.core import ConfigError, UsageError, check_at_least, decode_value, fields_of, hint, override, part, replace
from heddle.models.narang import CORRECTED, DEPTHS, VARIANTS, narang
from heddle.models.networks import Model, ModelConfig, NetworkConfig
from heddle.models.presets import transformers
from heddle.models.presets.captioners import (
    audio_visual_transformer,
    image_captioner,
    show_attend_tell,
    video_captioner,
)
from heddle.models.presets.decoders import first, gpt2, llama, speedrun
from heddle.models.presets.encoders import albert, bert, distilbert, electra, masked, pre_training, roberta, vit
from heddle.models.presets.mixture_of_experts import mixtral, switch
from heddle.models.presets.recurrent import (
    awd_lstm,
    gru_lm,
    lstm_lm,
    mogrifier_lm,
    qrnn_lm,
    rnn_lm,
    transformer_xl,
    window_lm,
)
from heddle.models.presets.seq2seq import seq2seq_attention, seq2seq_lstm, seq2seq_lstm_every_step
from heddle.models.presets.speech import speech_ctc, speech_lstm, speech_transformer
from heddle.nn.stack import check_depth

SIZES = ("layers", "width", "heads", "kv_heads", "hidden", "head_width", "vocab", "context", "experts")
DERIVED_SIZES = {"width": ("hidden", "head_width"), "heads": ("kv_heads", "head_width")}


@dataclass(frozen=True)
class Preset:
    """Preset: a function that makes a config, the options of one published size, and perhaps an edit of the result."""

    make: Callable[..., NetworkConfig]
    options: dict[str, Any] = field(default_factory=dict)
    edit: Callable[[Any], NetworkConfig] | None = None
    about: str | None = None  # what an edit does, in one line
    counts_ops: bool = False  # whether `heddle show` counts by the convention of Narang et al.

    @property
    def description(self) -> str:
        """Return one line that says what it is."""
        return self.about or (inspect.getdoc(self.make) or "").splitlines()[0]

    @property
    def option_names(self) -> list[str]:
        """Return the names of the options."""
        return list(inspect.signature(self.make).parameters)

    def config(self, **options: Any) -> NetworkConfig:
        """Return the model's config with some options changed."""
        for name in options:
            if name not in self.option_names:
                raise ConfigError.unknown(name, name, self.option_names)
        hints = typing.get_type_hints(self.make)
        options = {name: decode_value(hints[name], _number(value), name) for name, value in options.items()}
        _check_sizes(options)
        # a size that is derived from another is dropped when that one changes
        stale = {inner for outer, inners in DERIVED_SIZES.items() if outer in options for inner in inners}
        made = self.make(**{name: value for name, value in self.options.items() if name not in stale} | options)
        return made if self.edit is None else self.edit(made)


def _llama(layers: int, width: int, heads: int, hidden: int, **more: Any) -> Preset:
    return Preset(llama, {"layers": layers, "width": width, "heads": heads, "hidden": hidden} | more)


def _qwen3(layers: int, width: int, heads: int, hidden: int, **more: Any) -> Preset:
    sizes = {"layers": layers, "width": width, "heads": heads, "hidden": hidden}
    return Preset(transformers.qwen3, sizes | {"kv_heads": 8, "head_width": 128} | more)


Maker = TypeVar("Maker", bound=Callable[..., NetworkConfig])
LLAMA3 = {"vocab": 128_256, "context": 8192, "base": 500_000.0, "kv_heads": 8}

PRESETS: dict[str, Preset] = {
    "first": Preset(first),
    "speedrun": Preset(speedrun),
    "window_lm": Preset(window_lm),
    "rnn_lm": Preset(rnn_lm),
    "gru_lm": Preset(gru_lm),
    "lstm_lm": Preset(lstm_lm),
    "awd_lstm": Preset(awd_lstm),
    "mogrifier_lm": Preset(mogrifier_lm),
    "qrnn_lm": Preset(qrnn_lm),
    "transformer_xl": Preset(transformer_xl),
    "seq2seq_lstm": Preset(seq2seq_lstm),
    "seq2seq_lstm_every_step": Preset(seq2seq_lstm_every_step),
    "seq2seq_attention": Preset(seq2seq_attention),
    "gpt2": Preset(gpt2),
    "gpt2-medium": Preset(gpt2, {"layers": 24, "width": 1024, "heads": 16}),
    "gpt2-large": Preset(gpt2, {"layers": 36, "width": 1280, "heads": 20}),
    "gpt2-xl": Preset(gpt2, {"layers": 48, "width": 1600, "heads": 25}),
    "llama": Preset(llama, {"kv_heads": 8, "hidden": 8192}),
    "llama1-7b": _llama(32, 4096, 32, 11_008, eps=1e-6),
    "llama1-13b": _llama(40, 5120, 40, 13_824, eps=1e-6),
    "llama1-33b": _llama(60, 6656, 52, 17_920, eps=1e-6),
    "llama1-65b": _llama(80, 8192, 64, 22_016, eps=1e-6),
    "llama2-7b": _llama(32, 4096, 32, 11_008, context=4096),
    "llama2-13b": _llama(40, 5120, 40, 13_824, context=4096),
    "llama2-70b": _llama(80, 8192, 64, 28_672, context=4096, kv_heads=8),
    "llama3-8b": _llama(32, 4096, 32, 14_336, **LLAMA3),
    "llama3-70b": _llama(80, 8192, 64, 28_672, **LLAMA3),
}


LARGE = {"layers": 24, "width": 1024, "heads": 16}
HEADED = "with its head for masked tokens, ready to train"

PRESETS |= {
    "mixtral-8x7b": Preset(mixtral, {"kv_heads": 8, "hidden": 14_336}),
    "mixtral-8x22b": Preset(
        mixtral, {"layers": 56, "width": 6144, "heads": 48, "kv_heads": 8, "hidden": 16_384, "context": 65_536}
    ),
    "switch-base-8": Preset(switch),
    "switch-base-64": Preset(switch, {"experts": 64}),
    "switch-large-128": Preset(switch, {"layers": 24, "width": 1024, "heads": 16, "experts": 128}),
}

PRESETS |= {
    "bert-base": Preset(bert),
    "bert-large": Preset(bert, LARGE),
    "bert-base-masked": Preset(bert, edit=masked, about=f"BERT base {HEADED}"),
    "bert-base-pretraining": Preset(bert, edit=pre_training, about="BERT base with both heads of its pre-training"),
    "scibert": Preset(bert, {"vocab": 31_090}, about="SciBERT (Beltagy et al. 2019): BERT base, scientific vocabulary"),
    "roberta-base": Preset(roberta),
    "roberta-large": Preset(roberta, LARGE),
    "roberta-base-masked": Preset(roberta, edit=masked, about=f"RoBERTa base {HEADED}"),
    "distilbert": Preset(distilbert),
    "distilbert-masked": Preset(distilbert, edit=masked, about=f"DistilBERT {HEADED}"),
    "albert-base": Preset(albert),
    "albert-large": Preset(albert, LARGE),
    "albert-base-masked": Preset(albert, edit=masked, about=f"ALBERT base {HEADED}"),
    "electra-small": Preset(electra, {"layers": 12, "width": 256, "heads": 4, "generator": 4}),
    "electra-base": Preset(electra),
    "vit-base-16": Preset(vit),
    "vit-large-16": Preset(vit, LARGE),
}


PRESETS |= {
    "transformer_base": Preset(transformers.transformer),
    "transformer_big": Preset(transformers.transformer, {"width": 1024, "heads": 16, "hidden": 4096, "dropout": 0.3}),
    "transformer_pre_norm": Preset(transformers.transformer_pre_norm),
    "gpt": Preset(transformers.gpt),
    "gpt3-175b": Preset(transformers.gpt3),
    "mistral-7b": Preset(transformers.mistral, {"kv_heads": 8, "hidden": 14_336}),
    "qwen3-0.6b": _qwen3(28, 1024, 16, 3072),
    "qwen3-1.7b": _qwen3(28, 2048, 16, 6144),
    "qwen3-4b": _qwen3(36, 2560, 32, 9728),
    "qwen3-8b": _qwen3(36, 4096, 32, 12_288, tied=False),
    "t5-small": Preset(transformers.t5, {"layers": 6, "width": 512, "heads": 8, "head_width": 64}),
    "t5-base": Preset(transformers.t5),
    "t5-large": Preset(transformers.t5, {"layers": 24, "width": 1024, "heads": 16}),
    "t5.1.1-small": Preset(
        transformers.t5_1_1, {"layers": 8, "width": 512, "heads": 6, "head_width": 64, "hidden": 1024}
    ),
    "t5.1.1-base": Preset(transformers.t5_1_1),
    "t5.1.1-large": Preset(transformers.t5_1_1, {"layers": 24, "width": 1024, "heads": 16, "hidden": 2816}),
    "bart-base": Preset(transformers.bart),
    "bart-large": Preset(transformers.bart, {"layers": 12, "width": 1024, "heads": 16}),
    "marian": Preset(transformers.marian),
    "image_captioner": Preset(image_captioner),
    "video_captioner": Preset(video_captioner),
    "show_attend_tell": Preset(show_attend_tell),
    "audio_visual_transformer": Preset(audio_visual_transformer),
    "speech_transformer": Preset(speech_transformer),
    "speech_lstm": Preset(speech_lstm),
    "speech_ctc": Preset(speech_ctc),
}

PRESETS |= {
    f"narang/{slug}": Preset(narang, edit=edit, about=about, counts_ops=True)
    for slug, (edit, about) in (VARIANTS | CORRECTED | DEPTHS).items()
}


def presets() -> list[str]:
    """Return the names of all presets."""
    return list(PRESETS)


def register_preset(make: Maker) -> Maker:
    """Register a preset of your own by the name of its function, whose parameters are its options; a decorator."""
    name = make.__name__
    if name in PRESETS and PRESETS[name].make.__module__.startswith("heddle."):
        raise UsageError(f"register_preset: the library has a preset called {name!r}; want another name")
    PRESETS[name] = Preset(make)
    return make


def preset(name: str) -> Preset:
    """Return a preset by name; the message for an unknown name suggests the nearest."""
    if name not in PRESETS:
        near = hint(name, PRESETS, f"; known: {', '.join(PRESETS)}")
        raise UsageError(f"no preset is called {name!r}{near}")
    return PRESETS[name]


def build(name: str, seed: int = 0, **options: int | float | bool | str) -> Model:
    """Build a preset as a plain `nn.Module`: `build("gpt2", layers=2, width=64, heads=4, vocab=512)`."""
    decode_value(str, name, "name")  # callers may have no type checker
    decode_value(int, _number(seed), "seed")
    return preset(name).config(**options).build(int(seed))


def _check_sizes(options: Mapping[str, Any]) -> None:
    """Refuse a size that leaves nothing, and a depth beyond reason."""
    check_at_least(1, **{name: options[name] for name in SIZES if name in options})
    check_depth(layers=options.get("layers"))


def _number(value: Any) -> Any:
    """Return a number of another library, such as NumPy's, as Python's own."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


@part("preset")
class PresetConfig(ModelConfig):
    """A preset by name, with options that differ; an option of null keeps the preset's value.

    Any other field that a path on the command line changes is kept in `edits`, so that the vocabulary and the context
    still follow the run, and options may come before or after it.

    name: which preset; `heddle list presets` names all.
    layers: how many layers, on each side of an encoder-decoder.
    width: numbers in the vector of each position.
    heads: attention heads of each layer.
    kv_heads: heads of keys and values, for grouped-query attention.
    hidden: width inside each feed-forward network.
    vocab: how many token ids there are; null: as many as the tokenizer has.
    context: most tokens of a row; null: as many as rows have.
    dropout: share of numbers that training sets to zero at random, for regularization.
    dials: further options, which few presets have.
    edits: changes of the resulting config, by dotted path, in order.
    """

    name: str = "first"
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    hidden: int | None = None
    vocab: int | None = None
    context: int | None = None
    dropout: float | None = None
    dials: dict[str, Any] = field(default_factory=dict)
    edits: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in PRESETS:
            raise ConfigError.unknown("name", self.name, PRESETS)
        for name in self.left_out():
            if (value := fields_of(self)[name]) is not None:
                PRESETS[self.name].config(**{name: value})  # refuses it by name
        if twice := self.dials.keys() & {"name", *self.sizes}:
            raise ConfigError(f"dials.{min(twice)}", want=f"the field {min(twice)} itself", got=self.dials[min(twice)])
        _check_sizes(fields_of(self))
        if self.dials or self.edits:
            self.expand()  # so that errors are reported here

    @property
    def sizes(self) -> list[str]:
        """Return the names of the fields that are options of presets, each of some."""
        return [name for name in fields_of(self) if name not in ("name", "dials", "edits")]

    def left_out(self) -> list[str]:
        return [name for name in self.sizes if name not in PRESETS[self.name].option_names]

    def expand(self) -> NetworkConfig:
        own = {name: value for name, value in fields_of(self).items() if name in self.sizes and value is not None}
        config = preset(self.name).config(**own | self.dials)
        for path, value in self.edits.items():
            config = override(config, path, value)
        return config

    def with_override(self, path: str, value: Any) -> "PresetConfig":
        options, key = preset(self.name).option_names, path.partition(".")[0]
        known = dict.fromkeys((*options, *fields_of(self.expand())))
        if key not in known:
            raise ConfigError.unknown(key, key, known)
        if path in options:
            return replace(self, dials=self.dials | {path: value})
        earlier = {p: v for p, v in self.edits.items() if p != path and not p.startswith(f"{path}.")}
        return replace(self, edits=earlier | {path: value})  # last, and without those that it overrides

    def build(self, seed: int = 0) -> Model:
        return self.expand().build(seed)

"""Tokenizer configs of a Hugging Face folder: tokenizer class, named special tokens, added tokens, chat template."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from heddle.core import DataError, hint
from heddle.core.system import read_table
from heddle.text.chat import load_template
from heddle.text.formats.imported import MAX_TOKENS, NAMES
from heddle.text.tokenizers import TOKENIZER_CONFIG

MAP = "special_tokens_map.json"
ADDED = "added_tokens.json"
MODEL = "config.json"
UNBOUNDED = 1 << 30  # a larger limit means none
MAX_CHARACTERS = 1 << 12  # characters of a token
MAX_CONFIG_BYTES = 32 << 20  # bytes of a config file: some list thousands of added tokens
# The tokenizer class of a model type, if no config names one.
CLASSES = {
    "openai-gpt": "OpenAIGPTTokenizer",
    "gpt2": "GPT2Tokenizer",
    "opt": "GPT2Tokenizer",
    "gpt_neox": "GPTNeoXTokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "qwen3_moe": "Qwen2Tokenizer",
    "roberta": "RobertaTokenizer",
    "bart": "RobertaTokenizer",
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "albert": "AlbertTokenizer",
    "t5": "T5Tokenizer",
    "switch_transformers": "T5Tokenizer",
    "marian": "MarianTokenizer",
    "pegasus": "PegasusTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "llama": "LlamaTokenizer",
    "mistral": "LlamaTokenizer",
    "mixtral": "LlamaTokenizer",
    "phi3": "LlamaTokenizer",
    "gemma": "GemmaTokenizer",
    "gemma2": "GemmaTokenizer",
    "gemma3": "GemmaTokenizer",
    "gemma3_text": "GemmaTokenizer",
}
GENERIC = ("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")


@dataclass(frozen=True)
class TokenizerSettings:
    """The settings in a folder beside the vocabulary."""

    kind: str = ""  # the tokenizer class without `Fast`, or a model type whose class is not known; empty: not named
    config: Mapping[str, Any] = field(default_factory=dict)  # the tokenizer's config
    named: Mapping[str, AddedToken | None] = field(default_factory=dict)  # None: explicitly absent
    added: Mapping[int, AddedToken] = field(default_factory=dict)
    more: tuple[AddedToken, ...] = ()  # special tokens without a name
    template: str | None = None

    def class_of(self, known: Collection[str], files: str, default: str = "") -> str:
        """Return the tokenizer class of vocabulary files; a class that these files do not define is refused."""
        kind = self.kind or default
        if kind not in known:
            found = repr(kind[:80]) if kind else "none"
            want = f"want one of {', '.join(sorted(known))}, or a tokenizer.json"
            raise DataError(f"{files}: {TOKENIZER_CONFIG}: tokenizer_class: {want}, got {found}{hint(kind, known)}")
        return kind

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean setting; null means the default."""
        value = self.config.get(name)
        if value is not None and not isinstance(value, bool):
            raise DataError(f"{TOKENIZER_CONFIG}: {name}: want true or false, got {str(value)[:40]}")
        return default if value is None else value

    def number(self, name: str, default: int, most: int) -> int:
        """Return an integer setting."""
        value = self.config.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise DataError(f"{TOKENIZER_CONFIG}: {name}: want a number from 0 to {most}, got {str(value)[:40]}")
        return value

    @property
    def limit(self) -> int | None:
        """Return the maximum number of tokens, or None."""
        value = self.config.get("model_max_length")
        return int(value) if isinstance(value, int | float) and 0 < value < UNBOUNDED else None


def read_settings(folder: Path) -> TokenizerSettings:
    """Read the settings of a folder; every file may be missing."""
    config = _table(folder / TOKENIZER_CONFIG)
    listed = _listed(config)
    extra = _table(folder / MAP) if "added_tokens_decoder" not in config else {}
    words = {**config, **extra}
    more = _more(words)
    if "added_tokens_decoder" not in config:
        named = {_name(words[key]) for key in NAMES if words.get(key) is not None}
        listed = _old(folder, named | {_name(token) for token in more})
    flags = {token.content: token for token in listed.values()}
    return TokenizerSettings(
        kind=_kind(config, _table(folder / MODEL)),
        config=config,
        named={key: None if words[key] is None else _special(words[key], flags) for key in NAMES if key in words},
        added=listed,
        more=tuple(_special(token, flags) for token in more),
        template=load_template(folder),
    )


def _table(path: Path) -> dict[str, Any]:
    return read_table(path, MAX_CONFIG_BYTES) if path.is_file() else {}


def _kind(config: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Return the tokenizer class from the tokenizer's config, else from the model's."""
    for value in (config.get("tokenizer_class"), model.get("tokenizer_class")):
        if isinstance(value, str) and value.removesuffix("Fast") not in GENERIC:
            return value.removesuffix("Fast")
    kind = model.get("model_type")
    return CLASSES.get(kind, kind) if isinstance(kind, str) else ""


def _more(words: Mapping[str, Any]) -> list[object]:
    """Return the special tokens without a name."""
    found = words.get("additional_special_tokens") or words.get("extra_special_tokens") or []
    return list(found.values()) if isinstance(found, dict) else found if isinstance(found, list) else []


def _name(value: object) -> str:
    found = value.get("content") if isinstance(value, dict) else value
    if not isinstance(found, str) or not 0 < len(found) <= MAX_CHARACTERS:
        raise DataError(f"{TOKENIZER_CONFIG}: want a token's name, got {str(value)[:40]!r}")
    return found


def _special(value: object, flags: Mapping[str, AddedToken]) -> AddedToken:
    """Return a special token, with its flags from the list of added tokens."""
    name = _name(value)
    if name in flags:
        return flags[name]
    return _added(value, special=True) if isinstance(value, dict) else AddedToken(name, special=True, normalized=False)


def _added(data: Mapping[str, Any], special: bool) -> AddedToken:
    """Return an added token from its JSON description."""
    flags = {key: data.get(key, False) for key in ("single_word", "lstrip", "rstrip")}
    special = data.get("special", special)
    normalized = data.get("normalized", not special)
    if not all(isinstance(flag, bool) for flag in (*flags.values(), special, normalized)):
        raise DataError(f"{TOKENIZER_CONFIG}: token {_name(data)[:40]!r}: want flags that are true or false")
    return AddedToken(_name(data), special=special, normalized=normalized, **flags)


def _listed(config: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Return the added tokens in the tokenizer's config, by id."""
    found = config.get("added_tokens_decoder") or {}
    if not isinstance(found, dict) or not all(isinstance(entry, dict) for entry in found.values()):
        raise DataError(f"{TOKENIZER_CONFIG}: added_tokens_decoder: want an object of tokens, got {str(found)[:40]}")
    return {_id(id): _added(entry, special=False) for id, entry in found.items()}


def _old(folder: Path, special: set[str]) -> dict[int, AddedToken]:
    """Return the added tokens of added_tokens.json, in older folders."""
    found = _table(folder / ADDED)
    return {
        _id(id): AddedToken(_name(name), special=name in special, normalized=name not in special)
        for name, id in found.items()
    }


def _id(value: object) -> int:
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10 else value
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < MAX_TOKENS:
        raise DataError(
            f"{TOKENIZER_CONFIG}: added token: want an id from 0 to {MAX_TOKENS - 1}, got {str(value)[:40]}"
        )
    return number

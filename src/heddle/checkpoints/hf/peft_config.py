"""PEFT's LoRA config, read strictly: settings that would change the results and are not supported are refused."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heddle.checkpoints.hf.config_reader import HfConfig
from heddle.core import ConfigError
from heddle.nn.adapters import LoraConfig, path_matches

# Keys that do not change the logits, or that the tensors make clear.
IGNORED_KEYS = frozenset(
    {
        "auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "exclude_modules", "fan_in_fan_out",
        "inference_mode", "megatron_core", "peft_version", "qalora_group_size", "revision", "task_type",
    }
)  # fmt: skip
PLAIN_INITS = (True, False, "gaussian", "orthogonal")  # other initializations change the base weights
PATTERN = re.compile(r"[\w\\.\-]{1,400}")
MAX_RANK = 1 << 16


@dataclass(frozen=True)
class PeftLoraConfig:
    """The LoRA config of PEFT: rank, alpha and dropout for every module of the Hugging Face model."""

    rank: int
    alpha: float
    rslora: bool
    dropout: float
    ranks: Mapping[str, float]  # of modules that differ, by the end of their names
    alphas: Mapping[str, float]
    targets: tuple[str, ...] | None  # None: only the tensors tell
    layers: tuple[int, ...] | None
    layer_lists: tuple[str, ...]  # names of module lists; empty: any

    def lora(self, module: str) -> LoraConfig:
        """Return the LoRA config of one module."""
        rank, alpha = int(_by_suffix(self.ranks, module, self.rank)), _by_suffix(self.alphas, module, self.alpha)
        return LoraConfig(rank=rank, alpha=alpha, scaling="root" if self.rslora else "rank", dropout=self.dropout)

    def covers(self, module: str) -> bool:
        """Tell whether a module has an adapter."""
        if self.targets is not None and module in self.targets:
            return True
        hit = self.targets is None or any(path_matches(module, target) for target in self.targets)
        return hit and (self.layers is None or self._layer(module) in self.layers)

    def _layer(self, module: str) -> int | None:
        """Return the layer number in a module's name: the first number after the name of a module list."""
        words = module.split(".")
        for place, word in enumerate(words[1:-1], start=1):
            if word.isdecimal() and (words[place - 1] in self.layer_lists or (not self.layer_lists and place > 1)):
                return int(word)
        return None


def _by_suffix(patterns: Mapping[str, float], module: str, otherwise: float) -> float:
    return next((value for end, value in patterns.items() if path_matches(module, end)), otherwise)


def read_peft_config(data: Mapping[str, Any], where: str) -> PeftLoraConfig:
    """Read an adapter's config; unsupported settings are refused by name."""
    hf = HfConfig(data, where)
    hf.choice("peft_type", {"LORA": True})
    hf.require("bias", "none")
    if data.get("init_lora_weights", True) not in PLAIN_INITS:
        raise ConfigError(f"{where}: init_lora_weights", want="true or false", got=data["init_lora_weights"])
    layers = data.get("layers_to_transform")
    config = PeftLoraConfig(
        rank=_rank(hf.integer("r", 8), f"{where}: r"),
        alpha=hf.number("lora_alpha", 8),
        rslora=hf.flag("use_rslora", False),
        dropout=hf.number("lora_dropout", 0.0),
        ranks={end: _rank(n, f"{where}: rank_pattern") for end, n in _patterns(hf, "rank_pattern").items()},
        alphas=_patterns(hf, "alpha_pattern"),
        targets=_targets(hf),
        layers=(hf.integer("layers_to_transform"),) if isinstance(layers, int) else _layers(hf),
        layer_lists=_layer_lists(hf),
    )
    known = IGNORED_KEYS | {"init_lora_weights", "target_modules", "layers_pattern"}
    for key in hf.unread():
        if key not in known and data[key] not in (None, False, [], {}):
            raise ConfigError(f"{where}: {key}", want="nothing, since it is not supported", got=data[key])
    return config


def _rank(found: float, where: str) -> int:
    if found != int(found) or not 1 <= found <= MAX_RANK:
        raise ConfigError(where, want=f"a whole number from 1 to {MAX_RANK}", got=found)
    return int(found)


def _layers(hf: HfConfig) -> tuple[int, ...] | None:
    return tuple(hf.integers("layers_to_transform")) or None


def _patterns(hf: HfConfig, key: str) -> dict[str, float]:
    """Return a table of patterns; regular expressions that are more than a name are refused, not run."""
    part = hf.nested(key)
    found: dict[str, float] = {}
    for pattern in part.data:
        if not isinstance(pattern, str) or not PATTERN.fullmatch(pattern):
            raise ConfigError(part.where, want="names of modules, or their ends", got=pattern)
        found[pattern.replace("\\.", ".")] = part.number(pattern)
    return found


def _targets(hf: HfConfig) -> tuple[str, ...] | None:
    """Return the ends of module names; None for a regular expression, which is not run: the tensors tell."""
    found = hf.data.get("target_modules")
    if isinstance(found, str) or hf.data.get("exclude_modules"):
        return None
    if not isinstance(found, list) or not found or not all(isinstance(word, str) for word in found):
        raise ConfigError(f"{hf.where}: target_modules", want="a list of names", got=found)
    return tuple(found)


def _layer_lists(hf: HfConfig) -> tuple[str, ...]:
    found = hf.data.get("layers_pattern")
    names = [found] if isinstance(found, str) else found or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{hf.where}: layers_pattern", want="a name, or a list of names", got=found)
    return tuple(name for name in names if name)

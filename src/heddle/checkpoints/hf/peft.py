"""PEFT: LoRA adapters (Hu et al. 2021) saved to and loaded from folders of Hugging Face's `peft`."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heddle.checkpoints.hf.convert import FAMILIES, family_for
from heddle.checkpoints.hf.family import Family, NoCounterpart
from heddle.checkpoints.hf.folder import MAX_CONFIG_BYTES, write_file
from heddle.checkpoints.hf.peft_config import PeftLoraConfig, read_peft_config
from heddle.checkpoints.hf.weight_map import (
    IDENTITY,
    Concatenated,
    Identity,
    InterleavedHeads,
    Scaled,
    Transform,
    Transposed,
    WeightMap,
)
from heddle.checkpoints.store import get_tensor, open_tensors, serialize
from heddle.core import ConfigError, DamageError, UsageError, replace
from heddle.core.system import read_table, write_json
from heddle.models.networks import EncoderDecoderConfig, LanguageModelConfig, Model, NetworkConfig
from heddle.models.surgery import add_adapters
from heddle.nn.adapters import Lora, LoraConfig, find_linears, path_matches

ADAPTER_CONFIG, TENSORS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
PREFIX, DOWN, UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
ADAPTABLE = Identity | Scaled | Transposed | Concatenated | InterleavedHeads
TASKS = {LanguageModelConfig: "CAUSAL_LM", EncoderDecoderConfig: "SEQ_2_SEQ_LM"}


@dataclass(frozen=True)
class LoraMatrices:
    """The low-rank matrices of one module, and the scale of their product."""

    down: Tensor  # [rank, inputs]
    up: Tensor  # [outputs, rank]
    scale: float

    @property
    def rank(self) -> int:
        """Return the rank."""
        return len(self.down)


def is_adapter(path: Path) -> bool:
    """Tell whether a folder holds a PEFT adapter."""
    return (path / ADAPTER_CONFIG).is_file()


def base_model_name(path: Path) -> str | None:
    """Return the name or path of an adapter's base model, or None."""
    name = read_table(path / ADAPTER_CONFIG, MAX_CONFIG_BYTES).get("base_model_name_or_path")
    return name if isinstance(name, str) else None


def hf_module(entry: WeightMap) -> str | None:
    """Return the Hugging Face module of a weight map; None: PEFT cannot adapt it.

    The transform may only move or scale rows, which are then rows of the up-projection.
    """
    if not isinstance(entry.transform, ADAPTABLE) or len(entry.hf_names) != 1:
        return None
    name = entry.hf_names[0]
    return name.removesuffix(".weight") if name.endswith(".weight") else None


def without_transpose(transform: Transform) -> Transform:
    """Return a transform for low-rank matrices, which PEFT never transposes."""
    if isinstance(transform, Concatenated):
        return Concatenated()
    return IDENTITY if isinstance(transform, Transposed) else transform


def shortest_suffixes(chosen: Collection[str], among: Iterable[str]) -> list[str]:
    """Return the shortest suffixes that match the chosen names and no others."""
    among, left, found = list(among), sorted(chosen), []
    while left:
        words = left[0].split(".")
        ends = (".".join(words[-count:]) for count in range(1, len(words) + 1))
        end = next((e for e in ends if all(name in chosen for name in among if path_matches(name, e))), left[0])
        found.append(end)
        left = [name for name in left if not path_matches(name, end)]
    return found


# --- save -------------------------------------------------------------------------------------------------------------


def save_adapter(model: Model, path: Path, base: str | None = None, wanted: str | None = None) -> Family:
    """Save a model's adapters as a PEFT folder; `base` is the path or hub name of the base model.

    A Hugging Face module may hold several of Heddle's linear layers. Their low-rank matrices are then stacked: the rank
    is the sum of theirs, unless they share the down-projection.
    """
    config = model.config.expand()
    if not config.adapters:
        raise UsageError("this model has no adapters; its training changed the weights")
    plain = replace(config, adapters=())
    family = family_for(plain, wanted)
    linears = [(found.path, found.module.adapter) for found in find_linears(model)]
    over = {f"{path}.weight": adapter for path, adapter in linears if adapter is not None}
    weight_maps, matrices = list(family.weight_maps(plain)), dict[str, LoraMatrices]()
    for entry in weight_maps:
        if held := [name for name in entry.names if name in over]:
            module = hf_module(entry)
            adapters = [over.get(name) for name in entry.names]
            if module is None or any(isinstance(a, Lora) != (a is not None) for a in adapters):
                raise NoCounterpart(f"PEFT has no LoRA for {held[0].removesuffix('.weight')} of a {family.name}")
            outputs = [len(model.get_parameter(name)) for name in entry.names]
            loras = [a if isinstance(a, Lora) else None for a in adapters]
            matrices[module] = stack_adapters(entry.transform, loras, outputs)
    modules = {module: entry.transform for entry in weight_maps if (module := hf_module(entry)) is not None}
    transposed = any(without_transpose(modules[module]) != modules[module] for module in matrices)
    more = {"fan_in_fan_out": transposed, "task_type": TASKS.get(type(plain)), "base_model_name_or_path": base}
    _write_adapter(path, _adapter_config(config, matrices, modules) | more, matrices)
    return family


@torch.no_grad()
def stack_adapters(transform: Transform, adapters: Sequence[Lora | None], outputs: Sequence[int]) -> LoraMatrices:
    """Return the adapters of some linear layers as one of the matrix that holds them all."""
    held = [adapter for adapter in adapters if adapter is not None]
    first = held[0]
    if all(a.scale == first.scale and torch.equal(a.down, first.down) for a in held):
        down: Tensor = first.down
        ups = [down.new_zeros(n, len(down)) if a is None else a.up for a, n in zip(adapters, outputs, strict=True)]
    else:
        down, ups, at = torch.cat([a.down for a in held]), [], 0
        for adapter, count in zip(adapters, outputs, strict=True):
            ups.append(down.new_zeros(count, len(down)))
            if adapter is not None:
                rank = len(adapter.down)
                ups[-1][:, at : at + rank] = adapter.up * (adapter.scale / first.scale)
                at += rank
    (up,) = without_transpose(transform).to_hf(ups)
    return LoraMatrices(down.detach(), up.detach(), first.scale)


def _adapter_config(
    config: NetworkConfig, matrices: Mapping[str, LoraMatrices], among: Collection[str]
) -> dict[str, Any]:
    """Return PEFT's config: the rank and alpha of most modules, and patterns for those that differ."""
    loras = [adapter for adapter in config.adapters if isinstance(adapter, LoraConfig)]
    rslora = all(lora.scaling == "root" for lora in loras)
    alphas = {name: pair.scale * (pair.rank**0.5 if rslora else pair.rank) for name, pair in matrices.items()}
    rank = Counter(pair.rank for pair in matrices.values()).most_common(1)[0][0]
    alpha = Counter(alphas[name] for name, pair in matrices.items() if pair.rank == rank).most_common(1)[0][0]
    return {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": _as_int(alpha),
        "use_rslora": rslora,
        "lora_dropout": loras[0].dropout,
        "target_modules": shortest_suffixes(matrices.keys(), among),
        "rank_pattern": _differing({name: pair.rank for name, pair in matrices.items()}, rank),
        "alpha_pattern": _differing(alphas, alpha),
        "bias": "none",
        "inference_mode": True,
    }


def _differing(values: Mapping[str, float], usual: float) -> dict[str, float]:
    found: dict[str, float] = {}
    for value in sorted(set(values.values()) - {usual}):
        ends = shortest_suffixes({name for name, own in values.items() if own == value}, values)
        found |= {end.replace(".", "\\."): _as_int(value) for end in ends}
    return found


def _as_int(number: float) -> float:
    return int(number) if number == int(number) else number


def _write_adapter(path: Path, adapter_config: Mapping[str, Any], matrices: Mapping[str, LoraMatrices]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    tensors = {f"{PREFIX}{name}{DOWN}": pair.down.contiguous() for name, pair in matrices.items()}
    tensors |= {f"{PREFIX}{name}{UP}": pair.up.contiguous() for name, pair in matrices.items()}
    write_file(path / TENSORS, serialize(tensors, TENSORS))
    write_json(path / ADAPTER_CONFIG, dict(adapter_config))


# --- load -------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def load_adapter(model: Model, path: Path, wanted: str | None = None) -> Model:
    """Return a model with a PEFT adapter; all other weights are shared with the given model."""
    config = model.config.expand()
    if config.adapters:
        raise UsageError(f"{path}: this model has adapters already; merge them first")
    data = read_table(path / ADAPTER_CONFIG, MAX_CONFIG_BYTES)
    adapter_config, tensors = read_peft_config(data, str(path / ADAPTER_CONFIG)), _read_matrices(path)
    weight_maps = _weight_maps_for(model, tensors, wanted, path)
    _check_named(adapter_config, weight_maps, tensors, path)
    found: dict[LoraConfig, dict[str, tuple[Tensor, Tensor]]] = {}
    for module, (down, up) in tensors.items():
        lora, entry = adapter_config.lora(module), weight_maps[module]
        shapes = [model.get_parameter(name).shape for name in entry.names]
        _check(path, f"{module}{DOWN}", down, (lora.rank, shapes[0][1]))
        _check(path, f"{module}{UP}", up, (sum(shape[0] for shape in shapes), lora.rank))
        ups = without_transpose(entry.transform).from_hf([up], [torch.Size((shape[0], lora.rank)) for shape in shapes])
        own = {name.removesuffix(".weight"): (down, each) for name, each in zip(entry.names, ups, strict=True)}
        found.setdefault(lora, {}).update(own)
    return _apply_adapters(model, found)


def _apply_adapters(model: Model, found: Mapping[LoraConfig, Mapping[str, tuple[Tensor, Tensor]]]) -> Model:
    among = [each.path for each in find_linears(model)]
    loras = [replace(lora, targets=tuple(shortest_suffixes(held.keys(), among))) for lora, held in found.items()]
    made = add_adapters(model, *loras)
    for held in found.values():
        for name, (down, up) in held.items():
            made.get_parameter(f"{name}.adapter.down").copy_(down)
            made.get_parameter(f"{name}.adapter.up").copy_(up)
    return made


def _read_matrices(path: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the two matrices of each module in the file."""
    if not (path / TENSORS).is_file() and (path / PICKLED).is_file():
        raise UsageError(f"{path}: its adapter is pickled, and a pickle can run code; want {TENSORS}")
    with open_tensors(path / TENSORS) as file:
        names = set(file.keys())
        modules = sorted({name.removeprefix(PREFIX).removesuffix(DOWN).removesuffix(UP) for name in names})
        wanted = [f"{PREFIX}{module}{end}" for module in modules for end in (DOWN, UP)]
        if unexpected := sorted(names - set(wanted)):
            raise DamageError(f"{path / TENSORS}: tensor {unexpected[0]} is not part of a plain LoRA")
        if missing := [name for name in wanted if name not in names]:
            raise DamageError(f"{path / TENSORS}: tensor {missing[0]} is missing, and {len(missing) - 1} more")
        if not wanted:
            raise DamageError(f"{path / TENSORS}: holds no tensors")
        read = {name: get_tensor(file, name, path / TENSORS) for name in wanted}
    return {module: (read[f"{PREFIX}{module}{DOWN}"], read[f"{PREFIX}{module}{UP}"]) for module in modules}


def _weight_maps_for(model: Model, modules: Collection[str], wanted: str | None, path: Path) -> dict[str, WeightMap]:
    """Return the weight maps by Hugging Face module, in the family whose names the adapter uses."""
    config, unexpected = model.config.expand(), list[str]()
    known = {f"{found.path}.weight" for found in find_linears(model)}
    for name in FAMILIES if wanted is None else (wanted,):
        try:
            family = family_for(config, name)
        except (UsageError, ConfigError):
            continue
        weight_maps = [entry for entry in family.weight_maps(config) if known.issuperset(entry.names)]
        maps = {module: entry for entry in weight_maps if (module := hf_module(entry)) is not None}
        unexpected = sorted(set(modules) - maps.keys())
        if not unexpected:
            return maps
    if not unexpected:
        family_for(config, wanted)  # raises an error that says why
    raise DamageError(f"{path}: {unexpected[0]} is not a linear layer of the model, and {len(unexpected) - 1} more")


def _check_named(
    adapter_config: PeftLoraConfig, weight_maps: Collection[str], tensors: Collection[str], path: Path
) -> None:
    """Refuse a file whose tensors are not those that the adapter config names."""
    for module in tensors:
        if not adapter_config.covers(module):
            raise DamageError(f"{path}: tensors for {module}, which {ADAPTER_CONFIG} does not name")
    if adapter_config.targets is None:
        return
    for module in weight_maps:
        if adapter_config.covers(module) and module not in tensors:
            raise DamageError(f"{path}: tensor {PREFIX}{module}{DOWN} is missing, which {ADAPTER_CONFIG} names")


def _check(path: Path, name: str, found: Tensor, want: tuple[int, ...]) -> None:
    if found.shape != want or not found.is_floating_point():
        kind = str(found.dtype).removeprefix("torch.")
        raise DamageError(f"{path / TENSORS}: {name}: want shape {want}, got {tuple(found.shape)} of {kind}")

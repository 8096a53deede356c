"""Loading weights: names and shapes are checked before memory is allocated, then tensors are read into weights."""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import final

import torch
from torch import Tensor

from heddle.checkpoints.hf.weight_map import WeightMap
from heddle.core import DamageError, UsageError, brief
from heddle.models.networks import Model

# Names under which tied weights may be saved again, and tables that are recomputed.
COPIES = frozenset(
    {
        "lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight",
        "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight",
        "model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight",
    }
)  # fmt: skip
# Buffers in older files: causal masks and rotary frequencies.
RECOMPUTED = (".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq")
READERS = 8  # threads: they mostly wait for the disk, or for newly allocated memory
TRANSFORMED = 2  # weights transformed at a time: only these need extra memory
SMALL = 64 << 20  # bytes of weights that one thread reads alone
MAX_BUFFERS = 256 << 20  # bytes of buffers that are always allowed; above that, no more than the weights

QUOTES = "'\""

log = logging.getLogger("heddle")


class WeightSource(Mapping[str, Tensor], ABC):
    """Tensors under Hugging Face's names; their shapes are known before any is read."""

    @property
    @abstractmethod
    def where(self) -> str:
        """Return the folder or file, for messages."""

    @abstractmethod
    def shape(self, name: str) -> torch.Size:
        """Return the shape of a tensor without reading it."""

    @abstractmethod
    def read_into(self, name: str, into: Tensor) -> None:
        """Read a tensor into one of the same shape."""


@final
class InMemoryWeights(WeightSource):
    """Tensors of a mapping in memory."""

    def __init__(self, weights: Mapping[str, Tensor], where: str) -> None:
        self._weights, self._where = weights, where

    @property
    def where(self) -> str:
        return self._where

    def shape(self, name: str) -> torch.Size:
        return self._weights[name].shape

    def read_into(self, name: str, into: Tensor) -> None:
        into.copy_(self._weights[name])

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


@final
class RenamedWeights(WeightSource):
    """Tensors of an older file under their current names.

    A model saved without its head also lacks the first part of every name: `wte.weight`, not `transformer.wte.weight`.
    """

    def __init__(self, weights: WeightSource, old_suffixes: Mapping[str, str], wanted: Collection[str] = ()) -> None:
        self._weights, self._names = weights, {self._current_name(name, old_suffixes): name for name in weights}
        if self._names.keys().isdisjoint(wanted):
            whole = {name.partition(".")[2]: name for name in wanted}
            self._names = {whole.get(name, name): found for name, found in self._names.items()}

    @staticmethod
    def _current_name(name: str, old_suffixes: Mapping[str, str]) -> str:
        for before, now in old_suffixes.items():
            if name.endswith(before):
                return name.removesuffix(before) + now
        return name

    @property
    def where(self) -> str:
        return self._weights.where

    def shape(self, name: str) -> torch.Size:
        return self._weights.shape(self._names[name])

    def read_into(self, name: str, into: Tensor) -> None:
        self._weights.read_into(self._names[name], into)

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[self._names[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def bounded_weight_maps(weight_maps: Iterable[WeightMap], weights: WeightSource) -> list[WeightMap]:
    """Return the weight maps of a model, but no more than a folder of this size can have tensors for.

    That is enough to name a missing tensor, however many layers a config claims.
    """
    found, names = [], 0
    for entry in weight_maps:
        found.append(entry)
        names += len(entry.hf_names)
        if names > 4 * len(weights) + 1000:
            break
    return found


def match_weights(weight_maps: list[WeightMap], weights: WeightSource, ignored: Collection[str]) -> list[WeightMap]:
    """Return weight maps in the layout of a folder; every weight must have its tensors, and every tensor a weight."""
    weight_maps = [entry.found_in(weights.keys()) for entry in weight_maps]
    used = {name for entry in weight_maps for name in entry.hf_names}
    needed = {name: None for entry in weight_maps if entry.names for name in entry.hf_names}
    if missing := [name for name in needed if name not in weights]:
        raise DamageError(f"{weights.where}: tensor {missing[0]} is missing{_and_more(missing)}")
    left = sorted(name for name in weights.keys() - used if name not in COPIES and not name.endswith(RECOMPUTED))
    if unexpected := [name for name in left if name not in ignored]:
        name = brief(unexpected[0]).strip(QUOTES)
        raise DamageError(f"{weights.where}: unexpected tensor {name}{_and_more(unexpected)}")
    if left:
        log.info("not loaded, since the model does not use them: %s", ", ".join(left))
    return weight_maps


def _and_more(names: list[str]) -> str:
    return f", and {len(names) - 1} more" if len(names) > 1 else ""


def check_shapes(model: Model, weight_maps: list[WeightMap], weights: WeightSource) -> None:
    """Compare the shape of every tensor with its weight, on the meta device."""
    own = dict(model.named_parameters())
    if unfilled := sorted(own.keys() - {name for entry in weight_maps for name in entry.names}):
        raise DamageError(f"{weights.where}: missing tensor for {unfilled[0]}{_and_more(unfilled)}")
    for entry in weight_maps:
        if not entry.names:
            continue
        shapes = [own[name].shape for name in entry.names]
        hf_shapes = [weights.shape(name) for name in entry.hf_names]
        try:
            made = entry.transform.shapes(hf_shapes, shapes)
        except (RuntimeError, ValueError, IndexError):
            made = []
        if made != shapes:
            found = ", ".join(str(tuple(shape)) for shape in hf_shapes[:2])
            wanted = ", ".join(str(tuple(shape)) for shape in shapes[:3])
            where = f"{weights.where}: tensor {entry.hf_names[0]}"
            raise DamageError(f"{where}: want the shape of {entry.names[0]}, {wanted}, found {found}")


def check_buffers(model: Model, where: str) -> None:
    """Refuse huge position tables, whose size depends on the config alone."""
    buffers = sum(buffer.numel() * buffer.itemsize for buffer in model.buffers())
    weights = sum(weight.numel() * weight.itemsize for weight in model.parameters())
    if buffers > max(MAX_BUFFERS, weights):
        raise UsageError(f"{where}: its position tables would take {buffers} bytes, more than its weights: {weights}")


def _check_unused(entry: WeightMap, weights: WeightSource) -> None:
    """Check tensors that have no weight in Heddle, such as a bias that must be zero."""
    try:
        entry.transform.from_hf([weights[name] for name in entry.hf_names], [])
    except UsageError as error:
        raise UsageError(f"{weights.where}: tensor {entry.hf_names[0]}: {error}") from None


@torch.no_grad()
def copy_weights(model: Model, weight_maps: list[WeightMap], weights: WeightSource) -> None:
    """Copy every tensor into its weight; several threads read a large model."""
    own = dict(model.named_parameters())
    size = sum(weight.numel() * weight.itemsize for weight in own.values())
    for entry in weight_maps:
        if not entry.names and entry.hf_names[0] in weights:
            _check_unused(entry, weights)

    transforming = threading.Semaphore(TRANSFORMED)

    @torch.no_grad()  # threads start with gradients enabled
    def copy(entry: WeightMap) -> None:
        targets = [own[name] for name in entry.names]
        views = entry.transform.views(targets)
        if views is not None and all(view.is_contiguous() for view in views):
            for name, view in zip(entry.hf_names, views, strict=True):
                weights.read_into(name, view)
            return
        with transforming:
            tensors = [weights[name] for name in entry.hf_names]
            made = entry.transform.from_hf(tensors, [weight.shape for weight in targets])
            for weight, tensor in zip(targets, made, strict=True):
                weight.copy_(tensor)

    filled = [entry for entry in weight_maps if entry.names]
    if size <= SMALL:
        for entry in filled:
            copy(entry)
        return
    with ThreadPoolExecutor(READERS) as pool:
        for _ in pool.map(copy, filled):
            pass

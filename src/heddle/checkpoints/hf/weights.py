"""Filling: our names and shapes held against theirs before memory is taken, then each weight read to its place."""

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

# Names under which they may save a shared matrix once more, and tables that they compute anew.
COPIES = frozenset(
    {
        "lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight",
        "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight",
        "model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight",
    }
)  # fmt: skip
# What older files hold besides: causal masks, and how fast rotary pairs turn.
RECOMPUTED = (".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq")
READERS = 8  # threads: they wait, for a disk or for memory that is touched for the first time, more than they work
TRANSFORMED = 2  # links at a time whose numbers stand otherwise here: only these need memory besides the model's
SMALL = 64 << 20  # bytes of weights up to which one reader is enough
MAX_BUFFERS = 256 << 20  # bytes that a model's tables may always take; beyond, no more than its weights

QUOTES = "'\""

log = logging.getLogger("heddle")


class WeightSource(Mapping[str, Tensor], ABC):
    """Weights of theirs, wherever they lie: their shapes are known before any is read."""

    @property
    @abstractmethod
    def where(self) -> str:
        """Return what to call it in a message: a folder, a file."""

    @abstractmethod
    def shape(self, name: str) -> torch.Size:
        """Return the shape of a tensor without reading it."""

    @abstractmethod
    def read_into(self, name: str, into: Tensor) -> None:
        """Read a tensor into one of the same shape."""


@final
class InMemoryWeights(WeightSource):
    """Weights that are in memory, or are made one by one as a mapping is asked for them."""

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
    """Their weights under the names of today, where an older file ends some of them otherwise.

    A body saved without its head lacks the first word of every name: `wte.weight`, not `transformer.wte.weight`.
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
    """Return the links of a model, or so many that no folder of this size has the tensors of all.

    No more are needed to name one that is missing, however many layers a config speaks of.
    """
    found, names = [], 0
    for entry in weight_maps:
        found.append(entry)
        names += len(entry.hf_names)
        if names > 4 * len(weights) + 1000:
            break
    return found


def match_weights(
    weight_maps: list[WeightMap], weights: WeightSource, ignored_weights: Collection[str]
) -> list[WeightMap]:
    """Return each link in the way in which it is saved; every tensor must have a place, and every place a tensor."""
    weight_maps = [entry.found_in(weights.keys()) for entry in weight_maps]
    used = {name for entry in weight_maps for name in entry.hf_names}
    needed = {name: None for entry in weight_maps if entry.names for name in entry.hf_names}
    if missing := [name for name in needed if name not in weights]:
        raise DamageError(f"{weights.where}: tensor {missing[0]} is missing{_and_more(missing)}")
    left = sorted(name for name in weights.keys() - used if name not in COPIES and not name.endswith(RECOMPUTED))
    if strange := [name for name in left if name not in ignored_weights]:
        raise DamageError(
            f"{weights.where}: tensor {brief(strange[0]).strip(QUOTES)} has no place in the model{_and_more(strange)}"
        )
    if left:
        log.info("left out, for the model has no use for them: %s", ", ".join(left))
    return weight_maps


def _and_more(names: list[str]) -> str:
    return f", and {len(names) - 1} more" if len(names) > 1 else ""


def check_shapes(model: Model, weight_maps: list[WeightMap], weights: WeightSource) -> None:
    """Hold the shape of every tensor against the weight that it goes to: tried without numbers, so without memory."""
    own = dict(model.named_parameters())
    if unfilled := sorted(own.keys() - {name for entry in weight_maps for name in entry.names}):
        raise DamageError(f"{weights.where}: weight {unfilled[0]} is filled by no tensor{_and_more(unfilled)}")
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
            raise DamageError(
                f"{weights.where}: tensor {entry.hf_names[0]}: want the shape of {entry.names[0]}, {wanted}, found {found}"
            )


def check_buffers(model: Model, where: str) -> None:
    """Refuse positions by the billion: what a config alone asks for, no weight vouches for."""
    buffers = sum(buffer.numel() * buffer.itemsize for buffer in model.buffers())
    weights = sum(weight.numel() * weight.itemsize for weight in model.parameters())
    if buffers > max(MAX_BUFFERS, weights):
        raise UsageError(f"{where}: its tables of positions would take {buffers} bytes, its weights take {weights}")


def _check_unused(entry: WeightMap, weights: WeightSource) -> None:
    """Hold tensors that no weight of ours needs against what they must be."""
    try:
        entry.transform.from_hf([weights[name] for name in entry.hf_names], [])
    except UsageError as error:
        raise UsageError(f"{weights.where}: tensor {entry.hf_names[0]}: {error}") from None


@torch.no_grad()
def copy_weights(model: Model, weight_maps: list[WeightMap], weights: WeightSource) -> None:
    """Give every weight its numbers; a large model is read by several threads."""
    own = dict(model.named_parameters())
    size = sum(weight.numel() * weight.itemsize for weight in own.values())
    for entry in weight_maps:
        if not entry.names and entry.hf_names[0] in weights:
            _check_unused(entry, weights)

    transforming = threading.Semaphore(TRANSFORMED)

    @torch.no_grad()  # threads begin with gradients on
    def one(entry: WeightMap) -> None:
        targets = [own[name] for name in entry.names]
        views = entry.transform.views(targets)
        if views is not None and all(view.is_contiguous() for view in views):
            for name, view in zip(entry.hf_names, views, strict=True):
                weights.read_into(name, view)
            return
        with transforming:
            made = entry.transform.from_hf(
                [weights[name] for name in entry.hf_names], [weight.shape for weight in targets]
            )
            for weight, tensor in zip(targets, made, strict=True):
                weight.copy_(tensor)

    filled = [entry for entry in weight_maps if entry.names]
    if size <= SMALL:
        for entry in filled:
            one(entry)
        return
    with ThreadPoolExecutor(READERS) as pool:
        for _ in pool.map(one, filled):
            pass

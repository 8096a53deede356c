"""Packing: the large matrices of a model that has learned, put into eight or four bits; what is shared is packed once.

Maps inside the layers get the bits that are asked for; the head and tables of embeddings always eight, as small models
need. Routers, recurrent cells, experts and whatever is no plain map stay as they are.
"""

import logging
from collections.abc import Iterator
from typing import Literal, get_args

import torch
from torch import nn

from heddle.core import ConfigError, UsageError
from heddle.nn.base import Adapter, Linear, Role, Together, free
from heddle.nn.channels import Router
from heddle.nn.ends import FullEmbedding, LinearSoftmaxHead
from heddle.nn.quantization.quantized import SAVING, Packed, Packed8, PackedTable, packed4

log = logging.getLogger("heddle")
Bits = Literal["int8", "int4"]
MAPS = {Role.INSIDE, Role.INTO_STREAM}
MANY = 1024  # ids from which on a table is packed: the few rows of segments are read in other ways too


@torch.no_grad()
def pack(model: nn.Module, weights: Bits) -> int:
    """Put the large matrices of a model into so many bits, free their floats, and return how many were packed."""
    if weights not in get_args(Bits):
        raise ConfigError("weights", want=" or ".join(get_args(Bits)), got=weights)
    if any(isinstance(module, Adapter) for module in model.modules()):
        raise UsageError("weights: want adapters merged before weights are packed, for they were made for the floats")
    model.eval()
    shared = _owners(model)
    count = _pack_tables(model, shared)
    inside = {id(child) for module in model.modules() if isinstance(module, Router) for child in module.modules()}
    maps = [module for module in _maps(model) if id(module) not in inside and len(shared[id(module.weight)]) == 1]
    alone = {id(module) for module in maps}
    for together in [module for module in model.modules() if isinstance(module, Together)]:
        if all(id(one) in alone for one in together.maps):
            together.beside, together.product = None, _packed(torch.cat([one.weight for one in together.maps]), weights)
            for one in together.maps:
                free(one.weight)
                alone.remove(id(one))
    for module in maps:
        if id(module) in alone:
            module.product = _packed(module.weight, weights)
            free(module.weight)
    model.requires_grad_(False)
    _tell(model, weights)
    return count + len(maps)


def _tell(model: nn.Module, weights: Bits) -> None:
    """Say so where hardly anything could be done."""
    kinds = {type(module) for module in model.modules() if isinstance(module, Packed)}
    if not kinds:
        log.warning("weights: no matrix of this model can be packed; all stay as they were")
    elif weights == "int4" and kinds == {Packed8}:
        log.warning("weights: no matrix of this model has sides for 4 bits (inputs by 32, outputs by 16); they have 8")


def packed_in(model: nn.Module) -> bool:
    """Tell whether some matrices of a model are packed."""
    return any(isinstance(module, Packed) for module in model.modules())


def refuse_packed(model: nn.Module) -> None:
    """Say that such a model cannot be saved, if it is one."""
    if packed_in(model):
        raise UsageError(SAVING)


def _owners(model: nn.Module) -> dict[int, list[nn.Module]]:
    """Return all modules that each parameter belongs to."""
    found: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            found.setdefault(id(parameter), []).append(module)
    return found


def _maps(model: nn.Module) -> Iterator[Linear]:
    """Yield the maps that may be packed."""
    for module in model.modules():
        if isinstance(module, Linear) and module.roles["weight"] in MAPS and module.product is None:
            yield module


def _pack_tables(model: nn.Module, shared: dict[int, list[nn.Module]]) -> int:
    """Pack heads and tables of embeddings, a matrix of both once; return how many matrices that were."""
    tables: dict[int, list[FullEmbedding | LinearSoftmaxHead]] = {}
    for module in model.modules():
        if isinstance(module, LinearSoftmaxHead) or (isinstance(module, FullEmbedding) and len(module.weight) >= MANY):
            tables.setdefault(id(module.weight), []).append(module)
    whole = [owners for key, owners in tables.items() if len(owners) == len(shared[key])]
    for owners in whole:
        packed = Packed8(owners[0].weight)
        for owner in owners:
            if isinstance(owner, FullEmbedding):
                owner.table = PackedTable(packed)
            else:
                owner.product = packed
        free(owners[0].weight)
    return len(whole)


def _packed(weight: torch.Tensor, weights: Bits) -> Packed:
    return packed4(weight) if weights == "int4" else Packed8(weight)

"""Quantization of a trained model's large matrices to int8 or int4, for inference; a tied matrix is quantized once.

Linear layers inside the blocks get the requested bits, the head and embedding tables always int8, as small models need.
Routers, recurrent cells, experts and all else keep their dtype.
"""

import logging
from collections.abc import Iterator
from typing import Literal, get_args

import torch
from torch import nn

from heddle.core import ConfigError, UsageError
from heddle.nn.base import Adapter, FusedLinear, Linear, Role, release_weight
from heddle.nn.channels import Router
from heddle.nn.ends import FullEmbedding, LinearSoftmaxHead
from heddle.nn.quantization.prepacked_linear import remove_prepacked
from heddle.nn.quantization.quantized_linear import CANNOT_SAVE, Int8Linear, Int8Table, QuantizedLinear, int4_linear

log = logging.getLogger("heddle")
Bits = Literal["int8", "int4"]
ROLES = {Role.INSIDE, Role.INTO_STREAM}
MIN_TABLE_ROWS = 1024  # smaller tables, such as segments, are read in other ways too


@torch.no_grad()
def quantize_model(model: nn.Module, weights: Bits) -> int:
    """Quantize the large matrices of a model, free their floats, and return how many were quantized."""
    if weights not in get_args(Bits):
        raise ConfigError("weights", want=" or ".join(get_args(Bits)), got=weights)
    if any(isinstance(module, Adapter) for module in model.modules()):
        raise UsageError("weights: merge adapters before quantizing (merge_adapters)")
    model.eval()
    remove_prepacked(model)
    owners_of = _owners(model)
    count = _quantize_tables(model, owners_of)
    inside = {id(child) for module in model.modules() if isinstance(module, Router) for child in module.modules()}
    linears = [one for one in _linears(model) if id(one) not in inside and len(owners_of[id(one.weight)]) == 1]
    separate = {id(module) for module in linears}
    for fused in [module for module in model.modules() if isinstance(module, FusedLinear)]:
        if all(id(one) in separate for one in fused.linears):
            fused.fused_weight, fused.kernel = (
                None,
                _quantized(torch.cat([one.weight for one in fused.linears]), weights),
            )
            for one in fused.linears:
                release_weight(one.weight)
                separate.remove(id(one))
    for module in linears:
        if id(module) in separate:
            module.kernel = _quantized(module.weight, weights)
            release_weight(module.weight)
    model.requires_grad_(False)
    _warn_if_little(model, weights)
    return count + len(linears)


def _warn_if_little(model: nn.Module, weights: Bits) -> None:
    """Warn where nothing could be quantized, or nothing to 4 bits."""
    kinds = {type(module) for module in model.modules() if isinstance(module, QuantizedLinear)}
    if not kinds:
        log.warning("weights: no matrix of this model can be quantized; all keep their dtype")
    elif weights == "int4" and kinds == {Int8Linear}:
        log.warning("weights: no matrix of this model fits 4 bits (inputs by 32, outputs by 16); 8 bits are used")


def is_quantized(model: nn.Module) -> bool:
    """Tell whether some matrices of a model are quantized."""
    return any(isinstance(module, QuantizedLinear) for module in model.modules())


def refuse_quantized(model: nn.Module) -> None:
    """Refuse to save a quantized model."""
    if is_quantized(model):
        raise UsageError(CANNOT_SAVE)


def _owners(model: nn.Module) -> dict[int, list[nn.Module]]:
    """Return the modules that own each parameter, by its id."""
    found: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            found.setdefault(id(parameter), []).append(module)
    return found


def _linears(model: nn.Module) -> Iterator[Linear]:
    """Yield the linear layers that can be quantized."""
    for module in model.modules():
        if isinstance(module, Linear) and module.roles["weight"] in ROLES and module.kernel is None:
            yield module


def _quantize_tables(model: nn.Module, owners_of: dict[int, list[nn.Module]]) -> int:
    """Quantize heads and embedding tables, a tied matrix once; return how many matrices there were."""
    tables: dict[int, list[FullEmbedding | LinearSoftmaxHead]] = {}
    for module in model.modules():
        if isinstance(module, LinearSoftmaxHead) or (
            isinstance(module, FullEmbedding) and len(module.weight) >= MIN_TABLE_ROWS
        ):
            tables.setdefault(id(module.weight), []).append(module)
    tables_owned = [owners for key, owners in tables.items() if len(owners) == len(owners_of[key])]
    for owners in tables_owned:
        quantized = Int8Linear(owners[0].weight)
        for owner in owners:
            if isinstance(owner, FullEmbedding):
                owner.table = Int8Table(quantized)
            else:
                owner.kernel = quantized
        release_weight(owners[0].weight)
    return len(tables_owned)


def _quantized(weight: torch.Tensor, weights: Bits) -> QuantizedLinear:
    return int4_linear(weight) if weights == "int4" else Int8Linear(weight)

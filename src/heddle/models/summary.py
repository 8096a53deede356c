"""Summary: parameters, FLOPs per token, KV cache bytes and the tree of modules, without allocating weights."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import nn

from heddle.core import encode
from heddle.core.system import Hardware, choose_hardware
from heddle.models.narang import paper_ops
from heddle.models.networks import BaseTower, EncoderDecoder, Model, ModelConfig
from heddle.models.presets import PresetConfig, preset
from heddle.nn.attention import AttentionPart, Phase, Situation, explain_backend
from heddle.nn.base import MATRIX_ROLES, Module


@dataclass(frozen=True)
class Summary:
    """A model in numbers."""

    parameters: int
    trainable_parameters: int  # trainable parameters
    flops_per_token: int  # one training step, forward and backward, at the model's context
    flops_per_token_forward: int
    kv_bytes_per_token: int  # at two bytes an element; a full sliding window takes no more
    context: int
    paper_ops: int | None  # multiply-adds of one batch as Narang et al. counted them, for the variants of their table
    attention_backends: dict[str, Any]  # which backend computes each attention on this machine, and why
    config: dict[str, Any]

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters, a tied matrix once."""
    return sum(p.numel() for p in model.parameters())


def active_parameters(model: nn.Module) -> int:
    """Return the parameters that one token uses, a tied matrix once: fewer than all in a mixture of experts."""
    seen: set[int] = set()
    total = 0.0
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                total += parameter.numel() * (module.active_fraction() if isinstance(module, Module) else 1.0)
    return round(total)


def forward_flops(model: Model, length: int) -> int:
    """Return the forward FLOPs per token: two for each weight of a product, and those of mixing.

    Each module counts as often as a token passes it, without a discount for the half that a causal mask leaves out. An
    encoder-decoder counts per token of a target whose source is as long.
    """
    return int(sum(share * _own_flops(module, length) for module, share in _shares(model, Fraction(1))))


def training_flops(model: Model, length: int) -> int:
    """Return the training FLOPs per token: three times the forward ones, less the gradients of frozen matrices.

    The gradient of the stream counts in all layers, although none is computed below the first trainable weight.
    """
    frozen = sum(share * _product_flops(module, frozen=True) for module, share in _shares(model, Fraction(1)))
    return 3 * forward_flops(model, length) - int(frozen)


def _own_flops(module: Module, length: int) -> int:
    return _product_flops(module) + module.mixing_flops(length)


def _product_flops(module: Module, frozen: bool = False) -> int:
    """Return two for each element of a module's matrices, or only of the frozen ones."""
    own = {name: p.numel() for name, p in module.named_parameters(recurse=False) if not (frozen and p.requires_grad)}
    products = sum(2 * own[name] for name, role in module.roles.items() if name in own and role in MATRIX_ROLES)
    return int(products * module.active_fraction())


def _shares(module: nn.Module, share: Fraction) -> Iterator[tuple[Module, Fraction]]:
    """Yield every module with how often a token passes it: more than once in a loop, less after pooling."""
    if isinstance(module, Module):
        yield module, share
        share *= module.repeats
    for child in module.children():
        yield from _shares(child, share)
        if isinstance(child, Module):
            share /= child.pooling_factor


def summarize(config: ModelConfig) -> Summary:
    """Build a model on the meta device, which allocates nothing, and summarize it."""
    full = config.expand()
    model = build_meta(full)
    context = model.context
    forward = forward_flops(model, context)
    cached = model.decoder_tower if model.can_generate else nn.Identity()  # an encoder caches nothing
    state = sum(module.state_elements() * share for module, share in _shares(cached, Fraction(1)))
    return Summary(
        parameters=count_parameters(model),
        trainable_parameters=sum(p.numel() for p in model.trainable().values()),
        flops_per_token=training_flops(model, context),
        flops_per_token_forward=forward,
        kv_bytes_per_token=int(2 * state),
        context=context,
        paper_ops=paper_ops(model) if _counts_ops(config) and isinstance(model, EncoderDecoder) else None,
        attention_backends=attention_backends(model, choose_hardware()),
        config=encode(full),
    )


def attention_backends(model: Model, hardware: Hardware) -> dict[str, Any]:
    """Return the backend and the reason for each attention in training and decoding; equal layers are counted."""
    layers: dict[str, dict[str, Any]] = {}
    towers = [(path, module) for path, module in model.named_modules() if isinstance(module, BaseTower)]
    for name, tower in towers:
        phases: list[Phase] = ["training", "packed"]
        phases += ["decoding"] if model.can_generate and tower is model.decoder_tower else []
        where = [Situation(phase, hardware.device.type, hardware.dtype, model.context) for phase in phases]
        for path, part in tower.named_modules(prefix=name):
            if isinstance(part, AttentionPart):
                used = {one.phase: explain_backend(part, tower.position, tower.sight, one) for one in where}
                uses: dict[str, Any] = {
                    phase: {"backend": one.name, "reason": one.reason} for phase, one in used.items()
                }
                key = f"{name} {type(part)} {uses}"
                layers.setdefault(key, {"first": path.removesuffix(".part"), "count": 0, **uses})["count"] += 1
    device, dtype = hardware.device.type, str(hardware.dtype).removeprefix("torch.")
    return {"device": device, "dtype": dtype, "layers": list(layers.values())}


def _counts_ops(config: ModelConfig) -> bool:
    """Tell whether a config is a variant of the paper at the paper's size."""
    return (
        isinstance(config, PresetConfig) and preset(config.name).counts_ops and config == PresetConfig(name=config.name)
    )


def build_meta(config: ModelConfig) -> Model:
    """Build a model on the meta device, without memory for its weights."""
    with torch.device("meta"):
        return config.build()


@dataclass(frozen=True)
class TreeRow:
    """One line of the tree: path, type, shape and parameters."""

    path: str
    depth: int
    name: str
    shape: str
    parameters: int
    repeats: int = 1


def tree(model: nn.Module) -> list[TreeRow]:
    """Return the modules that have parameters, with equal layers folded into one."""
    return _rows(model, "", 0, {id(p): name for name, p in model.named_parameters()})


def _rows(module: nn.Module, path: str, depth: int, first: dict[int, str]) -> list[TreeRow]:
    """Return the lines below a module; `first` has the first name of each parameter, to show tied ones."""
    rows: list[TreeRow] = []
    children = [(n, c) for n, c in module.named_children() if any(True for _ in c.parameters())]
    index = 0
    while index < len(children):
        name, child = children[index]
        alike = 1
        while name.isdigit() and index + alike < len(children) and _alike(child, children[index + alike][1]):
            alike += 1
        label = name if alike == 1 else f"{name} … {children[index + alike - 1][0]}"
        inner = f"{path}.{name}" if path else name
        own = sum(p.numel() for n, p in child.named_parameters() if first[id(p)] == f"{inner}.{n}")
        rows.append(TreeRow(inner, depth, f"{label}: {type(child).__name__}", _shape(child, inner, first), own, alike))
        rows += _rows(child, inner, depth + 1, first)
        index += alike
    return rows


def _alike(left: nn.Module, right: nn.Module) -> bool:
    return type(left) is type(right) and str(left) == str(right) and _shapes(left) == _shapes(right)


def _shapes(module: nn.Module) -> list[tuple[str, torch.Size]]:
    return [(n, p.shape) for n, p in module.named_parameters()]


def _shape(module: nn.Module, path: str, first: dict[int, str]) -> str:
    words = []
    for name, p in module.named_parameters(recurse=False):
        shared = first[id(p)] != f"{path}.{name}"
        words.append(f"{name} = {first[id(p)]}" if shared else f"{name} {'×'.join(str(s) for s in p.shape)}")
    return ", ".join(words)

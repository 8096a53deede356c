"""Summary: a model's tree with shapes, parameters, FLOPs per token and bytes of state, without its weights."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from heddle.core import encode
from heddle.models.model import Model, ModelConfig
from heddle.nn import MATRICES, Module, Role, roles_of


@dataclass(frozen=True)
class Summary:
    """A model in numbers."""

    parameters: int
    flops_per_token: int  # one training step, forward and backward, at the model's context
    flops_per_token_forward: int
    kv_bytes_per_token: int  # at two bytes a number
    context: int
    config: dict[str, Any]

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def parameters_of(model: nn.Module) -> int:
    """Count the weights, a tied matrix once."""
    return sum(p.numel() for p in model.parameters())


def forward_flops(model: Model, length: int) -> int:
    """Count the forward FLOPs per token: two for each weight met in a product, and what mixing costs.

    Each module counts as often as a token passes it; no discount for the half that a causal mask leaves out.
    """
    roles = roles_of(model)
    shapes = dict(model.named_parameters())
    products = sum(2 * shapes[name].numel() * _turns(model, name) for name, role in roles.items() if role in MATRICES)
    if "head.weight" not in roles:  # tied: the embedding's matrix is met once more as the head
        products += sum(
            2 * shapes[n].numel() for n, role in roles.items() if role is Role.EMBEDDING and n == "embedding.weight"
        )
    mixing = sum(
        m.mixing_flops(length) * _turns(model, path) for path, m in model.named_modules() if isinstance(m, Module)
    )
    return products + mixing


def _turns(model: nn.Module, path: str) -> int:
    """Return how often a token passes through the module at a path: once, or as often as the loops around it turn."""
    turns, words = 1, path.split(".")
    for i in range(1, len(words)):
        outer = model.get_submodule(".".join(words[:i]))
        turns *= outer.passes if isinstance(outer, Module) else 1
    return turns


def summarise(config: ModelConfig) -> Summary:
    """Build a model on the meta device, which allocates nothing, and count."""
    full = config.expand()
    model = build_meta(full)
    context = model.context
    forward = forward_flops(model, context)
    state = sum(m.state_elements() * _turns(model, path) for path, m in model.named_modules() if isinstance(m, Module))
    return Summary(parameters_of(model), 3 * forward, forward, 2 * state, context, encode(full))


def build_meta(config: ModelConfig) -> Model:
    """Build a model without memory for its weights."""
    with torch.device("meta"):
        return config.build()


@dataclass(frozen=True)
class Row:
    """One line of the tree: where, what, its own shape and all parameters below."""

    path: str
    depth: int
    name: str
    shape: str
    parameters: int
    repeats: int = 1


def tree(model: nn.Module) -> list[Row]:
    """Return the modules that hold parameters, equal layers of a stack folded into one."""
    return _rows(model, "", 0, {id(p): name for name, p in model.named_parameters()})


def _rows(module: nn.Module, path: str, depth: int, first: dict[int, str]) -> list[Row]:
    """Go down; `first` holds the first name of each parameter, so that a tied one is shown as what it shares."""
    rows: list[Row] = []
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
        rows.append(Row(inner, depth, f"{label}: {type(child).__name__}", _shape(child, inner, first), own, alike))
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

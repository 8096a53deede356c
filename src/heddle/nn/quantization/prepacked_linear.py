"""Prepacked weights: float32 matrices in the layout of oneDNN's kernels on a CPU, for inference (weight prepacking).

Torch's own product arranges a matrix anew for each call, which costs more than the product itself if there are few
rows, as in decoding. The copy is beside the matrix, which training and saving go on using.
"""

import logging
import operator
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core.shapes import Float
from heddle.nn.base import FusedLinear, Linear, LinearKernel
from heddle.nn.ends import LinearSoftmaxHead

LAYOUT_ROWS = 16  # rows that the layout is made for; it serves any number
MIN_NUMBERS = 1 << 12  # smaller matrices are not worth a copy
CGROUPS = Path("/sys/fs/cgroup")
MEMORY_SHARE = 0.5  # of the free memory that the copies may take

log = logging.getLogger("heddle")


class PrepackedLinear(LinearKernel):
    """x · weight + bias by oneDNN, from a copy of one matrix in its layout, or of several on top of each other."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__()
        self.weights, self.versions = tuple(weights), _versions(weights)
        self.prepacked = _prepack(torch.cat([weight.detach() for weight in weights]))

    def __reduce__(self) -> tuple[type["PrepackedLinear"], tuple[Sequence[Tensor]]]:
        """Copy it by preparing the copied matrices: torch copies no tensor in oneDNN's layout."""
        return PrepackedLinear, (self.weights,)

    def forward(
        self, x: Float[Tensor, "... inputs"], weight: Float[Tensor, "_ inputs"], bias: Tensor | None
    ) -> Float[Tensor, "... outputs"]:
        if self._serves(x):
            return torch.ops.mkldnn._linear_pointwise(x, self.prepacked, bias, "none", [], "")  # type: ignore[no-any-return]
        matrix = self.weights[0] if len(self.weights) == 1 else torch.cat(self.weights)
        return F.linear(x, matrix.to(x.dtype), None if bias is None else bias.to(x.dtype))

    def _serves(self, x: Tensor) -> bool:
        """Tell whether the copy is current, and nothing is asked that it cannot do: gradients, other dtypes."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        return x.is_cpu and x.dtype is torch.float32 and self.versions == _versions(self.weights)


def prepack_linears(model: nn.Module) -> int:
    """Pack the matrices of linear layers and heads, if this machine's torch can and memory allows; return how many.

    Those that have changed since are packed anew.
    """
    for module in model.modules():
        if isinstance(module, Linear | FusedLinear | LinearSoftmaxHead) and _is_stale(module):
            module.kernel = None
    found = _not_prepacked(model)
    numbers = sum(weight.numel() for _, weights in found for weight in weights)
    if not found or not _can_prepack():
        return 0
    if 4 * numbers > MEMORY_SHARE * _available_bytes():
        log.info("weights are not prepacked: a copy of %s MB would fill the memory", 4 * numbers >> 20)
        return 0
    prepacked: dict[tuple[int, ...], PrepackedLinear] = {}
    for owner, weights in found:
        key = tuple(map(id, weights))
        owner.kernel = prepacked[key] = prepacked.get(key) or PrepackedLinear(weights)
    return len(prepacked)


def remove_prepacked(model: nn.Module) -> None:
    """Remove the copies."""
    for module in model.modules():
        if isinstance(module, Linear | FusedLinear | LinearSoftmaxHead) and isinstance(module.kernel, PrepackedLinear):
            module.kernel = None


def _available_bytes() -> float:
    """Return how much memory could be had; infinity where the system does not say."""
    path = Path("/proc/meminfo")
    if not path.exists():
        return float("inf")
    lines = dict(line.split(":", 1) for line in path.read_text().splitlines())
    return min(1024.0 * int(lines["MemAvailable"].split()[0]), _cgroup_bytes(Path("/proc/self/cgroup"), CGROUPS))


def _cgroup_bytes(groups: Path, root: Path) -> float:
    """Return how much memory the cgroups of this process and those above leave it; infinity without a limit."""
    least = float("inf")
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            base, limit, used = root, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base, limit, used = root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        here = base / path.lstrip("/")
        for folder in (here, *here.parents):
            if folder.is_relative_to(base):
                least = min(least, _left_in(folder, limit, used))
    return least


def _left_in(folder: Path, limit: str, used: str) -> float:
    """Return how much memory one cgroup leaves: what it caches of files can be had too."""
    try:
        left = int((folder / limit).read_text()) - int((folder / used).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such file, or no limit: max
        return float("inf")
    return float(left + int(stat.get("inactive_file", 0)))


def _is_stale(module: Linear | FusedLinear | LinearSoftmaxHead) -> bool:
    """Tell whether a matrix has changed since it was packed, or is another one."""
    kernel = module.kernel
    if not isinstance(kernel, PrepackedLinear):
        return False
    weights = [one.weight for one in (module.linears if isinstance(module, FusedLinear) else [module])]
    same = len(weights) == len(kernel.weights) and all(map(operator.is_, weights, kernel.weights))
    return not same or kernel.versions != _versions(weights)


def _not_prepacked(model: nn.Module) -> list[tuple[Linear | FusedLinear | LinearSoftmaxHead, list[Tensor]]]:
    """Return the modules to prepack, each with its matrices; what another kernel multiplies by is left alone."""
    every = [one for one in model.modules() if isinstance(one, FusedLinear)]
    fused = [one for one in every if one.kernel is None and all(part.kernel is None for part in one.linears)]
    whole = [one for one in every if one.kernel is not None]
    inside = {id(part) for one in (*fused, *whole) for part in one.linears}
    found: list[tuple[Linear | FusedLinear | LinearSoftmaxHead, list[Tensor]]] = []
    found += [(one, [part.weight for part in one.linears]) for one in fused]
    for one in model.modules():
        if isinstance(one, Linear | LinearSoftmaxHead) and one.kernel is None and id(one) not in inside:
            found.append((one, [one.weight]))
    return [(owner, weights) for owner, weights in found if _can_be_prepacked(weights)]


def _can_be_prepacked(weights: Sequence[Tensor]) -> bool:
    plain = all(one.is_cpu and one.dtype is torch.float32 and one.dim() == 2 for one in weights)
    return plain and sum(one.numel() for one in weights) >= MIN_NUMBERS


def _versions(weights: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return what changes if a matrix does; a tensor made in inference mode counts no changes."""
    return [(one.data_ptr(), 0 if one.is_inference() else one._version) for one in weights]


def _prepack(matrix: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(matrix.contiguous(), LAYOUT_ROWS)  # type: ignore[no-any-return]


def _can_prepack() -> bool:
    """Tell whether this build of torch has oneDNN's products."""
    if not torch.backends.mkldnn.is_available():
        return False
    matrix, x = torch.ones(16, 16), torch.ones(4, 16)
    try:
        with torch.no_grad():
            return torch.equal(torch.ops.mkldnn._linear_pointwise(x, _prepack(matrix), None, "none", [], ""), x * 16)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False

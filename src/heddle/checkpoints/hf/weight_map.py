"""Links: which weights of ours are which of theirs; each can be followed in both directions."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heddle.core import UsageError


class Transform(ABC):
    """How some of our weights and some of theirs hold the same numbers."""

    @abstractmethod
    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        """Return our weights, which have these shapes, given theirs."""

    @abstractmethod
    def to_hf(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return their weights, given ours."""

    def shapes(self, hf_shapes: Sequence[torch.Size], shapes: Sequence[torch.Size]) -> list[torch.Size]:
        """Return the shapes that ours would have, given those of theirs: tried on tensors without numbers."""
        return [made.shape for made in self.from_hf([torch.empty(shape, device="meta") for shape in hf_shapes], shapes)]

    def views(self, weights: Sequence[Tensor]) -> list[Tensor] | None:
        """Return the places within ours that theirs can be read to as they are; None where numbers must be moved."""
        return None


class Identity(Transform):
    """One of ours is one of theirs."""

    def views(self, weights: Sequence[Tensor]) -> list[Tensor]:
        return list(ours)

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return list(theirs)

    def to_hf(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(ours)


class Transposed(Transform):
    """Theirs stands the other way round."""

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [tensor.t() for tensor in theirs]

    def to_hf(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.T for tensor in ours]


IDENTITY = Identity()


@dataclass(frozen=True)
class Scaled(Transform):
    """Theirs is ours times a factor, which here stands outside the matrix."""

    factor: float

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [tensor / self.factor for tensor in theirs]

    def to_hf(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor * self.factor for tensor in ours]


@dataclass(frozen=True)
class Concatenated(Transform):
    """One of theirs holds several of ours, one after another along an axis of theirs."""

    transposed: bool = False  # theirs stands the other way round

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        (whole,) = theirs
        return list((whole.t() if self.transposed else whole).split([shape[0] for shape in shapes]))

    def to_hf(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        whole = torch.cat(list(ours))
        return [whole.T if self.transposed else whole]


@dataclass(frozen=True)
class Duplicated(Transform):
    """Several of theirs are copies of one of ours; the first is the one that they compute with."""

    copies: int

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [theirs[0]]

    def to_hf(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [ours[0].clone() for _ in range(self.copies)]


@dataclass(frozen=True)
class Unflattened(Transform):
    """Theirs has a matrix's second axis as several axes: a convolution's squares, where ours are rows of numbers."""

    inner: tuple[int, ...]

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [tensor.flatten(1) for tensor in theirs]

    def to_hf(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.unflatten(1, self.inner) for tensor in ours]


class Unsqueezed(Transform):
    """Theirs has one dimension more, of size one, at its front."""

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [tensor[0] for tensor in theirs]

    def to_hf(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor[None] for tensor in ours]


@dataclass(frozen=True)
class Zeros(Transform):
    """Theirs must be zeros, for we have no such weight."""

    shape: tuple[int, ...]

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        if any(tensor.any() for tensor in theirs):
            raise UsageError("want zeros, found other numbers, which the model has no weight for")
        return []

    def to_hf(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [torch.zeros(self.shape)]


@dataclass(frozen=True)
class SinusoidalTable(Transform):
    """Theirs is the table of sines, then cosines, which we compute; what is on disk is not read."""

    length: int
    width: int

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return []

    def to_hf(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        steps = torch.arange(self.length, dtype=torch.float64)[:, None]
        pairs = torch.arange(0, self.width, 2, dtype=torch.float64)
        angles = steps / 10_000 ** (pairs / self.width)
        return [torch.cat((angles.sin(), angles.cos()), dim=1).float()]


@dataclass(frozen=True)
class InterleavedHeads(Transform):
    """One of theirs holds several of ours, head by head."""

    heads: int

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        (whole,) = theirs
        by_head = whole.unflatten(0, (self.heads, -1))
        return [t.flatten(0, 1) for t in by_head.split([shape[0] // self.heads for shape in shapes], dim=1)]

    def to_hf(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat([t.unflatten(0, (self.heads, -1)) for t in ours], dim=1).flatten(0, 1)]


class Stacked(Transform):
    """Each of ours is a stack of several of theirs, all of the first before those of the second."""

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        each = len(theirs) // len(shapes)
        return [torch.stack(list(theirs[i * each : (i + 1) * each])) for i in range(len(shapes))]

    def views(self, weights: Sequence[Tensor]) -> list[Tensor]:
        return [part for stack in ours for part in stack]

    def shapes(self, hf_shapes: Sequence[torch.Size], shapes: Sequence[torch.Size]) -> list[torch.Size]:
        # counted, since torch takes a second to make ready for its first stack or product without numbers
        each = len(theirs) // len(shapes)
        groups = [theirs[i * each : (i + 1) * each] for i in range(len(shapes))]
        return [torch.Size((each, *group[0])) for group in groups if len(set(group)) == 1]

    def to_hf(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor for stack in ours for tensor in stack]


class ConcatenatedStacks(Transform):
    """One of theirs, a stack, holds several stacks of ours, one after another along its second axis."""

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        (whole,) = theirs
        return list(whole.split([shape[1] for shape in shapes], dim=1))

    def to_hf(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat(list(ours), dim=1)]


@dataclass(frozen=True)
class WeightMap:
    """Some of our weights, the weights of theirs that hold them, and how."""

    names: tuple[str, ...]
    hf_names: tuple[str, ...]
    transform: Transform = IDENTITY
    other: "WeightMap | None" = None  # another way in which they save the same; we write the first

    def among(self, names: Collection[str]) -> "WeightMap":
        """Return the way in which it is saved among these names."""
        if self.other is None or all(name in names for name in self.hf_names):
            return self
        found = self.other.among(names)
        return found if all(name in names for name in found.hf_names) else self


def table(names: Mapping[str, str], transform: Transform = IDENTITY) -> Iterator[WeightMap]:
    """Yield a link for each pair of names, ours first."""
    for name, hf_name in names.items():
        yield WeightMap((name,), (hf_name,), transform)


def each_layer(layers: int, path: str, hf_path: str, names: Mapping[str, str]) -> dict[str, str]:
    """Return the names of all layers, given those within one: `each_layer(2, "stack", "model.layers", {...})`."""
    return {f"{path}.{i}.{a}": f"{hf_path}.{i}.{b}" for i in range(layers) for a, b in names.items()}


def with_suffixes(names: Mapping[str, str], *kinds: str) -> dict[str, str]:
    """Return the names of weights, given those of modules: `with_kinds({"up": "c_fc"}, "weight", "bias")`."""
    return {f"{a}.{kind}": f"{b}.{kind}" for a, b in names.items() for kind in kinds}

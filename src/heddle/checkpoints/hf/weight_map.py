"""Weight maps: which of Heddle's weights are which Hugging Face tensors, and how to transform each into the other."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heddle.core import UsageError


class Transform(ABC):
    """How Hugging Face's tensors become Heddle's weights, and the reverse."""

    @abstractmethod
    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        """Return Heddle's weights, which have these shapes, given Hugging Face's tensors."""

    @abstractmethod
    def to_hf(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Return Hugging Face's tensors, given Heddle's weights."""

    def shapes(self, hf_shapes: Sequence[torch.Size], shapes: Sequence[torch.Size]) -> list[torch.Size]:
        """Return the shapes of Heddle's weights, given those of the tensors; computed on the meta device."""
        return [made.shape for made in self.from_hf([torch.empty(shape, device="meta") for shape in hf_shapes], shapes)]

    def views(self, weights: Sequence[Tensor]) -> list[Tensor] | None:
        """Return the views of the weights that each tensor can be read into unchanged; None: it must be transformed."""
        return None


class Identity(Transform):
    """The same tensor on both sides."""

    def views(self, weights: Sequence[Tensor]) -> list[Tensor]:
        return list(weights)

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return list(tensors)

    def to_hf(self, weights: Sequence[Tensor]) -> list[Tensor]:
        return list(weights)


IDENTITY = Identity()


class Transposed(Transform):
    """Hugging Face stores the transposed matrix."""

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [tensor.t() for tensor in tensors]

    def to_hf(self, weights: Sequence[Tensor]) -> list[Tensor]:
        return [weight.T for weight in weights]


@dataclass(frozen=True)
class Scaled(Transform):
    """Hugging Face stores the weight multiplied by a factor that Heddle applies in the forward pass."""

    factor: float

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [tensor / self.factor for tensor in tensors]

    def to_hf(self, weights: Sequence[Tensor]) -> list[Tensor]:
        return [weight * self.factor for weight in weights]


@dataclass(frozen=True)
class Concatenated(Transform):
    """Hugging Face stores several weights as one tensor, concatenated along the output dimension."""

    transposed: bool = False

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        (whole,) = tensors
        return list((whole.t() if self.transposed else whole).split([shape[0] for shape in shapes]))

    def to_hf(self, weights: Sequence[Tensor]) -> list[Tensor]:
        whole = torch.cat(list(weights))
        return [whole.T if self.transposed else whole]


@dataclass(frozen=True)
class Duplicated(Transform):
    """Hugging Face stores one weight several times, and computes with the first."""

    copies: int

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [tensors[0]]

    def to_hf(self, weights: Sequence[Tensor]) -> list[Tensor]:
        return [weights[0].clone() for _ in range(self.copies)]


@dataclass(frozen=True)
class Unflattened(Transform):
    """Hugging Face stores a convolution's kernel, of which Heddle flattens all dimensions but the first."""

    inner: tuple[int, ...]

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [tensor.flatten(1) for tensor in tensors]

    def to_hf(self, weights: Sequence[Tensor]) -> list[Tensor]:
        return [weight.unflatten(1, self.inner) for weight in weights]


class Unsqueezed(Transform):
    """Hugging Face's tensor has one more dimension in front, of size 1."""

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [tensor[0] for tensor in tensors]

    def to_hf(self, weights: Sequence[Tensor]) -> list[Tensor]:
        return [weight[None] for weight in weights]


@dataclass(frozen=True)
class Zeros(Transform):
    """Hugging Face's tensor has no counterpart in Heddle, so it must be all zeros."""

    shape: tuple[int, ...]

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        if any(tensor.any() for tensor in tensors):
            raise UsageError("want zeros, because the model has no parameter for it; found other numbers")
        return []

    def to_hf(self, weights: Sequence[Tensor]) -> list[Tensor]:
        return [torch.zeros(self.shape)]


@dataclass(frozen=True)
class Reordered(Transform):
    """Hugging Face has the features of the stream, along an axis of the weight, in another order: even places first."""

    axis: int

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [torch.stack(t.chunk(2, self.axis), self.axis + 1).flatten(self.axis, self.axis + 1) for t in tensors]

    def to_hf(self, weights: Sequence[Tensor]) -> list[Tensor]:
        return [
            w.unflatten(self.axis, (-1, 2)).transpose(self.axis, self.axis + 1).flatten(self.axis, self.axis + 1)
            for w in weights
        ]


@dataclass(frozen=True)
class SinusoidalTable(Transform):
    """Hugging Face stores sinusoidal positions, sines then cosines. Heddle computes them and does not read the file."""

    length: int
    width: int

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        return []

    def to_hf(self, weights: Sequence[Tensor]) -> list[Tensor]:
        steps = torch.arange(self.length, dtype=torch.float64)[:, None]
        pairs = torch.arange(0, self.width, 2, dtype=torch.float64)
        angles = steps / 10_000 ** (pairs / self.width)
        return [torch.cat((angles.sin(), angles.cos()), dim=1).float()]


@dataclass(frozen=True)
class InterleavedHeads(Transform):
    """Hugging Face stores several weights as one tensor, interleaved head by head."""

    heads: int

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        (whole,) = tensors
        by_head = whole.unflatten(0, (self.heads, -1))
        return [t.flatten(0, 1) for t in by_head.split([shape[0] // self.heads for shape in shapes], dim=1)]

    def to_hf(self, weights: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat([t.unflatten(0, (self.heads, -1)) for t in weights], dim=1).flatten(0, 1)]


class Stacked(Transform):
    """Each of Heddle's weights is a stack of several tensors; all tensors of the first weight come first."""

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        each = len(tensors) // len(shapes)
        return [torch.stack(list(tensors[i * each : (i + 1) * each])) for i in range(len(shapes))]

    def views(self, weights: Sequence[Tensor]) -> list[Tensor]:
        return [tensor for stack in weights for tensor in stack]

    def shapes(self, hf_shapes: Sequence[torch.Size], shapes: Sequence[torch.Size]) -> list[torch.Size]:
        # computed by hand: torch needs a second before its first stack on the meta device
        each = len(hf_shapes) // len(shapes)
        groups = [hf_shapes[i * each : (i + 1) * each] for i in range(len(shapes))]
        return [torch.Size((each, *group[0])) for group in groups if len(set(group)) == 1]

    def to_hf(self, weights: Sequence[Tensor]) -> list[Tensor]:
        return [tensor for stack in weights for tensor in stack]


class ConcatenatedStacks(Transform):
    """Hugging Face stores several stacks as one tensor, concatenated along the second dimension."""

    def from_hf(self, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
        (whole,) = tensors
        return list(whole.split([shape[1] for shape in shapes], dim=1))

    def to_hf(self, weights: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat(list(weights), dim=1)]


@dataclass(frozen=True)
class WeightMap:
    """Some of Heddle's weights, the Hugging Face tensors that hold them, and the transform between the two."""

    names: tuple[str, ...]
    hf_names: tuple[str, ...]
    transform: Transform = IDENTITY
    other: "WeightMap | None" = None  # another layout of the same weights, which is read but not written

    def found_in(self, names: Collection[str]) -> "WeightMap":
        """Return the layout that a folder with these tensors uses."""
        if self.other is None or all(name in names for name in self.hf_names):
            return self
        found = self.other.found_in(names)
        return found if all(name in names for name in found.hf_names) else self


def map_names(names: Mapping[str, str], *suffixes: str, transform: Transform = IDENTITY) -> Iterator[WeightMap]:
    """Yield a weight map for each pair of names, Heddle's first; with suffixes, the names are of modules."""
    for name, hf_name in (with_suffixes(names, *suffixes) if suffixes else names).items():
        yield WeightMap((name,), (hf_name,), transform)


def each_layer(layers: int, path: str, hf_path: str, names: Mapping[str, str]) -> dict[str, str]:
    """Return the names of all layers, given those within one: `each_layer(2, "stack", "model.layers", {...})`."""
    return {f"{path}.{i}.{a}": f"{hf_path}.{i}.{b}" for i in range(layers) for a, b in names.items()}


def with_suffixes(names: Mapping[str, str], *suffixes: str) -> dict[str, str]:
    """Return the names of weights, given those of modules: `with_suffixes({"up": "c_fc"}, "weight", "bias")`."""
    return {f"{a}.{suffix}": f"{b}.{suffix}" for a, b in names.items() for suffix in suffixes}

"""Part, Place, Context: how a config becomes a module, where it stands, and what it may see beyond its own stream."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heddle.core import Config, ConfigError
from heddle.core.shapes import Allowed, Stream
from heddle.nn.state import State

Sight = Literal["past", "all"]


class Role(StrEnum):
    """What a parameter is for; chooses its initialisation and its optimizer, never its name."""

    EMBEDDING = "embedding"
    INSIDE = "inside"  # a matrix within a part
    INTO_STREAM = "into_stream"  # a matrix whose output is added to the stream
    RECURRENT = "recurrent"  # a matrix from one time step to the next
    HEAD = "head"
    GAIN = "gain"  # starts at one
    BIAS = "bias"  # starts at zero


MATRICES = {Role.INSIDE, Role.INTO_STREAM, Role.RECURRENT, Role.HEAD}


class Module(nn.Module):
    """Base of our modules: declares the roles of its parameters and its cost beyond them."""

    roles: Mapping[str, Role] = {}  # parameter name, dotted for those of torch's own modules inside

    traceable: bool = True  # False: a compiler would unroll it over time, and take minutes over that

    passes: int = 1  # how often a token goes through what lies inside: a loop turns several times

    def reset_tables(self) -> None:
        """Fill the buffers that follow from the config; called again when memory is given to a meta model."""

    def mixing_flops(self, length: int) -> int:
        """Count the forward FLOPs per token beyond products with the module's own matrices."""
        return 0

    def state_elements(self) -> int:
        """Count the numbers that one more token adds to the decode state."""
        return 0


@dataclass(frozen=True)
class Place:
    """Where a part stands: which layer of how many, what it may see, and the path that names it."""

    path: str = ""
    layer: int = 0
    depth: int = 1
    sight: Sight = "past"
    context: int = 1024
    head_width: int | None = None
    memory: int | None = None  # width of the encoder's output, where there is one

    def inside(self, name: str, layer: int | None = None) -> "Place":
        """Return the place one step further down."""
        path = f"{self.path}.{name}" if self.path else name
        return dataclasses.replace(self, path=path, layer=self.layer if layer is None else layer)


@dataclass(frozen=True)
class Rotation:
    """Cosines and sines by which queries and keys are turned."""

    cos: Float[Tensor, "#batch length half"]
    sin: Float[Tensor, "#batch length half"]


@dataclass(frozen=True)
class Context:
    """What a part may see beyond its own stream. It is replaced, never mutated."""

    documents: Int[Tensor, "batch length"] | None = None  # packed rows: same number, same document
    positions: Int[Tensor, "batch length"] | None = None  # None: 0, 1, 2, ...
    state: State | None = None
    new: Int[Tensor, " batch"] | None = None  # with a state: how many of these tokens are real; None: all
    allowed: Allowed | None = None  # made by the stack; None: the sight says it all
    rotation: Rotation | None = None
    turn: str = ""  # which turn of which loop
    notes: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)

    def note(self, name: str, value: Tensor) -> "Context":
        """Leave a named value for later layers; a name is written once."""
        if name in self.notes:
            raise ConfigError(name, want="a note written once", got="a second writing")
        return dataclasses.replace(self, notes={**self.notes, name: value})


class PartConfig(Config, ABC):
    """A part: a small config that builds a module `(x, ctx) -> x`."""

    slot: ClassVar[str] = "part"  # the name of its branch in the state dict

    @abstractmethod
    def build(self, width: int, place: Place) -> "Part":
        """Build the module for a stream of this width at this place."""


class MixerConfig(PartConfig):
    """A part that moves information between positions."""

    slot = "mixer"


class ChannelConfig(PartConfig):
    """A part that works inside a position."""

    slot = "channel"


class Part(Module, ABC):
    """A module `(x, ctx) -> x` that fills a branch."""

    @abstractmethod
    def forward(self, x: Stream, ctx: Context) -> Stream:
        """Map the stream to what this part adds to it."""


class Remembering(Part, ABC):
    """A part that can go on from where it stopped: `step` takes and returns its slot of the state."""

    @abstractmethod
    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, object]:
        """Continue from a slot (None at the start); return the output and the new slot."""


def check_at_least_one(**fields: int | None) -> None:
    """Refuse a size below one; None stands for a size that the width decides."""
    for name, value in fields.items():
        if value is not None and value < 1:
            raise ConfigError(name, want="at least 1", got=value)


def check_dropout(dropout: float) -> None:
    """Refuse a rate that is no probability, or that leaves nothing."""
    if not 0.0 <= dropout < 1.0:
        raise ConfigError("dropout", want="at least 0 and below 1", got=dropout)


class Linear(Module):
    """Multiply by a matrix in the dtype of the input; the weights keep their own."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False, role: Role = Role.INSIDE) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.roles = {"weight": role, "bias": Role.BIAS}

    def forward(self, x: Float[Tensor, "... inputs"]) -> Float[Tensor, "... outputs"]:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return nn.functional.linear(x, self.weight.to(x.dtype), bias)

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return f"{inputs} -> {outputs}"


def wide(x: Tensor) -> Tensor:
    """Return half-precision numbers as float32, others as they are: for norms, softmaxes and losses."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x

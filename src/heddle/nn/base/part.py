"""Part, Place, Context: how a config becomes a module, where it stands, and what it may see beyond its own stream."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heddle.core import Config, ConfigError
from heddle.core.shapes import Allowed, Bool, Stream
from heddle.nn.state import Memory, State

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
    ROUTER_BIAS = "favour"  # starts at zero; plain descent moves it, at a rate of its own that no schedule changes


MATRIX_ROLES = {Role.INSIDE, Role.INTO_STREAM, Role.RECURRENT, Role.HEAD}


@dataclass(frozen=True)
class InitialValues:
    """First values that a part's own paper asks for, whatever the model's initialiser."""

    mean: float = 0.0
    scale: float = 0.0  # deviation of normal numbers, half the range of uniform ones
    distribution: Literal["normal", "truncated", "uniform"] = "normal"  # truncated: normal, cut at two deviations


class Module(nn.Module):
    """Base of our modules: declares the roles of its parameters and its cost beyond them."""

    roles: Mapping[str, Role] = {}  # parameter name, dotted for those of torch's own modules inside

    initial_values: Mapping[
        str, InitialValues
    ] = {}  # parameter name, where its first values are not for the initialiser to choose

    init_scale: float = 1.0  # what its matrices' first values are multiplied by: a query whose scores are not scaled

    slot: str = ""  # of a branch: what it holds (mixer, cross, channel), for initialisers that tell them apart

    compilable: bool = True  # False: not known to gain by compiling; some loops over time it would unroll for minutes

    repeats: int = 1  # how often a token goes through what lies inside: a loop turns several times

    max_length: int | None = None  # the most positions it can serve; None: no end

    pooling_factor: int = 1  # by what factor rows are shorter after it: a pool

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Module":
        released = [weight for weight in self._parameters.values() if weight is not None and is_released(weight)]
        super()._apply(fn, recurse)
        for weight in released:
            release_weight(weight)
        return self

    def active(self) -> float:
        """Return the share of its matrices that one token meets: less than one where experts share the work."""
        return 1.0

    def reset_buffers(self) -> None:
        """Fill the buffers that follow from the config; called again when memory is given to a meta model."""

    def mixing_flops(self, length: int) -> int:
        """Count the forward FLOPs per token beyond products with the module's own matrices."""
        return 0

    def state_elements(self) -> int:
        """Count the numbers that one more token adds to the decode state."""
        return 0

    def look_up_ops(self, tokens: int) -> int:
        """Count what Narang et al. count here beyond the products that we run, for so many tokens (docs/narang.md)."""
        return 0


def release_weight(weight: nn.Parameter) -> None:
    """Let a weight keep its shape and nothing else; whoever still reads it finds no numbers."""
    weight.data = weight.new_full((1,) * weight.dim(), torch.nan).expand(weight.shape)


def is_released(weight: nn.Parameter) -> bool:
    """Tell whether a weight has a shape and nothing else; it stays so on another device and in another dtype."""
    return weight.dim() > 0 and not any(weight.stride())


@dataclass(frozen=True)
class Place:
    """Where a part stands: which layer of how many, what it may see, and the path that names it."""

    path: str = ""
    layer: int = 0
    depth: int = 1
    sight: Sight = "past"
    context: int = 1024
    head_width: int | None = None
    heads: tuple[int, ...] = ()  # counts in the stack, for positions with a value per head
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
    interleaved: bool = False  # whether a pair is two neighbours, not one from each half
    window: "Rotation | None" = None  # for attention that sees a window only, where that turns otherwise

    def for_mask(self, full: bool) -> "Rotation":
        """Return the one for attention that sees all, or only what is near."""
        return self if full or self.window is None else self.window

    def truncate(self, length: int) -> "Rotation":
        """Return how the first positions turn."""
        window = None if self.window is None else self.window.truncate(length)
        return dataclasses.replace(self, cos=self.cos[:, :length], sin=self.sin[:, :length], window=window)


@dataclass(frozen=True)
class Relation:
    """Vectors for each clipped distance, one table per layer (Shaw et al. 2018)."""

    keys: Float[Tensor, "layers distances head_width"]
    values: Float[Tensor, "layers distances head_width"]
    index: Int[Tensor, "#batch query key"]  # which distance lies between a query and a key


@dataclass(frozen=True)
class Context:
    """What a part may see beyond its own stream. It is replaced, never mutated."""

    documents: Int[Tensor, "batch length"] | None = None  # packed rows: same number, same document
    positions: Int[Tensor, "batch length"] | None = None  # None: 0, 1, 2, ...
    state: State | None = None
    keys: Int[Tensor, "batch key"] | None = None  # where what is cached stands in its row; None: 0, 1, 2, ...
    new: Int[Tensor, " batch"] | None = None  # how many of a row's tokens are real, the rest being padding; None: all
    spare: Bool[Tensor, "batch length"] | None = None  # tokens that no loss depends on: padding behind the last target
    memory: Memory | None = None  # what an encoder understood of the source
    segments: Int[Tensor, "batch length"] | None = None  # which of two texts a token belongs to; None: the first
    allowed: Allowed | None = None  # made by the stack; None: the sight says it all
    rotation: Rotation | None = None
    bias: Mapping[int, Float[Tensor, "#batch heads query key"]] | None = None  # by head count: added to the scores
    relation: Relation | None = None
    keep: bool = False  # whether each block leaves its output as a note, for taps and for looking inside
    turn: str = ""  # which turn of which loop
    values: Float[Tensor, "batch length _"] | None = None  # of the first layer, where later ones mix them in
    notes: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)

    def real(self, x: Tensor) -> Bool[Tensor, "batch length"] | None:
        """Tell which tokens of a stream are real; None: all."""
        return None if self.new is None else torch.arange(x.shape[1], device=x.device) < self.new[:, None]

    def needed(self, x: Tensor) -> Bool[Tensor, "batch length"] | None:
        """Tell which tokens of a stream are real and not spare: those that experts work on; None: all."""
        real = self.real(x)
        if self.spare is None:
            return real
        return ~self.spare if real is None else real & ~self.spare

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


PositionInput = Literal[
    "stream", "rotation", "bias", "relation"
]  # how order enters: what a position leaves for the mixers


class SelfAttentionConfig(MixerConfig):
    """Self-attention of any form: has heads, and says which positions it understands."""

    heads: int

    @property
    def accepts(self) -> frozenset[PositionInput]:
        """Return the entrances that it understands; a kind with one answer for all sets it in the class."""
        return frozenset({"stream"})

    @abstractmethod
    def head_width_at(self, width: int) -> int:
        """Return each head's width, as positions should know it, in a stream of this width."""


class CrossConfig(PartConfig):
    """A part through which a decoder reads the encoder's memory."""

    slot = "cross"


class ChannelConfig(PartConfig):
    """A part that works inside a position."""

    slot = "channel"


class Part(Module, ABC):
    """A module `(x, ctx) -> x` that fills a branch."""

    @abstractmethod
    def forward(self, x: Stream, ctx: Context) -> Stream:
        """Map the stream to what this part adds to it."""


class Stateful(Part, ABC):
    """A part that can go on from where it stopped: `step` takes and returns its slot of the state."""

    @abstractmethod
    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, object]:
        """Continue from a slot (None at the start); return the output and the new slot."""


class PublishesContext(Stateful, ABC):
    """A part that may leave something for later layers."""

    @abstractmethod
    def publish(self, x: Stream, ctx: Context) -> Context:
        """Return the context with what later layers should know; asked just before the part itself runs."""


class HasAuxiliaryLoss(Part, ABC):
    """A part that adds to the loss or has figures to show; what it records is kept until the next forward."""

    def __init__(self) -> None:
        super().__init__()
        self.penalties: list[Float[Tensor, ""]] = []  # nats per token, one for each turn
        self.metrics: list[Mapping[str, Float[Tensor, ""]]] = []  # for the metrics, one for each turn

    def record(self, penalty: Float[Tensor, ""] | None = None, **metrics: Float[Tensor, ""]) -> None:
        """Keep a penalty for the loss and figures for the metrics, in training only."""
        if not self.training:
            return
        if penalty is not None:
            self.penalties.append(penalty)
        self.metrics.append({name: value.detach() for name, value in metrics.items()})

    def clear(self) -> None:
        """Forget what was recorded; a model does this at the start of a forward."""
        self.penalties, self.metrics = [], []

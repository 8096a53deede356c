"""Part, Place, Context: what configs build, where a part stands in the model, and what it sees besides its input."""

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
    """What a parameter is for; decides its initialization and its optimizer."""

    EMBEDDING = "embedding"
    INSIDE = "inside"  # a matrix within a part
    INTO_STREAM = "into_stream"  # a matrix whose output is added to the stream
    RECURRENT = "recurrent"  # a matrix from one time step to the next
    HEAD = "head"
    GAIN = "gain"  # starts at one
    BIAS = "bias"  # starts at zero
    ROUTER_BIAS = "favour"  # starts at zero; moved by plain gradient descent at its own, constant learning rate


MATRIX_ROLES = {Role.INSIDE, Role.INTO_STREAM, Role.RECURRENT, Role.HEAD}


@dataclass(frozen=True)
class InitialValues:
    """Initial values of a parameter; a part may set those of its paper, whatever the model's initializer."""

    mean: float = 0.0
    scale: float = 0.0  # standard deviation of normal numbers, half the range of uniform ones
    distribution: Literal["normal", "truncated", "uniform"] = "normal"  # truncated: normal, within two deviations


class Module(nn.Module):
    """Base class of modules: declares the roles of its parameters, and FLOPs and state beyond them."""

    roles: Mapping[str, Role] = {}  # by parameter name, dotted for parameters of torch's modules inside
    initial_values: Mapping[str, InitialValues] = {}  # by parameter name, instead of the initializer's
    init_scale: float = 1.0  # factor on its matrices' initial values, such as queries whose scores are not scaled
    slot: str = ""  # of a branch: mixer, cross or channel, for initializers that treat them differently
    compilable: bool = True  # False: torch.compile is not known to help, or would unroll a loop over time
    capturable: bool = True  # False: it asks the host for something, so that no CUDA graph of it can be replayed
    in_checkpoints: bool = True  # False: it is no part of what a config builds, so that a model with it is not saved
    repeats: int = 1  # how often a token passes what is inside: a loop has several turns
    max_length: int | None = None  # the most positions it supports; None: any number
    pooling_factor: int = 1  # by what factor rows are shorter after it

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Module":
        released = [weight for weight in self._parameters.values() if weight is not None and is_released(weight)]
        super()._apply(fn, recurse)
        for weight in released:
            release_weight(weight)
        return self

    def active_fraction(self) -> float:
        """Return the fraction of its matrices that one token uses: less than one in a mixture of experts."""
        return 1.0

    def reset_buffers(self) -> None:
        """Fill the buffers that follow from the config; called again when a meta model gets memory."""

    def mixing_flops(self, length: int) -> int:
        """Count the forward FLOPs per token beyond products with the module's own matrices."""
        return 0

    def state_elements(self) -> int:
        """Count the numbers that one token adds to the decoding state."""
        return 0

    def narang_lookup_ops(self, tokens: int) -> int:
        """Count the operations that Narang et al. count for lookups in this many tokens (docs/narang.md)."""
        return 0


def release_weight(weight: nn.Parameter) -> None:
    """Free a weight's memory and keep its shape; reading it gives NaN."""
    weight.data = weight.new_full((1,) * weight.dim(), torch.nan).expand(weight.shape)


def is_released(weight: nn.Parameter) -> bool:
    """Tell whether a weight was released; it stays so on another device and in another dtype."""
    return weight.dim() > 0 and not any(weight.stride())


@dataclass(frozen=True)
class Place:
    """Where a part stands: which layer of how many, what it may see, and its path in the model."""

    path: str = ""
    layer: int = 0
    depth: int = 1
    sight: Sight = "past"
    context: int = 1024
    head_width: int | None = None
    heads: tuple[int, ...] = ()  # the numbers of heads in the stack, for positions with a value per head
    memory: int | None = None  # width of the encoder's output, where there is one

    def child(self, name: str, layer: int | None = None) -> "Place":
        """Return the place of a child."""
        path = f"{self.path}.{name}" if self.path else name
        return dataclasses.replace(self, path=path, layer=self.layer if layer is None else layer)


@dataclass(frozen=True)
class Rotation:
    """Cosines and sines of a rotary embedding."""

    cos: Float[Tensor, "#batch length half"]
    sin: Float[Tensor, "#batch length half"]
    interleaved: bool = False  # whether a pair is two neighbours, or one feature of each half
    window: "Rotation | None" = None  # for sliding window attention, where it has its own

    def for_mask(self, full: bool) -> "Rotation":
        """Return the rotation for full attention or for a sliding window."""
        return self if full or self.window is None else self.window

    def truncate(self, length: int) -> "Rotation":
        """Return the rotation of the first positions."""
        window = None if self.window is None else self.window.truncate(length)
        return dataclasses.replace(self, cos=self.cos[:, :length], sin=self.sin[:, :length], window=window)


@dataclass(frozen=True)
class Relation:
    """Relative position representations (Shaw et al. 2018): vectors for each clipped distance, a table per layer."""

    keys: Float[Tensor, "layers distances head_width"]
    values: Float[Tensor, "layers distances head_width"]
    index: Int[Tensor, "#batch query key"]  # the clipped distance between a query and a key


@dataclass(frozen=True)
class Context:
    """What a part sees besides its input; replaced, never mutated."""

    documents: Int[Tensor, "batch length"] | None = None  # packed rows: same number, same document
    positions: Int[Tensor, "batch length"] | None = None  # None: 0, 1, 2, ...
    state: State | None = None
    key_steps: Int[Tensor, "batch key"] | None = None  # steps of the cached keys in their rows; None: 0, 1, 2, ...
    lengths: Int[Tensor, " batch"] | None = None  # how many tokens of each row are not padding; None: all
    ignored: Bool[Tensor, "batch length"] | None = None  # tokens that no loss depends on: after the last target
    memory: Memory | None = None  # the encoder's outputs
    prefix: Bool[Tensor, "batch length"] | None = None  # tokens that all of their document see (prefix LM)
    segments: Int[Tensor, "batch length"] | None = None  # which of two texts a token belongs to; None: the first
    allowed: Allowed | None = None  # made by the tower; None: `sight` is the mask
    rotation: Rotation | None = None
    bias: Mapping[int, Float[Tensor, "#batch heads query key"]] | None = None  # added to the scores, by number of heads
    relation: Relation | None = None
    keep: bool = False  # whether each block keeps its output as a note, for taps and inspection
    turn: str = ""  # which turn of which loop
    values: Float[Tensor, "batch length _"] | None = None  # of the first layer, for value residuals
    notes: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)

    def real(self, x: Tensor) -> Bool[Tensor, "batch length"] | None:
        """Return which tokens of a stream are not padding; None: all."""
        return None if self.lengths is None else torch.arange(x.shape[1], device=x.device) < self.lengths[:, None]

    def used_tokens(self, x: Tensor) -> Bool[Tensor, "batch length"] | None:
        """Return which tokens are neither padding nor ignored: those that experts process; None: all."""
        real = self.real(x)
        if self.ignored is None:
            return real
        return ~self.ignored if real is None else real & ~self.ignored

    def note(self, name: str, value: Tensor) -> "Context":
        """Keep a named value for later layers; a name is written once."""
        if name in self.notes:
            raise ConfigError(name, want="a note that is written only once", got="a second value")
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


# How positions reach the mixers: added to the stream, as rotary embeddings, as a bias, as relative terms.
PositionInput = Literal["stream", "rotation", "bias", "relation"]


class SelfAttentionConfig(MixerConfig):
    """Self-attention of any form: has heads, and declares which position inputs it supports."""

    heads: int

    @property
    def accepts(self) -> frozenset[PositionInput]:
        """Return the position inputs that it supports."""
        return frozenset({"stream"})

    @abstractmethod
    def head_width_at(self, width: int) -> int:
        """Return the width of each head that positions apply to, in a stream of this width."""


class CrossConfig(PartConfig):
    """A part by which a decoder reads the encoder's outputs."""

    slot = "cross"


class ChannelConfig(PartConfig):
    """A part that transforms each position by itself."""

    slot = "channel"


class Part(Module, ABC):
    """A module `(x, ctx) -> x` that fills a branch."""

    @abstractmethod
    def forward(self, x: Stream, ctx: Context) -> Stream:
        """Return what this part adds to the stream."""


class Stateful(Part, ABC):
    """A part with a decoding state: `step` takes and returns its slot of the state."""

    @abstractmethod
    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, object]:
        """Continue from a slot (None at the start); return the output and the new slot."""


class PublishesContext(Stateful, ABC):
    """A part that may publish something for later layers in the context."""

    @abstractmethod
    def publish(self, x: Stream, ctx: Context) -> Context:
        """Return the context with what later layers need; called just before the part itself."""


class HasAuxiliaryLoss(Part, ABC):
    """A part with an auxiliary loss or metrics; what it records is kept until the next forward."""

    def __init__(self) -> None:
        super().__init__()
        self.penalties: list[Float[Tensor, ""]] = []  # nats per token, one for each turn
        self.metrics: list[Mapping[str, Float[Tensor, ""]]] = []  # one for each turn

    def record(self, penalty: Float[Tensor, ""] | None = None, **metrics: Float[Tensor, ""]) -> None:
        """Record an auxiliary loss and metrics, in training only."""
        if not self.training:
            return
        if penalty is not None:
            self.penalties.append(penalty)
        self.metrics.append({name: value.detach() for name, value in metrics.items()})

    def clear(self) -> None:
        """Clear what was recorded; a model does this at the start of a forward."""
        self.penalties, self.metrics = [], []

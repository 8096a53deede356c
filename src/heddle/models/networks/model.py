"""Model: what every network offers, and what all that predict the next token share."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heddle.core import Config, ConfigError, DamageError, UsageError, settings
from heddle.core.shapes import Ids, Stream
from heddle.nn.adapters import AdapterConfig, apply_adapters
from heddle.nn.base import Adapter, Context, HasAuxiliaryLoss, InitConfig, Module, Sight, initialise
from heddle.nn.ends import Head
from heddle.nn.quantization import refuse_quantized
from heddle.nn.state import State


class ModelConfig(Config, ABC):
    """A whole network."""

    @abstractmethod
    def build(self, seed: int = 0) -> "Model":
        """Build the network and give its weights their first values."""

    def expand(self) -> "ModelConfig":
        """Return the full tree; a preset gives the network that it names."""
        return self


@settings
class TieConfig(Config):
    """Two names for one matrix."""

    share: str  # the name that gives up its own matrix
    of: str  # the name whose matrix both use


@runtime_checkable
class ModelFields(Protocol):
    """The fields that say how a network of modules becomes a model."""

    @property
    def ties(self) -> tuple[TieConfig, ...]: ...
    @property
    def adapters(self) -> tuple[AdapterConfig, ...]: ...
    @property
    def init(self) -> InitConfig: ...


class Model(Module):
    """What every network offers: its config, the dtype it computes in, and a device for new tensors."""

    config: ModelConfig
    context: int  # the length it is made for
    depth: int  # layers, of all towers
    recording: "list[HasAuxiliaryLoss]"  # parts that add to the loss or have figures to show
    compute: torch.dtype | None = None  # of the stream; None: that of the weights

    def finish_build(self, config: ModelFields, depth: int, seed: int) -> None:
        """Share what is tied, lay adapters over, and give weights their first values: the last act of building."""
        for tie in config.ties:
            self._tie(tie)
        if config.adapters:
            self._adapt(config.adapters)
        self.recording = [module for module in self.modules() if isinstance(module, HasAuxiliaryLoss)]
        self.depth = depth
        initialise(self, config.init, depth, seed)

    def _adapt(self, adapters: tuple[AdapterConfig, ...]) -> None:
        """Lay adapters over; from now on nothing else learns."""
        ties = dict(_ties_of(self))
        apply_adapters(self, adapters, ties | {of: share for share, of in ties.items()})
        for parameter in self.parameters():
            parameter.requires_grad_(False)
        for module in self.modules():
            if isinstance(module, Adapter):
                module.requires_grad_(True)

    def _tie(self, tie: TieConfig) -> None:
        try:
            given, kept = self.get_parameter(tie.share), self.get_parameter(tie.of)
        except AttributeError as error:
            raise ConfigError("ties", want="names of two parameters", got=str(error)) from None
        if given.shape != kept.shape:
            raise ConfigError(
                "ties", want=f"{tie.share} shaped as {tie.of}, {tuple(kept.shape)}", got=tuple(given.shape)
            )
        _share(self, tie.share, tie.of)

    def clear(self) -> None:
        """Forget what parts recorded in the last forward."""
        for module in self.recording:
            module.clear()

    def penalty(self) -> Tensor | None:
        """Add up what parts want added to the loss, in nats per token; None where no part does."""
        found = [penalty for module in self.recording for penalty in module.penalties]
        return torch.stack(found).sum() if found else None

    def metrics(self) -> dict[str, Tensor]:
        """Return the mean of each figure that parts recorded, by name."""
        found: dict[str, list[Tensor]] = {}
        for module in self.recording:
            for metrics in module.metrics:
                for name, value in metrics.items():
                    found.setdefault(name, []).append(value)
        return {name: torch.stack(values).mean() for name, values in found.items()}

    def materialise(self, device: torch.device | str) -> None:
        """Give memory to a model built on the meta device; weights are then for the caller to fill."""
        ties = list(_ties_of(self))
        # gives each name a tensor of its own, so ties are made anew; `to_empty` does the same, after importing for long
        self._apply(lambda t: torch.empty(t.shape, dtype=t.dtype, device=device))
        for share, of in ties:
            _share(self, share, of)
        for module in self.modules():
            if isinstance(module, Module):
                module.reset_buffers()

    def reserve(self, length: int) -> None:
        """Make ready for rows of this length, or say that the model cannot."""

    def worth_compiling(self) -> bool:
        """Tell whether torch.compile would help, which it does not where a part must be unrolled over time."""
        return all(module.compilable for module in self.modules() if isinstance(module, Module))

    def weights(self) -> dict[str, Tensor]:
        """Return every weight by name, a tied matrix once: what a checkpoint holds."""
        refuse_quantized(self)
        return {name: p.detach() for name, p in self.named_parameters()}

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the weights that learn, by name: all, unless some were frozen or adapters are laid over."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Fill every weight from a table of exactly the same names and shapes; where one does not fit, none changes."""
        own = self._named_as(weights)
        for name, tensor in weights.items():
            _check_shape(name, own[name], tensor)
        self.fill(weights)

    @torch.no_grad()
    def fill(self, weights: Mapping[str, Tensor]) -> None:
        """Fill a new model, each weight asked for once: a table may read it from disk."""
        own = self._named_as(weights)
        for name, tensor in weights.items():
            _check_shape(name, own[name], tensor)
            own[name].copy_(tensor)

    def _named_as(self, weights: Mapping[str, Tensor]) -> dict[str, nn.Parameter]:
        own = dict(self.named_parameters())
        if own.keys() != weights.keys():
            missing, extra = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
            raise DamageError(f"weights do not fit the model: missing {missing[:3]}, unexpected {extra[:3]}")
        return own


def _check_shape(name: str, own: Tensor, given: Tensor) -> None:
    if own.shape != given.shape:
        raise DamageError(f"weight {name}: want shape {tuple(own.shape)}, got {tuple(given.shape)}")


def _ties_of(model: Module) -> Iterator[tuple[str, str]]:
    """Yield each further name of a parameter with its first name."""
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            yield name, first[id(parameter)]


def _share(model: Module, share: str, of: str) -> None:
    """Let one name use the parameter of another."""
    owner, _, name = share.rpartition(".")
    setattr(model.get_submodule(owner), name, model.get_parameter(of))


def max_positions(module: nn.Module) -> int | None:
    """Return the most positions that all inside can serve; None: no end."""
    found = [m.max_length for m in module.modules() if isinstance(m, Module) and m.max_length is not None]
    return min(found, default=None)


class AutoregressiveModel(Model, ABC):
    """A model that predicts each next token from those before it: what decoding, scoring and tasks work with."""

    head: Head
    vocab: int
    sight: Sight

    @abstractmethod
    def run(self, inputs: Ids, ctx: Context) -> tuple[Stream, Context]:
        """Return the last layer's vectors and the context with all that the layers left in it."""

    @abstractmethod
    def empty_state(self, batch: int, room: int) -> State:
        """Return a state in which nothing was seen."""

    def forward(self, inputs: Ids, ctx: Context | None = None) -> Stream:
        """Return the last layer's vectors; `head` turns them into odds."""
        return self.run(inputs, Context() if ctx is None else ctx)[0]

    def logits(self, inputs: Ids, ctx: Context | None = None) -> Float[Tensor, "batch length vocab"]:
        """Return scores whose softmax is the distribution of the next token, at every position."""
        return self.head.logits(self(inputs, ctx))

    def new_state(self, batch: int, room: int) -> State:
        """Return a state in which nothing was seen, with room for so many tokens a row."""
        if self.sight != "past":
            raise UsageError(f"sight is {self.sight!r}: only a model that sees the past alone goes on step by step")
        self.reserve(room)
        return self.empty_state(batch, room)

    def step(self, inputs: Ids, state: State, new: Int[Tensor, " batch"] | None = None) -> tuple[Stream, State]:
        """Go on from a state by some tokens, of which the first `new` of each row are real."""
        x, ctx = self.run(inputs, Context(state=state, new=new, memory=state.memory))
        if ctx.state is None:
            raise ConfigError("state", want="a state", got=None)
        return x, ctx.state.advance(inputs.shape[1] if new is None else new)

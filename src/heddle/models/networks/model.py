"""Models: what every network offers, weight tying, and what all autoregressive models share."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from heddle.core import Config, ConfigError, DamageError, UsageError, brief, settings
from heddle.core.shapes import Ids, Stream
from heddle.core.system import is_shared, pause
from heddle.models.networks.tower import BaseTower
from heddle.nn.adapters import AdapterConfig, apply_adapters
from heddle.nn.base import Adapter, Context, HasAuxiliaryLoss, InitConfig, Module, Sight, initialize
from heddle.nn.ends import Frames, Head, Images
from heddle.nn.outputs import CtcOutputConfig, Output, OutputConfig
from heddle.nn.quantization import refuse_quantized
from heddle.nn.state import Memory, State

PIECE = 128  # tokens of a text that are read between two pauses


class ModelConfig(Config, ABC):
    """A model, as a network or by the name of a preset."""

    @abstractmethod
    def build(self, seed: int = 0) -> "Model":
        """Build the network and initialize its weights."""

    @abstractmethod
    def expand(self) -> "NetworkConfig":
        """Return the whole network; a preset returns the network that it names."""


@settings
class TieConfig(Config):
    """Weight tying: two names for one matrix (Press & Wolf 2017).

    share: the name that gives up its own matrix.
    of: the name whose matrix both use.
    """

    share: str
    of: str


class NetworkConfig(ModelConfig, ABC):
    """A network written out in full: the fields that every kind of model has."""

    noun: ClassVar[str]  # what messages call it: "a language model"
    reads_source: ClassVar[bool] = False  # whether it writes a target from a source
    training_only: ClassVar[tuple[str, ...]] = ()  # how names of weights begin that a finished model does not have

    vocab: int | None  # None: the inputs are images
    width: int
    context: int
    init: InitConfig
    ties: tuple[TieConfig, ...]
    adapters: tuple[AdapterConfig, ...]

    def expand(self) -> "NetworkConfig":
        return self

    def with_output(self, output: OutputConfig) -> "NetworkConfig":
        """Return the network with this output alone, as classification, tagging and the like need it."""
        raise ConfigError("model.kind", want=f"encoder, because the output is {output.kind}", got=self.kind)

    def with_ctc(self, output: CtcOutputConfig) -> "NetworkConfig":
        """Return the network with a CTC output for its frames, unless it has an output of that name."""
        raise ConfigError("model.kind", want="encoder or encoder_decoder, because CTC reads frames", got=self.kind)

    def finished(self) -> "NetworkConfig":
        """Return the network without what it has for training only."""
        return self

    @property
    def sees_next_token(self) -> bool:
        """Tell whether a position sees the token after it, so that it cannot learn to predict that."""
        return False


class Model(Module, ABC):
    """What every network offers; what only some kinds can do is refused here, and overridden there."""

    can_generate: ClassVar[bool] = False  # whether it predicts the next token

    config: NetworkConfig
    vocab: int | None
    context: int  # the length it is made for
    depth: int  # layers, of all towers
    reads: str  # what its inputs, or its sources, are: ids, frames or images
    auxiliary: "list[HasAuxiliaryLoss]"  # parts that add to the loss or record metrics
    compute: torch.dtype | None = None  # of the stream; None: that of the weights

    @property
    @abstractmethod
    def towers(self) -> tuple[BaseTower, ...]:
        """Return all towers."""

    @property
    def decoder_tower(self) -> BaseTower:
        """Return the tower that predicts the next token."""
        raise UsageError(f"want a language model or an encoder-decoder, got {type(self).__name__}")

    @property
    def source_tower(self) -> BaseTower:
        """Return the tower that reads the source."""
        raise self._no_source()

    @property
    def reads_source(self) -> bool:
        """Tell whether it writes a target from a source."""
        return self.config.reads_source

    def output(self, name: str) -> Output:
        """Return an output of the encoder's vectors by name, or refuse."""
        raise UsageError(f"want a model with the output {name}; {self.config.noun} has none")

    def encode(self, source: Ids | Images | Frames, lengths: Int[Tensor, " batch"] | None = None) -> Memory:
        """Read sources, of which the first `lengths` tokens of each row are real; None: all."""
        raise self._no_source()

    def _no_source(self) -> UsageError:
        return UsageError(f"source: want none, because {self.config.noun} has no encoder to read it")

    @abstractmethod
    def logits(self, inputs: Ids, ctx: Context | None = None) -> Tensor:
        """Return scores whose softmax is the distribution that the model predicts."""

    @abstractmethod
    def token_vectors(
        self, ids: Ids | Images | Frames, lengths: Int[Tensor, " batch"] | None
    ) -> tuple[Stream, Bool[Tensor, "batch length"] | None]:
        """Return the last layer's vectors of texts that are to be understood, and which are real; None: all."""

    def finish_build(self, config: NetworkConfig, depth: int, seed: int) -> None:
        """Tie weights, apply adapters and initialize: the last step of building."""
        for tie in config.ties:
            self._tie(tie)
        if config.adapters:
            self._adapt(config.adapters)
        self.auxiliary = [module for module in self.modules() if isinstance(module, HasAuxiliaryLoss)]
        self.depth = depth
        initialize(self, config.init, depth, seed)

    def _adapt(self, adapters: tuple[AdapterConfig, ...]) -> None:
        """Apply adapters; from now on only they are trained."""
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
            want = f"{tie.share} shaped as {tie.of}, {tuple(kept.shape)}"
            raise ConfigError("ties", want=want, got=tuple(given.shape))
        _share(self, tie.share, tie.of)

    def clear(self) -> None:
        """Forget what parts recorded in the last forward pass."""
        for module in self.auxiliary:
            module.clear()

    def auxiliary_loss(self) -> Tensor | None:
        """Return the sum of the auxiliary losses of all parts, in nats per token; None where there are none."""
        found = [penalty for module in self.auxiliary for penalty in module.penalties]
        return torch.stack(found).sum() if found else None

    def metrics(self) -> dict[str, Tensor]:
        """Return the mean of each metric that parts recorded, by name."""
        found: dict[str, list[Tensor]] = {}
        for module in self.auxiliary:
            for metrics in module.metrics:
                for name, value in metrics.items():
                    found.setdefault(name, []).append(value)
        return {name: torch.stack(values).mean() for name, values in found.items()}

    def materialize(self, device: torch.device | str) -> None:
        """Allocate the weights of a model built on the meta device; the caller must then fill them."""
        ties = list(_ties_of(self))
        # every name gets its own tensor, so weights are tied again; `to_empty` does the same, after slow imports
        self._apply(lambda t: torch.empty(t.shape, dtype=t.dtype, device=device))
        for share, of in ties:
            _share(self, share, of)
        for module in self.modules():
            if isinstance(module, Module):
                module.reset_buffers()

    def reserve(self, length: int) -> None:
        """Prepare positions for rows of this length, or refuse a length past their end."""
        for tower in self.towers:
            tower.position.reserve(length)

    def should_compile(self) -> bool:
        """Tell whether torch.compile would help; it does not where a part would be unrolled over time."""
        return all(module.compilable for module in self.modules() if isinstance(module, Module))

    def can_capture(self) -> bool:
        """Tell whether a step can be captured as a CUDA graph: no part asks the host for something."""
        return all(module.capturable for module in self.modules() if isinstance(module, Module))

    def weights(self) -> dict[str, Tensor]:
        """Return every weight by name, a tied matrix once, as a checkpoint holds them."""
        refuse_quantized(self)
        if not all(module.in_checkpoints for module in self.modules() if isinstance(module, Module)):
            raise UsageError("save: want a model without a memory, which is a folder of its own; got one with a memory")
        return {name: p.detach() for name, p in self.named_parameters()}

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the trainable weights by name: all, unless some are frozen or the model has adapters."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights of exactly the same names and shapes; if one does not fit, none changes."""
        own = self._named_as(weights)
        for name, tensor in weights.items():
            _check_shape(name, own[name], tensor)
        self.copy_weights(weights)

    @torch.no_grad()
    def copy_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Fill a new model; each weight is looked up once, since the mapping may read it from disk."""
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
    """Yield each further name of a tied parameter with its first name."""
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            yield name, first[id(parameter)]


def _share(model: Module, share: str, of: str) -> None:
    """Let one name use the parameter of another."""
    owner, _, name = share.rpartition(".")
    setattr(model.get_submodule(owner), name, model.get_parameter(of))


def check_inputs(inputs: object, vocab: int | None) -> None:
    """Refuse what is no batch of ids. Only on a CPU are their values seen without waiting, and not while compiling."""
    if vocab is None or torch.compiler.is_compiling():
        return
    if not isinstance(inputs, Tensor):
        raise UsageError(f"model: want ids as a tensor, such as torch.tensor([[1, 2, 3]]), got {brief(inputs)}")
    if inputs.dim() != 2 or inputs.is_floating_point() or inputs.dtype == torch.bool:
        shape, dtype = tuple(inputs.shape), str(inputs.dtype).removeprefix("torch.")
        raise UsageError(f"model: want whole numbers of shape (batch, length), got {dtype} of shape {shape}")
    if inputs.device.type == "cpu" and inputs.numel() and type(inputs) is Tensor:
        low, high = int(inputs.min()), int(inputs.max())
        if low < 0 or high >= vocab:
            raise UsageError(f"model: want ids from 0 to {vocab - 1}, got {low if low < 0 else high}")


def max_positions(module: nn.Module) -> int | None:
    """Return the largest number of positions that every module supports; None: no limit."""
    found = [m.max_length for m in module.modules() if isinstance(m, Module) and m.max_length is not None]
    return min(found, default=None)


class AutoregressiveModel(Model, ABC):
    """Autoregressive model: it predicts each next token from those before it, and so can generate and score text."""

    can_generate = True

    head: Head
    vocab: int
    sight: Sight

    @abstractmethod
    def run(self, inputs: Ids, ctx: Context) -> tuple[Stream, Context]:
        """Return the last layer's vectors, and the context with the new state and all notes."""

    def forward(self, inputs: Ids, ctx: Context | None = None) -> Stream:
        """Return the last layer's vectors; `head` turns them into logits."""
        check_inputs(inputs, self.vocab)
        return self.run(inputs, Context() if ctx is None else ctx)[0]

    def logits(self, inputs: Ids, ctx: Context | None = None) -> Float[Tensor, "batch length vocab"]:
        """Return the logits of the next token at every position."""
        return self.head.logits(self(inputs, ctx))

    def hidden_states(self, inputs: Ids) -> Stream:
        """Return the last layer's vectors of texts; where others share the thread, with a pause between pieces."""
        if not is_shared() or self.sight != "past" or inputs.shape[1] <= PIECE:
            whole: Stream = self(inputs)
            return whole
        check_inputs(inputs, self.vocab)
        state, found = self.new_state(len(inputs), inputs.shape[1]), list[Tensor]()
        for piece in inputs.split(PIECE, dim=1):
            vectors, state = self.step(piece, state)
            found.append(vectors)
            pause()
        return torch.cat(found, dim=1)

    def new_state(self, batch: int, capacity: int, memory: Memory | None = None) -> State:
        """Return the state before the first token, with capacity for this many tokens a row."""
        if self.sight != "past":
            raise UsageError(f"sight is {self.sight!r}: only a model that sees the past alone decodes step by step")
        self.reserve(capacity)
        return State.empty(batch, capacity, next(self.parameters()).device)

    def step(self, inputs: Ids, state: State, lengths: Int[Tensor, " batch"] | None = None) -> tuple[Stream, State]:
        """Continue from a state by some tokens, of which the first `lengths` of each row are not padding."""
        x, ctx = self.run(inputs, Context(state=state, lengths=lengths, memory=state.memory))
        if ctx.state is None:
            raise ConfigError("state", want="a state", got=None)
        return x, ctx.state.advance(inputs.shape[1] if lengths is None else lengths)


M = TypeVar("M", bound=Model)


def require(model: Model, kind: type[M], refusal: Exception) -> M:
    """Return a model as one of a kind, or raise the refusal."""
    if not isinstance(model, kind):
        raise refusal
    return model

"""Language model: embedding, positions, stack, norm and head, from the LSTM to the Transformer."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.core import Config, ConfigError, DamageError, UsageError, find, part, settings
from heddle.core.shapes import Ids, Stream
from heddle.nn import (
    AttentionConfig,
    Context,
    EmbeddingConfig,
    FullEmbeddingConfig,
    HeadConfig,
    InitConfig,
    Module,
    NoNormConfig,
    NoPositionConfig,
    NormalInitConfig,
    NormConfig,
    Place,
    PlanConfig,
    PositionConfig,
    Sight,
    SoftmaxHeadConfig,
    State,
    base_mask,
    initialise,
    park,
    steps_of,
)


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


TIED = (TieConfig(share="head.weight", of="embedding.weight"),)


@part("language_model")
class LanguageModelConfig(ModelConfig):
    """Predict each token from those that its position may see."""

    vocab: int
    width: int
    context: int
    plan: PlanConfig
    embedding: EmbeddingConfig = FullEmbeddingConfig()
    position: PositionConfig = NoPositionConfig()
    norm: NormConfig = NoNormConfig()  # after the last layer
    head: HeadConfig = SoftmaxHeadConfig()
    init: InitConfig = NormalInitConfig()
    ties: tuple[TieConfig, ...] = ()
    sight: Sight = "past"

    def __post_init__(self) -> None:
        for name in ("vocab", "width", "context"):
            if self.__dict__[name] < 1:
                raise ConfigError(name, want="at least 1", got=self.__dict__[name])

    def build(self, seed: int = 0) -> "LanguageModel":
        return LanguageModel(self, seed)

    def head_width(self) -> int | None:
        """Return the one head width of all attention in the plan, or None without attention."""
        widths = sorted({a.head_width_at(self.width) for a in find(self.plan, AttentionConfig)})
        if len(widths) > 1 and not isinstance(self.position, NoPositionConfig):
            raise ConfigError("plan", want="one head width, for positions are shared", got=widths)
        return widths[0] if widths else None


class Model(Module):
    """What every network offers: its config, the dtype it computes in, and a device for new tensors."""

    config: ModelConfig
    context: int  # the length it is made for
    compute: torch.dtype | None = None  # of the stream; None: that of the weights

    def materialise(self, device: torch.device | str) -> None:
        """Give memory to a model built on the meta device; weights are then for the caller to fill."""
        ties = list(_ties_of(self))
        self.to_empty(device=device)  # gives each name a tensor of its own, so ties are made anew
        for share, of in ties:
            _share(self, share, of)
        for module in self.modules():
            if isinstance(module, Module):
                module.reset_tables()

    def reach(self, length: int) -> None:
        """Make ready for rows of this length, or say that the model cannot."""

    def worth_compiling(self) -> bool:
        """Tell whether torch.compile would help, which it does not where a part must be unrolled over time."""
        return all(module.traceable for module in self.modules() if isinstance(module, Module))

    def weights(self) -> dict[str, Tensor]:
        """Return every weight by name, a tied matrix once: what a checkpoint holds."""
        return {name: p.detach() for name, p in self.named_parameters()}

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Fill every weight from a table of exactly the same names and shapes."""
        own = dict(self.named_parameters())
        if own.keys() != weights.keys():
            missing, extra = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
            raise DamageError(f"weights do not fit the model: missing {missing[:3]}, unexpected {extra[:3]}")
        for name, tensor in weights.items():
            if own[name].shape != tensor.shape:
                raise DamageError(f"weight {name}: want shape {tuple(own[name].shape)}, got {tuple(tensor.shape)}")
        for name, tensor in weights.items():
            own[name].copy_(tensor)


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


class LanguageModel(Model):
    """head(norm(stack(embedding(ids) + positions)))."""

    def __init__(self, config: LanguageModelConfig, seed: int = 0) -> None:
        super().__init__()
        self.config, self.context, self.sight = config, config.context, config.sight
        place = Place(
            depth=config.plan.depth(), sight=config.sight, context=config.context, head_width=config.head_width()
        )
        self.embedding = config.embedding.build(config.vocab, config.width)
        self.position = config.position.build(config.width, place)
        self.stack = config.plan.build(config.width, place)
        self.norm = config.norm.build(config.width)
        self.head = config.head.build(config.vocab, config.width)
        for tie in config.ties:
            self._tie(tie)
        initialise(self, config.init, place.depth, seed)

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

    def forward(self, inputs: Ids, ctx: Context | None = None) -> Stream:
        """Return the last layer's vectors; `head` turns them into odds."""
        return self.run(inputs, Context() if ctx is None else ctx)[0]

    def run(self, inputs: Ids, ctx: Context) -> tuple[Stream, Context]:
        """Return the last layer's vectors and the context with all that the layers left in it."""
        length = inputs.shape[1]
        if ctx.state is None:  # with a state, `new_state` has seen to it
            self.position.reach(length)
        if ctx.positions is None and ctx.state is not None:
            ctx = dataclasses.replace(ctx, positions=park(steps_of(ctx, length, inputs.device), ctx, at=0))
        ctx = dataclasses.replace(ctx, allowed=base_mask(ctx, length, self.sight, inputs.device))
        x = self.embedding(inputs)
        x, ctx = self.position(x if self.compute is None else x.to(self.compute), ctx)
        x, ctx = self.stack(x, ctx)
        return self.norm(x), ctx

    def logits(self, inputs: Ids, ctx: Context | None = None) -> Float[Tensor, "batch length vocab"]:
        """Return scores whose softmax is the distribution of the next token, at every position."""
        return self.head.logits(self(inputs, ctx))

    def reach(self, length: int) -> None:
        """Make ready for rows of this length, or say that the positions end before."""
        self.position.reach(length)

    def new_state(self, batch: int, room: int) -> State:
        """Return a state in which nothing was seen, with room for so many tokens a row."""
        if self.sight != "past":
            raise UsageError(f"sight is {self.sight!r}: only a model that sees the past alone goes on step by step")
        self.position.reach(room)
        return State.empty(batch, room, next(self.parameters()).device)

    def step(self, inputs: Ids, state: State, new: Int[Tensor, " batch"] | None = None) -> tuple[Stream, State]:
        """Go on from a state by some tokens, of which the first `new` of each row are real."""
        x, ctx = self.run(inputs, Context(state=state, new=new))
        if ctx.state is None:
            raise ConfigError("state", want="a state", got=None)
        return x, ctx.state.advance(inputs.shape[1] if new is None else new)

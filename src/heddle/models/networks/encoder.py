"""Encoder: a tower that sees the whole row, and what it is asked for (Devlin et al. 2018; Dosovitskiy et al. 2021)."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from heddle.core import ConfigError, UsageError, check_at_least, hint, part
from heddle.core.shapes import Ids, Stream
from heddle.models.networks.model import Model, ModelConfig, TieConfig
from heddle.models.networks.tower import BaseTower
from heddle.nn.adapters import AdapterConfig
from heddle.nn.base import Context, InitConfig, NormalInitConfig, Place
from heddle.nn.ends import EmbeddingConfig, FullEmbeddingConfig, Images, Output, OutputConfig, PoolingConfig
from heddle.nn.layers import NoNormConfig, NormConfig
from heddle.nn.positions import NoPositionConfig, PositionConfig
from heddle.nn.stack import PlanConfig


@part("encoder")
class EncoderConfig(ModelConfig):
    """Understand a row of tokens, or an image, as a whole."""

    width: int
    context: int
    plan: PlanConfig
    vocab: int | None = None  # None: the inputs are images
    embedding: EmbeddingConfig = FullEmbeddingConfig()
    position: PositionConfig = NoPositionConfig()
    norm: NormConfig = NoNormConfig()  # after the last layer
    pooling: PoolingConfig | None = None  # how a row becomes one vector, where outputs need it
    outputs: tuple[OutputConfig, ...] = ()
    init: InitConfig = NormalInitConfig(shrink_into_stream=False)
    ties: tuple[TieConfig, ...] = ()
    adapters: tuple[AdapterConfig, ...] = ()  # what learns beside weights that then do not

    def __post_init__(self) -> None:
        check_at_least(1, vocab=self.vocab, width=self.width, context=self.context)
        names = [output.name for output in self.outputs]
        if len(set(names)) < len(names):
            raise ConfigError("outputs", want="a name for each of its own", got=names)
        pooled = [output.name for output in self.outputs if output.reads == "pooled"]
        if pooled and self.pooling is None:
            raise ConfigError("pooling", want=f"a kind, for the output {pooled[0]}", got=None)

    def build(self, seed: int = 0) -> "Encoder":
        return Encoder(self, seed)


class Encoder(Model, BaseTower):
    """norm(stack(embedding(inputs) + positions)), pooled where asked, and its outputs by name."""

    config: EncoderConfig

    def __init__(self, config: EncoderConfig, seed: int = 0) -> None:
        super().__init__()
        self.config, self.context, self.vocab = config, config.context, config.vocab
        self.build_tower(config, config.vocab, config.width, Place(sight="all", context=config.context))
        self.pooling = None if config.pooling is None else config.pooling.build(config.width)
        self.outputs = nn.ModuleDict({o.name: o.build(config.vocab, config.width) for o in config.outputs})
        self.finish_build(config, config.plan.depth(), seed)

    def run(self, inputs: Ids | Images, ctx: Context) -> tuple[Stream, Context]:
        """Return the last layer's vectors and the context with all that the layers left in it."""
        if ctx.state is not None:
            raise UsageError("an encoder sees the whole row: it cannot go on from a state")
        self.clear()
        return self.run_tower(inputs, ctx, self.compute)

    def forward(self, inputs: Ids | Images, ctx: Context | None = None) -> Stream:
        """Return the last layer's vectors; `outputs` turn them into what is asked for."""
        return self.run(inputs, Context() if ctx is None else ctx)[0]

    def reserve(self, length: int) -> None:
        """Make ready for rows of this length, or say that the positions end before."""
        self.position.reserve(length)

    def pool(self, x: Stream, ctx: Context) -> Float[Tensor, "batch width"]:
        """Return one vector for each row of the last layer's."""
        if self.pooling is None:
            raise UsageError("this encoder has no pooling: set `pooling` to have one vector for a row")
        if ctx.documents is not None:
            raise UsageError("one vector is made of a row of one text: give no packed documents")
        return self.pooling(x, ctx)  # type: ignore[no-any-return]

    def pooled(self, inputs: Ids | Images, ctx: Context | None = None) -> Float[Tensor, "batch width"]:
        """Return one vector for each row."""
        return self.pool(*self.run(inputs, Context() if ctx is None else ctx))

    def output(self, name: str) -> Output:
        """Return an output by name, or say which there are."""
        if name not in self.outputs:
            near = hint(name, self.outputs, f"; it has {', '.join(self.outputs) or 'none'}")
            raise UsageError(f"this encoder has no output called {name!r}{near}")
        found = self.outputs[name]
        assert isinstance(found, Output)
        return found

    def scores(self, name: str, inputs: Ids | Images, ctx: Context | None = None) -> Tensor:
        """Return what an output says of each token or row."""
        output, (x, ctx) = self.output(name), self.run(inputs, Context() if ctx is None else ctx)
        return output.scores(x if output.reads == "tokens" else self.pool(x, ctx), ctx)

    def nll(
        self, name: str, inputs: Ids | Images, labels: Int[Tensor, "..."], ctx: Context | None = None
    ) -> Float[Tensor, "..."]:
        """Return the loss of an output in nats, for each label."""
        output, (x, ctx) = self.output(name), self.run(inputs, Context() if ctx is None else ctx)
        return output.nll(x if output.reads == "tokens" else self.pool(x, ctx), labels, ctx)

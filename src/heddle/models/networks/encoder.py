"""Encoder: a tower that sees the whole row, with outputs (BERT, Devlin et al. 2018; ViT, Dosovitskiy et al. 2021)."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from heddle.core import Config, ConfigError, UsageError, check_at_least, find, hint, part, replace, settings
from heddle.core.shapes import Ids, Stream
from heddle.models.networks.model import Model, NetworkConfig, TieConfig, check_inputs
from heddle.models.networks.tower import BaseTower, Tower, TowerConfig
from heddle.nn.adapters import AdapterConfig
from heddle.nn.base import Context, InitConfig, NormalInitConfig, Place
from heddle.nn.ends import EmbeddingConfig, Frames, FullEmbeddingConfig, Images, SegmentedEmbeddingConfig
from heddle.nn.layers import NoNormConfig, NormConfig
from heddle.nn.outputs import (
    CtcOutputConfig,
    DenseFirstTokenConfig,
    MaskedTokenOutputConfig,
    Output,
    OutputConfig,
    PoolingConfig,
)
from heddle.nn.positions import NoPositionConfig, PositionConfig
from heddle.nn.stack import PlanConfig
from heddle.nn.state import Memory


@settings
class RereadingDecoderConfig(Config):
    """A decoder that reads the encoder's own row, shifted by a token, for its classes (BART, Lewis et al. 2020).

    tower: its embedding, positions and layers, which attend to the encoder.
    start: the id before the row's first token.
    """

    tower: TowerConfig
    start: int = 0


@part("encoder")
class EncoderConfig(NetworkConfig):
    """Encoder: read a row of tokens, a sound or an image as a whole.

    width: numbers in the vector of each position.
    context: most tokens of a row.
    plan: the layers.
    vocab: how many token ids there are; None: there are none, because inputs are images and outputs classes.
    embedding: how ids, frames of features, or patches of an image, become vectors.
    position: how the model knows the order of tokens.
    norm: normalization after the last layer.
    pooling: how a row becomes one vector, where outputs need it.
    outputs: what is predicted from the encoded row; each has a name and a loss.
    rereading: a decoder that reads the same row after the encoder, whose vectors then count (BART's classes).
    generator: a smaller encoder that replaces tokens in training (ELECTRA); a finished model has none.
    init: how weights are initialized.
    ties: weight tying: pairs of names that share one matrix.
    adapters: LoRA and the like; the other weights are then frozen.
    """

    noun = "an encoder"
    training_only = ("generator.",)

    width: int
    context: int
    plan: PlanConfig
    vocab: int | None = None
    embedding: EmbeddingConfig = FullEmbeddingConfig()
    position: PositionConfig = NoPositionConfig()
    norm: NormConfig = NoNormConfig()
    pooling: PoolingConfig | None = None
    outputs: tuple[OutputConfig, ...] = ()
    generator: "EncoderConfig | None" = None
    rereading: RereadingDecoderConfig | None = None
    init: InitConfig = NormalInitConfig(shrink_into_stream=False)
    ties: tuple[TieConfig, ...] = ()
    adapters: tuple[AdapterConfig, ...] = ()

    def __post_init__(self) -> None:
        check_at_least(1, vocab=self.vocab, width=self.width, context=self.context)
        if self.embedding.reads == "images" and self.vocab is not None:
            raise ConfigError("vocab", want="none, because the inputs are images", got=self.vocab)
        names = [output.name for output in self.outputs]
        if len(set(names)) < len(names):
            raise ConfigError("outputs", want="a name for each of its own", got=names)
        pooled = [output.name for output in self.outputs if output.reads == "pooled"]
        if pooled and self.pooling is None:
            raise ConfigError("pooling", want=f"a kind, because the output {pooled[0]} needs it", got=None)

        if self.rereading is not None and not 0 <= self.rereading.start < (self.vocab or 0):
            want = f"an id of the vocabulary, which has {self.vocab or 0}"
            raise ConfigError("rereading.start", want=want, got=self.rereading.start)
        if self.generator is not None and self.generator.vocab != self.vocab:
            raise ConfigError("generator.vocab", want=f"that of the encoder, {self.vocab}", got=self.generator.vocab)

    def finished(self) -> "EncoderConfig":
        if self.generator is None:
            return self
        ties = tuple(tie for tie in self.ties if not tie.share.startswith(self.training_only))
        return replace(self, generator=None, ties=ties)

    def with_ctc(self, output: CtcOutputConfig) -> "EncoderConfig":
        return self if output.name in [one.name for one in self.outputs] else self.with_output(output)

    def with_output(self, output: OutputConfig) -> "EncoderConfig":
        """Return the encoder with this output alone; pooling, where the output needs it, is its own, or BERT's."""
        base = self.finished()
        pooling = None if output.reads == "tokens" else base.pooling or DenseFirstTokenConfig()
        ties = tuple(tie for tie in base.ties if not any(name.startswith("outputs.") for name in (tie.share, tie.of)))
        return replace(base, outputs=(output,), pooling=pooling, ties=ties)

    def build(self, seed: int = 0) -> "Encoder":
        return Encoder(self, seed)


class Encoder(Model, BaseTower):
    """norm(stack(embedding(inputs) + positions)), pooled where an output needs it, and its outputs by name."""

    config: EncoderConfig

    def __init__(self, config: EncoderConfig, seed: int = 0) -> None:
        super().__init__()
        self.config, self.context, self.vocab = config, config.context, config.vocab
        self.build_tower(config, config.vocab, config.width, Place(sight="all", context=config.context))
        self.inputs_vocab = config.vocab if config.embedding.reads == "ids" else None
        self.pooling = None if config.pooling is None else config.pooling.build(config.width)
        self.segments = max((found.segments for found in find(config.embedding, SegmentedEmbeddingConfig)), default=0)
        self.outputs = nn.ModuleDict({o.name: o.build(config.vocab, config.width) for o in config.outputs})
        self.generator = None if config.generator is None else Encoder(config.generator, seed)
        depth, self.decoder = config.plan.depth(), None
        if config.rereading is not None:
            place = Place(path="decoder", sight="past", context=config.context, memory=config.width)
            self.decoder = Tower(config.rereading.tower, config.vocab or 0, config.width, place)
            depth += config.rereading.tower.plan.depth()
        self.finish_build(config, depth, seed)

    @property
    def towers(self) -> tuple[BaseTower, ...]:
        return (self,) if self.decoder is None else (self, self.decoder)

    def run(self, inputs: Ids | Images | Frames, ctx: Context) -> tuple[Stream, Context]:
        """Return the last layer's vectors, and the context with all notes."""
        if ctx.state is not None:
            raise UsageError("an encoder sees the whole row: it cannot continue from a state")
        self.clear()
        x, ctx = self.run_tower(inputs, ctx, self.compute)
        return (x, ctx) if self.decoder is None else self._reread(self.decoder, inputs, x, ctx)

    def _reread(self, decoder: Tower, ids: Ids, x: Stream, ctx: Context) -> tuple[Stream, Context]:
        """Return the vectors of a decoder that reads the row again, shifted, and attends to the encoder's `x`."""
        if ctx.documents is not None:
            raise UsageError("a decoder reads the row after the encoder: want one document a row, got packed documents")
        assert self.config.rereading is not None
        shifted = torch.cat((torch.full_like(ids[:, :1], self.config.rereading.start), ids[:, :-1]), 1)
        real = ctx.real(x)
        memory = Memory((x,), None if real is None else real[:, None, None])
        return decoder.run_tower(shifted, Context(lengths=ctx.lengths, memory=memory), self.compute)

    def context_for(self, lengths: Int[Tensor, " batch"], segments: Ids | None = None) -> Context:
        """Return the context of padded rows, of one text or of two; segments that it has no vectors for are ignored."""
        return Context(lengths=lengths, segments=segments if self.segments > 1 else None)

    def forward(self, inputs: Ids | Images | Frames, ctx: Context | None = None) -> Stream:
        """Return the last layer's vectors; `outputs` turn them into scores."""
        check_inputs(inputs, self.inputs_vocab)
        return self.run(inputs, Context() if ctx is None else ctx)[0]

    def logits(self, inputs: Ids, ctx: Context | None = None) -> Tensor:
        """Return the scores of its only output, or of the masked-token output among several."""
        outputs = self.config.outputs
        return self.scores(outputs[0].name if len(outputs) == 1 else self.masked_output(), inputs, ctx)

    def token_vectors(
        self, ids: Ids | Images | Frames, lengths: Int[Tensor, " batch"] | None
    ) -> tuple[Stream, Bool[Tensor, "batch length"] | None]:
        x, ctx = self.run(ids, Context(lengths=lengths))
        return x, ctx.real(x)

    def masked_output(self) -> str:
        """Return the name of the output that predicts masked tokens, or refuse."""
        for output in self.config.outputs:
            if isinstance(output, MaskedTokenOutputConfig):
                return output.name
        held = ", ".join(self.outputs) or "none"
        raise UsageError(f"want an encoder that predicts masked tokens, with the output masked_token; it has: {held}")

    def output_of(self, *wanted: str) -> OutputConfig:
        """Return the output of one of these kinds, or refuse with those that there are."""
        for output in self.config.outputs:
            if output.kind in wanted:
                return output
        held = ", ".join(f"{output.name} ({output.kind})" for output in self.config.outputs) or "none"
        raise UsageError(f"want an encoder with an output of the kind {' or '.join(wanted)}; it has: {held}")

    def pool(self, x: Stream, ctx: Context) -> Float[Tensor, "batch width"]:
        """Return one vector for each row, pooled from the last layer's vectors."""
        if self.pooling is None:
            raise UsageError("this encoder has no pooling: set `pooling` to get one vector for each row")
        if ctx.documents is not None:
            raise UsageError("pooling makes one vector of a row: want one document a row, got packed documents")
        return self.pooling(x, ctx)  # type: ignore[no-any-return]

    def pooled(self, inputs: Ids | Images | Frames, ctx: Context | None = None) -> Float[Tensor, "batch width"]:
        """Return one vector for each row."""
        return self.pool(*self.run(inputs, Context() if ctx is None else ctx))

    def output(self, name: str) -> Output:
        """Return an output by name; a message lists the outputs if there is none of that name."""
        if name not in self.outputs:
            near = hint(name, self.outputs, f"; it has {', '.join(self.outputs) or 'none'}")
            raise UsageError(f"this encoder has no output called {name!r}{near}")
        found = self.outputs[name]
        assert isinstance(found, Output)
        return found

    def scores(self, name: str, inputs: Ids | Images | Frames, ctx: Context | None = None) -> Tensor:
        """Return the scores of an output for each token or row."""
        output, (x, ctx) = self.output(name), self.run(inputs, Context() if ctx is None else ctx)
        return output.scores(x if output.reads == "tokens" else self.pool(x, ctx), ctx)

    def nll(
        self, name: str, inputs: Ids | Images | Frames, labels: Tensor, ctx: Context | None = None
    ) -> Float[Tensor, "..."]:
        """Return the loss of an output in nats, for each label."""
        output, (x, ctx) = self.output(name), self.run(inputs, Context() if ctx is None else ctx)
        return output.nll(x if output.reads == "tokens" else self.pool(x, ctx), labels, ctx)

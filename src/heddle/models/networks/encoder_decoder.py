"""Encoder-decoder (sequence to sequence): source -> target (Sutskever 2014; Cho 2014; Vaswani 2017)."""

import dataclasses

from jaxtyping import Bool, Int
from torch import Tensor, nn

from heddle.core import ConfigError, UsageError, check_at_least, find, part
from heddle.core.shapes import Ids, Stream
from heddle.models.networks.model import AutoregressiveModel, NetworkConfig, TieConfig, max_positions
from heddle.models.networks.tower import BaseTower, Tower, TowerConfig, shares_layers
from heddle.nn.adapters import AdapterConfig
from heddle.nn.base import Context, InitConfig, Module, NormalInitConfig, Place, Sight
from heddle.nn.ends import Frames, HeadConfig, Images, SoftmaxHeadConfig
from heddle.nn.outputs import CtcOutputConfig, Output, OutputConfig
from heddle.nn.recurrent import BridgeConfig, NoBridgeConfig, Recurrent
from heddle.nn.stack import Branch, LastLayerConfig, PoolConfig, Sum, TapConfig
from heddle.nn.state import Memory, State

INPUTS = TieConfig(share="decoder.embedding.weight", of="encoder.embedding.weight")
OUTPUT = TieConfig(share="head.weight", of="encoder.embedding.weight")
ONE_TABLE = (INPUTS, OUTPUT)


@part("encoder_decoder")
class EncoderDecoderConfig(NetworkConfig):
    """Encoder-decoder: predict each token of a target from those before it and the whole source.

    vocab: how many token ids there are, on both sides.
    width: numbers in the vector of each position.
    context: most tokens of either side.
    encoder: the side that reads the source.
    decoder: the side that writes the target.
    head: how vectors become probabilities of the next token.
    tap: which encoder layers the decoder attends to.
    bridge: what passes from the encoder to the decoder beside cross-attention.
    outputs: what is predicted from the encoder's vectors, such as CTC; each has a name and a loss.
    init: how weights are initialized.
    ties: weight tying: pairs of names that share one matrix.
    adapters: LoRA and the like; the other weights are then frozen.
    """

    noun = "an encoder-decoder"
    reads_source = True

    vocab: int
    width: int
    context: int
    encoder: TowerConfig
    decoder: TowerConfig
    head: HeadConfig = SoftmaxHeadConfig()
    tap: TapConfig = LastLayerConfig()
    bridge: BridgeConfig = NoBridgeConfig()
    outputs: tuple[OutputConfig, ...] = ()
    init: InitConfig = NormalInitConfig()
    ties: tuple[TieConfig, ...] = ()
    adapters: tuple[AdapterConfig, ...] = ()

    def __post_init__(self) -> None:
        check_at_least(1, vocab=self.vocab, width=self.width, context=self.context)
        if not isinstance(self.tap, LastLayerConfig) and shares_layers(self.decoder.plan):
            raise ConfigError("tap", want="last, because a looped decoder has one layer", got=self.tap.kind)
        if not isinstance(self.tap, LastLayerConfig) and find(self.encoder.plan, PoolConfig):
            want = "last, because an encoder that pools has layers of unequal length"
            raise ConfigError("tap", want=want, got=self.tap.kind)
        if self.decoder.embedding.reads != "ids":
            want = "one of ids, because a target is a row of tokens"
            raise ConfigError("decoder.embedding", want=want, got=self.decoder.embedding.kind)
        if self.head.copies and self.encoder.embedding.reads != "ids":
            want = "one that does not copy, because the source has no tokens"
            raise ConfigError("head", want=want, got=self.head.kind)
        if len({output.name for output in self.outputs}) < len(self.outputs):
            raise ConfigError("outputs", want="a name for each of its own", got=[one.name for one in self.outputs])
        pooled = next((output.name for output in self.outputs if output.reads == "pooled"), None)
        if pooled is not None:
            raise ConfigError("outputs", want="outputs of each vector, such as ctc", got=pooled)
        if self.head.copies and find(self.encoder.plan, PoolConfig):
            want = "one that does not copy, because an encoder that pools has no vector for each token of the source"
            raise ConfigError("head", want=want, got=self.head.kind)

    def with_ctc(self, output: CtcOutputConfig) -> "EncoderDecoderConfig":
        if output.name in [one.name for one in self.outputs]:
            return self
        return dataclasses.replace(self, outputs=(*self.outputs, output))

    def build(self, seed: int = 0) -> "EncoderDecoder":
        return EncoderDecoder(self, seed)


class EncoderDecoder(AutoregressiveModel):
    """head(decoder(target, encoder(source)))."""

    sight: Sight = "past"

    def __init__(self, config: EncoderDecoderConfig, seed: int = 0) -> None:
        super().__init__()
        self.config, self.context, self.vocab = config, config.context, config.vocab
        vocab, width = config.vocab, config.width
        reading = Place(path="encoder", sight="all", context=config.context)
        writing = Place(path="decoder", sight="past", context=config.context, memory=width)
        self.encoder = Tower(config.encoder, vocab, width, reading)
        self.decoder = Tower(config.decoder, vocab, width, writing)
        self.reads = self.encoder.reads
        depths = config.encoder.plan.depth(), config.decoder.plan.depth()
        self.tap = config.tap.build(*depths)
        bare = isinstance(config.bridge, NoBridgeConfig)
        self.bridge = config.bridge.build(width, {} if bare else self._state_sizes())
        self.outputs = nn.ModuleDict({o.name: o.build(config.vocab, config.width) for o in config.outputs})
        self.max_length = max_positions(self.decoder)
        self.head = config.head.build(vocab, width)
        self.finish_build(config, sum(depths), seed)

    def _state_sizes(self) -> dict[str, tuple[int, ...]]:
        """Return the sizes of the states of each recurrent part of the decoder, by its key in the state."""
        branches = [module for module in self.decoder.modules() if isinstance(module, Branch)]
        outer = [m for m in self.decoder.modules() if isinstance(m, Sum) or (isinstance(m, Module) and m.repeats > 1)]
        if any(isinstance(m, Recurrent) for around in outer for m in around.modules()):
            want = "recurrent parts outside of loops and sums, because a bridge initializes each once"
            raise ConfigError("decoder.plan", want=want, got=type(outer[0]).__name__.lower())
        return {b.path: b.part.state_sizes() for b in branches if isinstance(b.part, Recurrent)}

    def output(self, name: str) -> Output:
        if name not in self.outputs:
            raise UsageError(f"this model has no output called {name!r}; it has {', '.join(self.outputs) or 'none'}")
        found = self.outputs[name]
        assert isinstance(found, Output)
        return found

    @property
    def towers(self) -> tuple[BaseTower, ...]:
        return self.encoder, self.decoder

    @property
    def decoder_tower(self) -> BaseTower:
        return self.decoder

    @property
    def source_tower(self) -> BaseTower:
        return self.encoder

    def encode(self, source: Ids | Images | Frames, lengths: Int[Tensor, " batch"] | None = None) -> Memory:
        self.clear()
        ctx = Context(lengths=lengths, keep=self.tap.needs_all_layers)
        x, ctx = self.encoder.run_tower(source, ctx, self.compute)
        outputs = [*list(ctx.notes.values())[:-1], x] if self.tap.needs_all_layers else [x]
        real = ctx.real(x)
        allowed = None if real is None else real[:, None, None]
        memory = Memory(self.tap(outputs), allowed, self.bridge.summary(x, ctx))
        return self.head.read_source(memory, source) if self.reads == "ids" else memory

    def run(self, inputs: Ids, ctx: Context) -> tuple[Stream, Context]:
        memory = ctx.memory
        if memory is None:
            raise UsageError("an encoder-decoder needs a source: give the context a memory, made by `encode`")
        if ctx.documents is not None and self.bridge.starts_state:
            want = "want one document a row, got several"
            raise UsageError(f"the bridge initializes the decoder's state from one source: {want}")
        if ctx.state is None and self.bridge.starts_state:
            ctx = dataclasses.replace(ctx, state=self.initial_state(memory, inputs.shape[1]))
        x, ctx = self.decoder.run_tower(inputs, ctx, self.compute, feed=lambda x: self.bridge.feed(x, memory))
        return self.head.point(x, memory), ctx

    def new_state(self, batch: int, capacity: int, memory: Memory | None = None) -> State:
        if memory is None:
            raise UsageError("an encoder-decoder begins from a source: encode it and pass the memory")
        return self.initial_state(memory, capacity)

    def initial_state(self, memory: Memory, capacity: int) -> State:
        """Return the state before the first token of a target, with capacity for this many tokens."""
        self.decoder.position.reserve(capacity)
        rows = memory.layers[0]
        state = State.empty(len(rows), capacity, rows.device)
        return dataclasses.replace(state, slots=self.bridge.initial_slots(memory), memory=memory)

    def token_vectors(
        self, ids: Ids | Images | Frames, lengths: Int[Tensor, " batch"] | None
    ) -> tuple[Stream, Bool[Tensor, "batch length"] | None]:
        memory = self.encode(ids, lengths)
        return memory.layers[-1], None if memory.allowed is None else memory.allowed[:, 0, 0]

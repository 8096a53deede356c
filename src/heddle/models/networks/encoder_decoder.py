"""Encoder-decoder: one tower reads the source, the other writes the target (Sutskever 2014; Cho 2014; Vaswani 2017)."""

import dataclasses

from jaxtyping import Bool, Int
from torch import Tensor

from heddle.core import ConfigError, UsageError, check_at_least, find, part
from heddle.core.shapes import Ids, Stream
from heddle.models.networks.model import AutoregressiveModel, ModelConfig, TieConfig, max_positions
from heddle.models.networks.tower import Tower, TowerConfig, shares_layers
from heddle.nn.adapters import AdapterConfig
from heddle.nn.base import Context, InitConfig, Module, NormalInitConfig, Place, Sight
from heddle.nn.ends import HeadConfig, SoftmaxHeadConfig
from heddle.nn.recurrent import BridgeConfig, NoBridgeConfig, Recurrent
from heddle.nn.stack import Branch, LastLayerConfig, PoolConfig, Sum, TapConfig
from heddle.nn.state import Memory, State

INPUTS = TieConfig(share="decoder.embedding.weight", of="encoder.embedding.weight")
OUTPUT = TieConfig(share="head.weight", of="encoder.embedding.weight")
ONE_TABLE = (INPUTS, OUTPUT)


@part("encoder_decoder")
class EncoderDecoderConfig(ModelConfig):
    """Predict each token of a target from those before it and the whole source."""

    vocab: int
    width: int
    context: int  # of either side
    encoder: TowerConfig
    decoder: TowerConfig
    head: HeadConfig = SoftmaxHeadConfig()
    tap: TapConfig = LastLayerConfig()
    bridge: BridgeConfig = NoBridgeConfig()
    init: InitConfig = NormalInitConfig()
    ties: tuple[TieConfig, ...] = ()
    adapters: tuple[AdapterConfig, ...] = ()  # what learns beside weights that then do not

    def __post_init__(self) -> None:
        check_at_least(1, vocab=self.vocab, width=self.width, context=self.context)
        if not isinstance(self.tap, LastLayerConfig) and shares_layers(self.decoder.plan):
            raise ConfigError("tap", want="last, for a looped decoder is one layer to the tap", got=self.tap.kind)
        if not isinstance(self.tap, LastLayerConfig) and find(self.encoder.plan, PoolConfig):
            raise ConfigError(
                "tap", want="last, for an encoder that pools has layers of unequal length", got=self.tap.kind
            )

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
        depths = config.encoder.plan.depth(), config.decoder.plan.depth()
        self.tap = config.tap.build(*depths)
        bare = isinstance(config.bridge, NoBridgeConfig)
        self.bridge = config.bridge.build(width, {} if bare else self._carried())
        self.max_length = max_positions(self.decoder)
        self.head = config.head.build(vocab, width)
        self.finish_build(config, sum(depths), seed)

    def _carried(self) -> dict[str, tuple[int, ...]]:
        """Return the sizes of what each recurrent part of the decoder carries, by its key in the state."""
        branches = [module for module in self.decoder.modules() if isinstance(module, Branch)]
        outer = [m for m in self.decoder.modules() if isinstance(m, Sum) or (isinstance(m, Module) and m.repeats > 1)]
        if any(isinstance(m, Recurrent) for around in outer for m in around.modules()):
            wish = "recurrent parts outside of loops and sums, for a bridge begins each once"
            raise ConfigError("decoder.plan", want=wish, got=type(outer[0]).__name__.lower())
        return {b.path: b.part.state_sizes() for b in branches if isinstance(b.part, Recurrent)}

    def encode(self, source: Ids, lengths: Int[Tensor, " batch"] | None = None) -> Memory:
        """Read sources, of which the first `lengths` tokens of each row are real; None: all."""
        self.clear()
        ctx = Context(new=lengths, keep=self.tap.needs_all_layers)
        x, ctx = self.encoder.run_tower(source, ctx, self.compute)
        outputs = [*list(ctx.notes.values())[:-1], x] if self.tap.needs_all_layers else [x]
        return Memory(self.tap(outputs), self._allowed(x, ctx), self.bridge.summary(x, ctx))

    @staticmethod
    def _allowed(x: Stream, ctx: Context) -> Bool[Tensor, "batch 1 1 source"] | None:
        real = ctx.real(x)
        return None if real is None else real[:, None, None]

    def run(self, inputs: Ids, ctx: Context) -> tuple[Stream, Context]:
        """Return the decoder's vectors; the context must hold the memory of the source."""
        memory = ctx.memory
        if memory is None:
            raise UsageError("an encoder-decoder needs a source: give the context a memory, made by `encode`")
        if ctx.documents is not None and self.bridge.starts_state:
            raise UsageError("a decoder whose state begins with its source cannot begin again: no documents in a row")
        if ctx.state is None and self.bridge.starts_state:
            ctx = dataclasses.replace(ctx, state=self.initial_state(memory, inputs.shape[1]))
        return self.decoder.run_tower(inputs, ctx, self.compute, feed=lambda x: self.bridge.feed(x, memory))

    def initial_state(self, memory: Memory, room: int) -> State:
        """Return the state before the first token of a target, with room for so many."""
        self.decoder.position.reserve(room)
        rows = memory.layers[0]
        state = State.empty(len(rows), room, rows.device)
        return dataclasses.replace(state, slots=self.bridge.initial_slots(memory), memory=memory)

    def empty_state(self, batch: int, room: int) -> State:
        """Refuse: a decoder begins with what its source says."""
        raise UsageError("an encoder-decoder begins from a source: encode it, then use `begin`")

    def reserve(self, length: int) -> None:
        """Make ready for rows of this length on either side, or say that the positions end before."""
        self.encoder.position.reserve(length)
        self.decoder.position.reserve(length)

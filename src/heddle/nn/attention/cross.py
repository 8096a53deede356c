"""Cross-attention: a decoder attends to the encoder's outputs (Bahdanau et al. 2014; Vaswani et al. 2017)."""

from heddle.core import ConfigError, UsageError, part
from heddle.core.shapes import Stream
from heddle.nn.attention.attention import MultiHeadAttention
from heddle.nn.attention.backends import AttentionInputs
from heddle.nn.attention.projections import ProjectionsConfig, check_heads, head_width_for
from heddle.nn.attention.scores import DotScoreConfig, ScoreConfig
from heddle.nn.base import Context, CrossConfig, FusedLinear, Place
from heddle.nn.state import CrossKVCache, Memory


@part("cross_attention")
class CrossAttentionConfig(CrossConfig):
    """Cross-attention: every position of the target attends to every position of the source.

    heads: how many attention heads.
    kv_heads: heads of keys and values; None: as many as heads; 1: multi-query; between: grouped-query.
    head_width: width of each head; None: width / heads.
    projections: how queries, keys, values and the output are projected.
    score: how a query and a key become a score.
    dropout: attention dropout: rate on the softmax weights.
    """

    heads: int
    kv_heads: int | None = None
    head_width: int | None = None
    projections: ProjectionsConfig = ProjectionsConfig()
    score: ScoreConfig = DotScoreConfig()
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_heads(self)

    def build(self, width: int, place: Place) -> "CrossAttention":
        if place.memory is None:
            raise ConfigError("plan", want="self-attention, because there is no encoder", got=self.kind)
        head_width_for(self, width)
        return CrossAttention(width, place.memory, self, place)


class CrossAttention(MultiHeadAttention):
    """output(softmax(score(query, memory key)) · memory value); no positions: the memory has its own."""

    def __init__(self, width: int, memory: int, config: CrossAttentionConfig, place: Place) -> None:
        super().__init__()
        self.build_projections(width, memory, config)
        self.key_value = FusedLinear(self.key, self.value)
        self.layer = place.layer

    def forward(self, x: Stream, ctx: Context) -> Stream:
        return self.attend(self.attention_inputs(x, ctx))

    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, CrossKVCache]:
        """Attend over the memory, whose keys and values are projected once and then kept."""
        memory = require_memory(ctx)
        cache = slot if isinstance(slot, CrossKVCache) else self.project_memory(memory)
        return self.attend(self.inputs_from(x, cache, memory)), cache

    def attention_inputs(self, x: Stream, ctx: Context) -> AttentionInputs:
        """Return queries of the target, and keys and values of the memory."""
        memory = require_memory(ctx)
        return self.inputs_from(x, self.project_memory(memory), memory)

    def inputs_from(self, x: Stream, cache: CrossKVCache, memory: Memory) -> AttentionInputs:
        """Return the inputs for a stream and the projected memory."""
        return AttentionInputs(self.split_query(self.query(x)), cache.keys, cache.values, memory.allowed)

    def project_memory(self, memory: Memory) -> CrossKVCache:
        """Return the keys and values of the memory that this layer sees."""
        return CrossKVCache(*self.split_key_value(*self.key_value(memory.at(self.layer))))

    def mixing_flops(self, length: int) -> int:
        return length * self.pair_flops()


def require_memory(ctx: Context) -> Memory:
    """Return the memory, or refuse."""
    if ctx.memory is None:
        raise UsageError("cross-attention needs a memory in the context")
    return ctx.memory

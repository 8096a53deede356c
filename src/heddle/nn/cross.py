"""Cross-attention: a decoder asks, the encoder's memory answers (Bahdanau et al. 2014; Vaswani et al. 2017)."""

from torch import Tensor

from heddle.core import ConfigError, UsageError, part
from heddle.core.shapes import Stream
from heddle.nn.attention import ProjectionsConfig
from heddle.nn.part import Context, CrossConfig, Linear, Place, Remembering, Role, check_at_least_one, check_dropout
from heddle.nn.scores import mix
from heddle.nn.state import Memory, Recalled


@part("cross_attention")
class CrossAttentionConfig(CrossConfig):
    """Every position of the target asks, every place of the source answers."""

    heads: int
    kv_heads: int | None = None
    head_width: int | None = None
    projections: ProjectionsConfig = ProjectionsConfig()
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_at_least_one(heads=self.heads, head_width=self.head_width)
        check_dropout(self.dropout)
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        if kv_heads < 1 or self.heads % kv_heads:
            raise ConfigError("kv_heads", want=f"a divisor of heads = {self.heads}", got=kv_heads)

    def build(self, width: int, place: Place) -> "CrossAttention":
        if place.memory is None:
            raise ConfigError("plan", want="self-attention, for there is no encoder to read", got=self.kind)
        if self.head_width is None and width % self.heads:
            raise ConfigError("heads", want=f"a divisor of the width {width}", got=self.heads)
        return CrossAttention(width, place.memory, self, place)


class CrossAttention(Remembering):
    """output(softmax(query · memory key / sqrt(head_width)) · memory value)."""

    def __init__(self, width: int, memory: int, config: CrossAttentionConfig, place: Place) -> None:
        super().__init__()
        self.heads, self.layer, self.dropout = config.heads, place.layer, config.dropout
        self.head_width = width // config.heads if config.head_width is None else config.head_width
        self.kv_heads = config.heads if config.kv_heads is None else config.kv_heads
        how = config.projections
        self.query = Linear(width, self.heads * self.head_width, bias=how.bias)
        self.key = Linear(memory, self.kv_heads * self.head_width, bias=how.bias)
        self.value = Linear(memory, self.kv_heads * self.head_width, bias=how.bias)
        self.output = Linear(self.heads * self.head_width, width, bias=how.output_bias, role=Role.INTO_STREAM)
        self.query_norm = how.norm.build(self.head_width)
        self.key_norm = how.norm.build(self.head_width)

    def forward(self, x: Stream, ctx: Context) -> Stream:
        return self.step(x, ctx, None)[0]

    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, Recalled]:
        """Ask the memory, whose keys and values are projected once and then kept."""
        if ctx.memory is None:
            raise UsageError("cross-attention needs a memory in the context")
        recalled = slot if isinstance(slot, Recalled) else self.recall(ctx.memory)
        query = self.query_norm(self.query(x).unflatten(-1, (self.heads, self.head_width))).transpose(1, 2)
        dropout = self.dropout if self.training else 0.0
        mixed = mix(query, recalled.keys, recalled.values, ctx.memory.allowed, causal=False, dropout=dropout)
        return self.output(mixed.transpose(1, 2).flatten(-2)), recalled

    def recall(self, memory: Memory) -> Recalled:
        """Project the memory that this layer sees."""
        states: Tensor = memory.at(self.layer)
        key = self.key_norm(self.key(states).unflatten(-1, (self.kv_heads, self.head_width)))
        value = self.value(states).unflatten(-1, (self.kv_heads, self.head_width))
        return Recalled(key.transpose(1, 2), value.transpose(1, 2))

    def mixing_flops(self, length: int) -> int:
        return 4 * length * self.heads * self.head_width

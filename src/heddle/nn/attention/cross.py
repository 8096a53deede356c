"""Cross-attention: a decoder asks, the encoder's memory answers (Bahdanau et al. 2014; Vaswani et al. 2017)."""

from heddle.core import ConfigError, UsageError, part
from heddle.core.shapes import Stream
from heddle.nn.attention.projections import Projected, ProjectionsConfig, check_heads, head_width_of
from heddle.nn.attention.scores import DotScoreConfig, Meeting, ScoreConfig
from heddle.nn.base import Context, CrossConfig, FusedLinear, Place
from heddle.nn.state import Memory, Recalled


@part("cross_attention")
class CrossAttentionConfig(CrossConfig):
    """Every position of the target asks, every place of the source answers."""

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
            raise ConfigError("plan", want="self-attention, for there is no encoder to read", got=self.kind)
        head_width_of(self, width)
        return CrossAttention(width, place.memory, self, place)


class CrossAttention(Projected):
    """output(softmax(score(query, memory key)) · memory value); no positions: the memory carries its own."""

    def __init__(self, width: int, memory: int, config: CrossAttentionConfig, place: Place) -> None:
        super().__init__()
        self.furnish(width, memory, config)
        self.answers = FusedLinear(self.key, self.value)
        self.layer = place.layer

    def forward(self, x: Stream, ctx: Context) -> Stream:
        return self.attend(self.meet(x, ctx))

    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, Recalled]:
        """Ask the memory, whose keys and values are projected once and then kept."""
        memory = remembered(ctx)
        recalled = slot if isinstance(slot, Recalled) else self.recall(memory)
        return self.attend(self.between(x, recalled, memory)), recalled

    def meet(self, x: Stream, ctx: Context) -> Meeting:
        """Return who asks, who answers and what lies between them, without a state."""
        memory = remembered(ctx)
        return self.between(x, self.recall(memory), memory)

    def between(self, x: Stream, recalled: Recalled, memory: Memory) -> Meeting:
        """Return the meeting of a stream with what is recalled of a memory."""
        return Meeting(self.asking(self.query(x)), recalled.keys, recalled.values, memory.allowed)

    def recall(self, memory: Memory) -> Recalled:
        """Project the memory that this layer sees."""
        return Recalled(*self.answering(*self.answers(memory.at(self.layer))))

    def mixing_flops(self, length: int) -> int:
        return length * self.pair_flops()


def remembered(ctx: Context) -> Memory:
    """Return the memory, or say that there is none."""
    if ctx.memory is None:
        raise UsageError("cross-attention needs a memory in the context")
    return ctx.memory

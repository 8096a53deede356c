"""Language model: embedding, positions, stack, norm and head, from the LSTM to the Transformer."""

from heddle.core import ConfigError, check_at_least, find, part
from heddle.core.shapes import Ids, Stream
from heddle.models.networks.model import AutoregressiveModel, ModelConfig, TieConfig, max_positions
from heddle.models.networks.tower import BaseTower
from heddle.nn.adapters import AdapterConfig
from heddle.nn.base import Context, InitConfig, NormalInitConfig, Place, Sight
from heddle.nn.ends import EmbeddingConfig, FullEmbeddingConfig, HeadConfig, SoftmaxHeadConfig
from heddle.nn.layers import NoNormConfig, NormConfig
from heddle.nn.positions import NoPositionConfig, PositionConfig
from heddle.nn.stack import PlanConfig, PoolConfig
from heddle.nn.state import State

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
    adapters: tuple[AdapterConfig, ...] = ()  # what learns beside weights that then do not
    sight: Sight = "past"

    def __post_init__(self) -> None:
        check_at_least(1, vocab=self.vocab, width=self.width, context=self.context)
        if find(self.plan, PoolConfig):
            raise ConfigError("plan", want="no pool, for every token has an output of its own", got="pool")

    def build(self, seed: int = 0) -> "LanguageModel":
        return LanguageModel(self, seed)


class LanguageModel(AutoregressiveModel, BaseTower):
    """head(norm(stack(embedding(ids) + positions)))."""

    def __init__(self, config: LanguageModelConfig, seed: int = 0) -> None:
        super().__init__()
        self.config, self.context, self.vocab = config, config.context, config.vocab
        self.build_tower(config, config.vocab, config.width, Place(sight=config.sight, context=config.context))
        self.max_length = max_positions(self)
        self.head = config.head.build(config.vocab, config.width)
        self.finish_build(config, config.plan.depth(), seed)

    def run(self, inputs: Ids, ctx: Context) -> tuple[Stream, Context]:
        """Return the last layer's vectors and the context with all that the layers left in it."""
        self.clear()
        return self.run_tower(inputs, ctx, self.compute)

    def reserve(self, length: int) -> None:
        """Make ready for rows of this length, or say that the positions end before."""
        self.position.reserve(length)

    def empty_state(self, batch: int, room: int) -> State:
        """Return a state in which nothing was seen."""
        return State.empty(batch, room, next(self.parameters()).device)

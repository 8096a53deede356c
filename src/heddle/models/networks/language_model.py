"""Language model: embedding, positions, stack, norm and head, from the LSTM to the decoder-only Transformer."""

from jaxtyping import Bool, Int
from torch import Tensor

from heddle.core import ConfigError, check_at_least, find, part
from heddle.core.shapes import Ids, Stream
from heddle.models.networks.model import AutoregressiveModel, NetworkConfig, TieConfig, max_positions
from heddle.models.networks.tower import BaseTower
from heddle.nn.adapters import AdapterConfig
from heddle.nn.base import Context, InitConfig, NormalInitConfig, Place, Sight
from heddle.nn.ends import EmbeddingConfig, FullEmbeddingConfig, HeadConfig, SoftmaxHeadConfig
from heddle.nn.layers import NoNormConfig, NormConfig
from heddle.nn.positions import NoPositionConfig, PositionConfig
from heddle.nn.stack import PlanConfig, PoolConfig

TIED = (TieConfig(share="head.weight", of="embedding.weight"),)


@part("language_model")
class LanguageModelConfig(NetworkConfig):
    """Language model: predict each token from those that its position may see.

    vocab: how many token ids there are.
    width: numbers in the vector of each position.
    context: most tokens of a row.
    plan: the layers.
    embedding: how ids become vectors.
    position: how the model knows the order of tokens.
    norm: normalization after the last layer.
    head: how vectors become probabilities of the next token.
    init: how weights are initialized.
    ties: weight tying: pairs of names that share one matrix.
    adapters: LoRA and the like; the other weights are then frozen.
    sight: which positions each one may see: those before it, or all of the row.
    """

    noun = "a language model"

    vocab: int
    width: int
    context: int
    plan: PlanConfig
    embedding: EmbeddingConfig = FullEmbeddingConfig()
    position: PositionConfig = NoPositionConfig()
    norm: NormConfig = NoNormConfig()
    head: HeadConfig = SoftmaxHeadConfig()
    init: InitConfig = NormalInitConfig()
    ties: tuple[TieConfig, ...] = ()
    adapters: tuple[AdapterConfig, ...] = ()
    sight: Sight = "past"

    def __post_init__(self) -> None:
        check_at_least(1, vocab=self.vocab, width=self.width, context=self.context)
        if find(self.plan, PoolConfig):
            raise ConfigError("plan", want="no pool, because every token needs its own output", got="pool")
        if self.embedding.reads != "ids":
            want = "one of ids, because a language model reads and writes the same tokens"
            raise ConfigError("embedding", want=want, got=self.embedding.kind)
        if self.head.copies:
            raise ConfigError("head", want="one that does not copy, because there is no source", got=self.head.kind)

    @property
    def sees_next_token(self) -> bool:
        return self.sight != "past"

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

    @property
    def towers(self) -> tuple[BaseTower, ...]:
        return (self,)

    @property
    def decoder_tower(self) -> BaseTower:
        return self

    def run(self, inputs: Ids, ctx: Context) -> tuple[Stream, Context]:
        self.clear()
        return self.run_tower(inputs, ctx, self.compute)

    def token_vectors(
        self, ids: Ids, lengths: Int[Tensor, " batch"] | None
    ) -> tuple[Stream, Bool[Tensor, "batch length"] | None]:
        x = self.hidden_states(ids)  # padding is on the right, where the past does not see it
        return x, Context(lengths=lengths).real(x)

"""Small models: one for a part of any family to stand in, so that a law written once holds for all of them.

`built` and `loud` build one; an encoder-decoder is built with a fixed source, so that its decoder is tested alike.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from heddle.core import Config, find, replace, swap
from heddle.models.networks import (
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    LanguageModelConfig,
    ModelConfig,
    TowerConfig,
    pre_norm,
)
from heddle.nn.adapters import AdapterConfig
from heddle.nn.attention import (
    AttentionConfig,
    BlendConfig,
    BranchedAttentionConfig,
    BranchWeightsConfig,
    CrossAttentionConfig,
    PatternConfig,
    ProjectionsConfig,
    ScoreConfig,
    SynthesizerConfig,
    ValuesConfig,
)
from heddle.nn.base import (
    ChannelConfig,
    Context,
    CrossConfig,
    FanInInitConfig,
    InitConfig,
    MixerConfig,
    Module,
    PartConfig,
)
from heddle.nn.channels import (
    CapacityConfig,
    ExpertsConfig,
    FeedForwardConfig,
    GatedFeedForwardConfig,
    LoadBalancingConfig,
    RouterConfig,
)
from heddle.nn.ends import EmbeddingConfig, HeadConfig
from heddle.nn.layers import DropoutConfig, LayerNormConfig, MaskConfig, NoNormConfig, NormConfig
from heddle.nn.outputs import DenseFirstTokenConfig, OutputConfig, PoolingConfig
from heddle.nn.positions import (
    LearnedPositionConfig,
    NoPositionConfig,
    PositionConfig,
    RotaryPositionConfig,
    RotaryScalingConfig,
)
from heddle.nn.recurrent import (
    AlignmentConfig,
    AttentionRNNConfig,
    BridgeConfig,
    ContextUseConfig,
    FirstStateConfig,
    LSTMConfig,
    NoBridgeConfig,
)
from heddle.nn.sources import ConvolutionalStemConfig, GridPositionConfig, StemConfig, TubeletEmbeddingConfig
from heddle.nn.stack import JoinConfig, PlanConfig, RepeatConfig, TapConfig
from heddle.nn.state import Memory, State

WIDTH, HEADS, VOCAB, CONTEXT = 16, 4, 23, 12

ATTENTION = AttentionConfig(heads=HEADS)
CROSS = CrossAttentionConfig(heads=HEADS)
CHANNEL = FeedForwardConfig(hidden=24, activation="gelu")
BLOCK = pre_norm(ATTENTION, CHANNEL, norm=LayerNormConfig())
EXPERTS = ExpertsConfig(experts=4, expert=GatedFeedForwardConfig(hidden=12))
POOLER = DenseFirstTokenConfig()


def small(plan: PlanConfig, **fields: Config | tuple[Config, ...] | str) -> LanguageModelConfig:
    """Return a small model around a plan."""
    start = LanguageModelConfig(
        vocab=VOCAB,
        width=WIDTH,
        context=CONTEXT,
        plan=plan,
        position=LearnedPositionConfig(),
        norm=LayerNormConfig(),
        init=FanInInitConfig(embedding=0.5, into_stream=0.5),
    )
    return replace(start, **fields)


def apart(config: LanguageModelConfig) -> LanguageModelConfig:
    """Return a model whose heads are not normed all at once: shifted keys would change nothing, and learn nothing."""
    return swap(ProjectionsConfig, lambda p: replace(p, across=NoNormConfig()))(config)


def around(*parts: PartConfig) -> LanguageModelConfig:
    """Return two pre-norm layers of some parts."""
    return small(RepeatConfig(body=pre_norm(*parts, norm=LayerNormConfig()), times=2))


def tower(*parts: PartConfig) -> TowerConfig:
    """Return one side of an encoder-decoder: two pre-norm layers."""
    plan = RepeatConfig(body=pre_norm(*parts, norm=LayerNormConfig()), times=2)
    return TowerConfig(plan=plan, position=LearnedPositionConfig(), norm=LayerNormConfig())


def pair(encoder: TowerConfig | None = None, decoder: TowerConfig | None = None, **fields: Any) -> EncoderDecoderConfig:
    """Return a small encoder-decoder."""
    start = EncoderDecoderConfig(
        vocab=VOCAB,
        width=WIDTH,
        context=CONTEXT,
        encoder=tower(ATTENTION, CHANNEL) if encoder is None else encoder,
        decoder=tower(ATTENTION, CROSS, CHANNEL) if decoder is None else decoder,
        init=FanInInitConfig(embedding=0.5, into_stream=0.5),
    )
    return replace(start, **fields)


def encoder(**fields: Any) -> EncoderConfig:
    """Return a small encoder with a pooler."""
    start = EncoderConfig(
        vocab=VOCAB,
        width=WIDTH,
        context=CONTEXT,
        plan=RepeatConfig(body=BLOCK, times=2),
        position=LearnedPositionConfig(),
        norm=LayerNormConfig(),
        pooling=POOLER,
        init=FanInInitConfig(embedding=0.5, into_stream=0.5),
    )
    return replace(start, **fields)


def bridged(bridge: BridgeConfig) -> EncoderDecoderConfig:
    """Return a recurrent encoder-decoder, which a bridge needs; with none, its decoder reads by cross-attention."""
    if isinstance(bridge, NoBridgeConfig):
        return pair()
    recurrent = pre_norm(LSTMConfig(hidden=8), norm=LayerNormConfig())
    return pair(tower(ATTENTION, CHANNEL), TowerConfig(plan=RepeatConfig(body=recurrent, times=2)), bridge=bridge)


def attention_rnn_pair(part: AttentionRNNConfig) -> EncoderDecoderConfig:
    """Return an encoder-decoder whose decoder looks at the source from within its own loop, without a bridge."""
    return pair(decoder=TowerConfig(plan=RepeatConfig(body=pre_norm(part, norm=LayerNormConfig()), times=2)))


# Each family, and the small model that a member of it is put into.
FAMILIES: dict[type[Config], Callable[[Any], ModelConfig]] = {
    MixerConfig: lambda mixer: around(mixer, CHANNEL),
    ChannelConfig: lambda channel: around(ATTENTION, channel),
    RouterConfig: lambda router: around(ATTENTION, replace(EXPERTS, router=router)),
    CapacityConfig: lambda capacity: around(ATTENTION, replace(EXPERTS, capacity=capacity)),
    LoadBalancingConfig: lambda balance: around(ATTENTION, replace(EXPERTS, balance=balance)),
    ScoreConfig: lambda score: around(replace(ATTENTION, kv_heads=2, score=score), CHANNEL),
    RotaryScalingConfig: lambda scaling: replace(
        around(ATTENTION, CHANNEL), position=RotaryPositionConfig(scaling=scaling)
    ),
    MaskConfig: lambda mask: around(replace(ATTENTION, mask=mask), CHANNEL),
    ValuesConfig: lambda values: around(replace(ATTENTION, kv_heads=2, values=values), CHANNEL),
    PlanConfig: small,
    PositionConfig: lambda position: replace(around(ATTENTION, CHANNEL), position=position),
    NormConfig: lambda norm: apart(swap(NormConfig, norm)(around(ATTENTION, CHANNEL))),
    JoinConfig: lambda join: swap(JoinConfig, join)(around(ATTENTION, CHANNEL)),
    EmbeddingConfig: lambda embedding: replace(around(ATTENTION, CHANNEL), embedding=embedding),
    HeadConfig: lambda head: pair(head=head) if head.copies else replace(around(ATTENTION, CHANNEL), head=head),
    InitConfig: lambda init: replace(around(ATTENTION, CHANNEL), init=init),
    DropoutConfig: lambda dropout: swap(DropoutConfig, dropout)(around(ATTENTION, CHANNEL)),
    CrossConfig: lambda cross: pair(decoder=tower(ATTENTION, cross, CHANNEL)),
    TapConfig: lambda tap: pair(tap=tap),
    BridgeConfig: bridged,
    AlignmentConfig: lambda alignment: attention_rnn_pair(AttentionRNNConfig(alignment=alignment)),
    ContextUseConfig: lambda use: attention_rnn_pair(AttentionRNNConfig(cell=LSTMConfig(hidden=8), use=use)),
    OutputConfig: lambda output: encoder(outputs=(output,), pooling=POOLER if output.reads == "pooled" else None),
    PoolingConfig: lambda pooling: bridged(FirstStateConfig(pooling=pooling)),
    PatternConfig: lambda pattern: around(SynthesizerConfig(heads=HEADS, pattern=pattern), CHANNEL),
    BlendConfig: lambda blend: around(SynthesizerConfig(heads=HEADS, head_width=6, blend=blend), CHANNEL),
    BranchWeightsConfig: lambda shares: around(
        BranchedAttentionConfig(attention=ATTENTION, channel=CHANNEL, shares=shares), CHANNEL
    ),
    StemConfig: lambda stem: watching(stem=stem),
    GridPositionConfig: lambda grid: watching(grid=grid),
    AdapterConfig: lambda adapter: replace(around(ATTENTION, CHANNEL), adapters=(adapter,)),
}


def watching(**fields: Any) -> EncoderDecoderConfig:
    """Return an encoder-decoder that reads small videos."""
    start = TubeletEmbeddingConfig(size=1, channels=2, stem=ConvolutionalStemConfig(channels=(4,)))
    reading = replace(tower(ATTENTION, CHANNEL), embedding=replace(start, **fields), position=NoPositionConfig())
    return pair(reading)


def idle(config: Any, name: str) -> bool:
    """Tell whether a weight has no gradient by its nature.

    The last bias that a key passes adds one number to all scores of a query, which the softmax takes out again;
    only a rotation, which turns it by position, gives it a say.
    """
    if any(isinstance(p, RotaryPositionConfig) for p in find(config, PositionConfig)):
        return False
    normed = any(not isinstance(a.projections.norm, NoNormConfig) for a in find(config, AttentionConfig))
    return name.endswith("part.key_norm.bias" if normed else "part.key.bias")


def as_source(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Return tokens as a source that the model reads: themselves or, for frames, features of each token's own."""
    if model.reads == "ids":
        return tokens
    reader = model.towers[0]
    shape = reader.item_shape or small_picture(reader.embedding)
    table = torch.randn(VOCAB, *shape, generator=torch.Generator().manual_seed(9))
    return table.to(next(model.parameters()).dtype)[tokens[..., 0] if model.reads == "images" else tokens]


def small_picture(embedding: Any) -> tuple[int, int, int]:
    """Return the shape of a picture of two by two patches; an image has no padding: its first token alone counts."""
    side = 2 * embedding.size * embedding.stem.shrinks
    return embedding.channels, side, side


class Given(torch.nn.Module):
    """An encoder-decoder with a fixed source, so that its decoder can be tested as a language model."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model, self.config, self.source = model, model.config, ids(1, min(7, model.context), seed=4) % model.vocab
        self.head, self.embedding, self.position = model.head, model.decoder.embedding, model.decoder.position

    def memory(self, batch: int) -> Memory:
        return self.model.encode(as_source(self.model, self.source)).map(lambda t: t.expand(batch, *t.shape[1:]))

    def forward(self, inputs: torch.Tensor, ctx: Context | None = None) -> Any:
        ctx = Context() if ctx is None else ctx
        return self.model(inputs, dataclasses.replace(ctx, memory=self.memory(len(inputs))))

    def weights(self) -> dict[str, torch.Tensor]:
        return self.model.weights()

    def auxiliary_loss(self) -> torch.Tensor | None:
        return self.model.auxiliary_loss()

    def new_state(self, batch: int, capacity: int) -> State:
        return self.model.initial_state(self.memory(batch), capacity)

    def step(self, inputs: torch.Tensor, state: State, lengths: torch.Tensor | None = None) -> Any:
        return self.model.step(inputs, state, lengths)


def built(config: Any, seed: int = 0) -> Any:
    """Build a language model, or an encoder-decoder with its source."""
    model = config.build(seed)
    return Given(model) if isinstance(model, EncoderDecoder) else model


@torch.no_grad()
def loud(config: Any, seed: int = 0) -> Any:
    """Build a model in double precision whose every weight, biases and gains too, has its say in the output."""
    model = built(replace(config, init=FanInInitConfig(embedding=1.0, into_stream=1.0)), seed).double()
    draw = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight += 0.2 * torch.randn(weight.shape, generator=draw, dtype=torch.float64)
    for module in model.modules():
        if isinstance(module, Module):
            module.reset_buffers()  # the cast kept single-precision tables
    return model.eval()


def ids(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    """Draw token ids."""
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))

"""Encoders: BERT, RoBERTa, DistilBERT, ALBERT, ELECTRA and the Vision Transformer (ViT)."""

from dataclasses import replace

from heddle.core import find
from heddle.models.networks import BIASED, EncoderConfig, TieConfig, post_norm, pre_norm, with_entry
from heddle.nn.attention import AttentionConfig
from heddle.nn.channels import FeedForwardConfig
from heddle.nn.ends import (
    EmbeddingConfig,
    NarrowEmbeddingConfig,
    SegmentedEmbeddingConfig,
    TransformedHeadConfig,
)
from heddle.nn.layers import ElementDropoutConfig, LayerNormConfig
from heddle.nn.outputs import (
    DenseFirstTokenConfig,
    FirstTokenConfig,
    MaskedTokenOutputConfig,
    NextSentenceOutputConfig,
    OutputConfig,
    PoolingConfig,
    ReplacedTokenOutputConfig,
    SequenceClassOutputConfig,
)
from heddle.nn.positions import LearnedPositionConfig
from heddle.nn.sources import PatchEmbeddingConfig
from heddle.nn.stack import BlockConfig, ChainConfig, EntryConfig, LoopConfig, RepeatConfig

PRECISE = LayerNormConfig(eps=1e-12)  # so small that it never matters


def _layer(heads: int, hidden: int | None, norm: LayerNormConfig, dropout: float) -> BlockConfig:
    attention = AttentionConfig(heads=heads, projections=BIASED, dropout=dropout)
    channel = FeedForwardConfig(hidden=hidden, activation="gelu", bias=True)
    return post_norm(attention, channel, norm=norm, dropout=dropout)


def bert(
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    hidden: int | None = None,
    vocab: int = 30_522,
    context: int = 512,
    dropout: float = 0.1,
) -> EncoderConfig:
    """BERT (Devlin et al. 2018): post-norm, learned positions, two segments, GELU; with its pooler."""
    return EncoderConfig(
        vocab=vocab,
        width=width,
        context=context,
        plan=with_entry(_layer(heads, hidden, PRECISE, dropout), layers, dropout, PRECISE),
        embedding=SegmentedEmbeddingConfig(),
        position=LearnedPositionConfig(),
        pooling=DenseFirstTokenConfig(),
    )


def roberta(
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    hidden: int | None = None,
    vocab: int = 50_265,
    context: int = 512,
    dropout: float = 0.1,
) -> EncoderConfig:
    """RoBERTa (Liu et al. 2019): BERT with one segment and positions from the table's third row on."""
    norm = LayerNormConfig(eps=1e-5)
    return EncoderConfig(
        vocab=vocab,
        width=width,
        context=context,
        plan=with_entry(_layer(heads, hidden, norm, dropout), layers, dropout, norm),
        embedding=SegmentedEmbeddingConfig(segments=1),
        position=LearnedPositionConfig(first=2),
        pooling=DenseFirstTokenConfig(),
    )


def distilbert(
    layers: int = 6,
    width: int = 768,
    heads: int = 12,
    hidden: int | None = None,
    vocab: int = 30_522,
    context: int = 512,
    dropout: float = 0.1,
) -> EncoderConfig:
    """DistilBERT (Sanh et al. 2019): BERT at half its depth, without segments and pooler."""
    return EncoderConfig(
        vocab=vocab,
        width=width,
        context=context,
        plan=with_entry(_layer(heads, hidden, PRECISE, dropout), layers, dropout, PRECISE),
        position=LearnedPositionConfig(),
    )


def albert(
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    hidden: int | None = None,
    vocab: int = 30_000,
    context: int = 512,
    inner: int = 128,
    dropout: float = 0.0,
) -> EncoderConfig:
    """ALBERT (Lan et al. 2020): one layer's weights for all layers, a factorized embedding; with its pooler."""
    attention = AttentionConfig(heads=heads, projections=BIASED, dropout=dropout)
    channel = FeedForwardConfig(hidden=hidden, activation="gelu_tanh", bias=True)
    embedding = NarrowEmbeddingConfig(
        inner=inner,
        table=SegmentedEmbeddingConfig(),
        position=LearnedPositionConfig(),
        norm=PRECISE,
        dropout=ElementDropoutConfig(rate=dropout),
    )
    return EncoderConfig(
        vocab=vocab,
        width=width,
        context=context,
        plan=LoopConfig(body=post_norm(attention, channel, norm=PRECISE, dropout=dropout), turns=layers),
        embedding=embedding,
        pooling=DenseFirstTokenConfig(),
    )


def electra(
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    hidden: int | None = None,
    vocab: int = 30_522,
    context: int = 512,
    dropout: float = 0.1,
    generator: int = 3,
) -> EncoderConfig:
    """ELECTRA (Clark et al. 2020): BERT that detects replaced tokens; a narrower generator shares embeddings."""
    made = bert(layers, width, heads, hidden, vocab, context, dropout)
    narrow, table = width // generator, f"embedding.{table_of(made.embedding)}"
    fitting = max(count for count in range(1, max(1, heads // generator) + 1) if narrow % count == 0)
    layer = _layer(fitting, None if hidden is None else hidden // generator, PRECISE, dropout)
    small = EncoderConfig(
        vocab=vocab,
        width=narrow,
        context=context,
        plan=RepeatConfig(body=layer, times=layers),
        embedding=NarrowEmbeddingConfig(
            inner=width,
            table=SegmentedEmbeddingConfig(),
            position=LearnedPositionConfig(),
            norm=PRECISE,
            dropout=ElementDropoutConfig(rate=dropout),
        ),
        outputs=(MaskedTokenOutputConfig(head=TransformedHeadConfig(inner=width)),),
    )
    inner = "generator.embedding"
    shared = {
        f"{inner}.table.tokens.weight": table,
        f"{inner}.table.segments.weight": "embedding.segments.weight",
        f"{inner}.position.weight": "position.weight",
        "generator.outputs.masked_token.head.weight": table,
    }
    ties = tuple(TieConfig(share=share, of=of) for share, of in shared.items())
    return replace(made, pooling=None, outputs=(ReplacedTokenOutputConfig(),), generator=small, ties=ties)


def vit(
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    hidden: int | None = None,
    side: int = 224,
    patch: int = 16,
    classes: int = 1000,
    dropout: float = 0.0,
    channels: int = 3,
) -> EncoderConfig:
    """Vision Transformer (Dosovitskiy et al. 2021): patches of an image as tokens, pre-norm; with its classes."""
    attention = AttentionConfig(heads=heads, projections=BIASED, dropout=dropout)
    channel = FeedForwardConfig(hidden=hidden, activation="gelu", bias=True)
    drop = ElementDropoutConfig(rate=dropout)
    body = RepeatConfig(body=pre_norm(attention, channel, norm=PRECISE, dropout=dropout), times=layers)
    return EncoderConfig(
        width=width,
        context=1 + (side // patch) ** 2,
        plan=ChainConfig(bodies=(EntryConfig(dropout=drop), body)) if dropout else body,
        embedding=PatchEmbeddingConfig(size=patch, channels=channels),
        position=LearnedPositionConfig(),
        norm=PRECISE,
        pooling=FirstTokenConfig(),
        outputs=(SequenceClassOutputConfig(classes=classes),),
    )


# --- edits: outputs ---------------------------------------------------------------------------------------------------


def masked(config: EncoderConfig) -> EncoderConfig:
    """Return an encoder with a masked language modelling head, tied to its embedding, instead of a pooler."""
    return _with_outputs(config, None, _masked_token(config))


def pre_training(config: EncoderConfig) -> EncoderConfig:
    """Return an encoder with both heads of BERT's pre-training: masked tokens and next sentence."""
    pooling = config.pooling or DenseFirstTokenConfig()
    return _with_outputs(config, pooling, _masked_token(config), NextSentenceOutputConfig())


def _with_outputs(config: EncoderConfig, pooling: PoolingConfig | None, *outputs: OutputConfig) -> EncoderConfig:
    tie = TieConfig(share="outputs.masked_token.head.weight", of=f"embedding.{table_of(config.embedding)}")
    return replace(config, pooling=pooling, outputs=outputs, ties=(*config.ties, tie))


def _masked_token(config: EncoderConfig) -> MaskedTokenOutputConfig:
    inner = config.embedding.inner if isinstance(config.embedding, NarrowEmbeddingConfig) else None
    activation, norm = find(config.plan, FeedForwardConfig)[0].activation, find(config.plan, LayerNormConfig)[0]
    return MaskedTokenOutputConfig(head=TransformedHeadConfig(inner=inner, activation=activation, norm=norm))


def table_of(embedding: EmbeddingConfig) -> str:
    """Return the name of the token table inside an embedding, for weight tying with a head."""
    if isinstance(embedding, SegmentedEmbeddingConfig):
        return f"tokens.{table_of(embedding.tokens)}"
    if isinstance(embedding, NarrowEmbeddingConfig):
        return f"table.{table_of(embedding.table)}"
    return "weight"

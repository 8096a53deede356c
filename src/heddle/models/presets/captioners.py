"""Captioners: pictures or video to text (Vinyals et al. 2015; show, attend and tell, Xu et al. 2015; ViT encoders)."""

from heddle.models.networks import EncoderDecoderConfig, TieConfig, TowerConfig, pre_norm, with_entry
from heddle.nn.attention import AttentionConfig, CrossAttentionConfig
from heddle.nn.base import FanInInitConfig, XavierInitConfig
from heddle.nn.channels import FeedForwardConfig
from heddle.nn.ends import EmbeddingConfig, FrameEmbeddingConfig, FullEmbeddingConfig
from heddle.nn.layers import ElementDropoutConfig, LayerNormConfig
from heddle.nn.outputs import MeanConfig
from heddle.nn.positions import SinusoidalPositionConfig
from heddle.nn.recurrent import AttentionRNNConfig, FirstStateConfig, LSTMConfig
from heddle.nn.sources import (
    ConvolutionalStemConfig,
    LearnedGridConfig,
    OneSourceConfig,
    PatchEmbeddingConfig,
    SeveralEmbeddingConfig,
    TubeletEmbeddingConfig,
)
from heddle.nn.stack import BlockConfig, BranchConfig, ChainConfig, RepeatConfig, ReplaceConfig

ONE_TARGET_TABLE = (TieConfig(share="head.weight", of="decoder.embedding.weight"),)


def image_captioner(
    layers: int = 4,
    width: int = 256,
    heads: int = 4,
    hidden: int | None = None,
    vocab: int = 8000,
    context: int = 64,
    dropout: float = 0.1,
    patch: int = 2,
    channels: int = 3,
) -> EncoderDecoderConfig:
    """Image captioner: a Transformer over patches behind a convolutional stem, and a Transformer that writes."""
    stem = ConvolutionalStemConfig(channels=(32, 64, 128), blocks=1)
    drop = ElementDropoutConfig(rate=dropout)
    patches = PatchEmbeddingConfig(size=patch, channels=channels, stem=stem, grid=LearnedGridConfig(), dropout=drop)
    return _transformer(patches, (layers, heads, hidden), width, (vocab, context), dropout)


def video_captioner(
    layers: int = 4,
    width: int = 256,
    heads: int = 4,
    hidden: int | None = None,
    vocab: int = 8000,
    context: int = 64,
    dropout: float = 0.1,
    patch: int = 2,
    frames: int = 1,
    channels: int = 3,
) -> EncoderDecoderConfig:
    """Video captioner: a Transformer over tubelets behind a stem that sees motion, and a Transformer that writes."""
    stem = ConvolutionalStemConfig(channels=(32, 64, 128), frames=3)
    drop = ElementDropoutConfig(rate=dropout)
    grid = LearnedGridConfig(frames=256)
    tubelets = TubeletEmbeddingConfig(frames=frames, size=patch, channels=channels, stem=stem, grid=grid, dropout=drop)
    return _transformer(tubelets, (layers, heads, hidden), width, (vocab, context), dropout)


def show_attend_tell(
    layers: int = 1,
    width: int = 512,
    vocab: int = 8000,
    context: int = 64,
    dropout: float = 0.3,
    channels: int = 3,
) -> EncoderDecoderConfig:
    """Show, attend and tell (Xu et al. 2015): an LSTM that attends to the places of a convolutional network."""
    stem = ConvolutionalStemConfig(channels=(32, 64, 128, 256), blocks=1)
    drop = ElementDropoutConfig(rate=dropout)
    places = PatchEmbeddingConfig(size=1, channels=channels, stem=stem, grid=LearnedGridConfig(), dropout=drop)
    looking = _recurrent(AttentionRNNConfig(), dropout)
    above = (RepeatConfig(body=_recurrent(LSTMConfig(), dropout), times=layers - 1),) if layers > 1 else ()
    return EncoderDecoderConfig(
        vocab=vocab,
        width=width,
        context=context,
        encoder=TowerConfig(plan=BlockConfig(branches=()), embedding=places, norm=LayerNormConfig()),
        decoder=TowerConfig(plan=ChainConfig(bodies=(looking, *above)), embedding=FullEmbeddingConfig(dropout=drop)),
        bridge=FirstStateConfig(pooling=MeanConfig()),
        init=FanInInitConfig(embedding=width**-0.5, into_stream=1.0),
        ties=ONE_TARGET_TABLE,
    )


def audio_visual_transformer(
    layers: int = 4,
    width: int = 256,
    heads: int = 4,
    hidden: int | None = None,
    vocab: int = 8000,
    context: int = 256,
    dropout: float = 0.1,
    rows: int = 32,
    columns: int = 64,
    channels: int = 1,
    mels: int = 80,
    steps: int = 4,
) -> EncoderDecoderConfig:
    """Speech in video (Afouras et al. 2018): tubelets of the mouth and frames of sound side by side, one encoder."""
    stem = ConvolutionalStemConfig(channels=(32, 64, 128), frames=3)
    drop = ElementDropoutConfig(rate=dropout)
    tubelets = TubeletEmbeddingConfig(
        frames=1, size=4, channels=channels, stem=stem, grid=LearnedGridConfig(frames=256), dropout=drop
    )
    seen = OneSourceConfig(shape=(channels, rows, columns), embedding=tubelets)
    frames = FrameEmbeddingConfig(features=mels, dropout=drop)
    heard = OneSourceConfig(shape=(mels,), steps=steps, embedding=frames, position=SinusoidalPositionConfig())
    both = SeveralEmbeddingConfig(sources=(seen, heard))
    return _transformer(both, (layers, heads, hidden), width, (vocab, context), dropout)


def _transformer(
    source: EmbeddingConfig,
    sizes: tuple[int, int, int | None],
    width: int,
    target: tuple[int, int],
    dropout: float,
) -> EncoderDecoderConfig:
    """Return a pre-norm Transformer that reads a source; sizes are layers, heads and hidden of each side."""
    layers, heads, hidden = sizes
    attention, cross = AttentionConfig(heads=heads), CrossAttentionConfig(heads=heads)
    channel = FeedForwardConfig(hidden=hidden, bias=True)
    norm = LayerNormConfig()
    reading = pre_norm(attention, channel, norm=norm, dropout=dropout)
    writing = pre_norm(attention, cross, channel, norm=norm, dropout=dropout)
    return EncoderDecoderConfig(
        vocab=target[0],
        width=width,
        context=target[1],
        encoder=TowerConfig(plan=RepeatConfig(body=reading, times=layers), embedding=source, norm=norm),
        decoder=TowerConfig(
            plan=with_entry(writing, layers, dropout),
            embedding=FullEmbeddingConfig(power=0.5),
            position=SinusoidalPositionConfig(),
            norm=norm,
        ),
        init=XavierInitConfig(),
        ties=ONE_TARGET_TABLE,
    )


def _recurrent(part: AttentionRNNConfig | LSTMConfig, dropout: float) -> BlockConfig:
    branch = BranchConfig(part=part, dropout=ElementDropoutConfig(rate=dropout), join=ReplaceConfig())
    return BlockConfig(branches=(branch,))

"""Pictures to text: captions of images and of video, and classes of images, for folders and manifests of them."""

from heddle.core import replace
from heddle.data.media import AudioVisualConfig, ClipConfig, CropConfig, FlipConfig, PixelsConfig
from heddle.data.pictures import AudioVisualSource, ImageClassSource, ImageSource, VideoSource
from heddle.data.rows import MediaExampleRows, MediaRows
from heddle.data.sources import CorpusConfig
from heddle.models.presets import PresetConfig
from heddle.objectives import ClassifyConfig, CtcAttentionConfig, SequenceConfig
from heddle.text.tokenizers import BpeTokenizer, CharacterTokenizer
from heddle.training import EveryConfig, KeepConfig, RunConfig, TrainingConfig
from heddle.training.optimizers import AdamWConfig, CosineConfig


def caption() -> RunConfig:
    """A small Transformer learns to describe the images in the folder images, each with captions beside it."""
    return RunConfig(
        name="caption",
        model=PresetConfig(name="image_captioner", layers=4, width=256, heads=4, dropout=0.2),
        tokenizer=BpeTokenizer(vocab=4000, lowercase=True),
        data=CorpusConfig(sources=(ImageSource(path="images"),)),
        rows=MediaRows(
            length=48, source_length=1, batch=64, features=PixelsConfig(), augment=(CropConfig(), FlipConfig())
        ),
        objective=SequenceConfig(smoothing=0.1),
        training=TrainingConfig(
            steps=4000,
            batch=64,
            optimizer=AdamWConfig(learning_rate=1e-3, betas=(0.9, 0.98), weight_decay=0.05),
            schedule=CosineConfig(warmup=400, floor=0.0),
        ),
        every=EveryConfig(log=10, validate=200, save=200, sample=1000),
        keep=KeepConfig(last=1, best=1),
    )


def caption_lstm() -> RunConfig:
    """Show, attend and tell: an LSTM that attends to the places of an image, on the images of `caption`."""
    model = PresetConfig(name="show_attend_tell", layers=1, width=512, dropout=0.3)
    return replace(caption(), name="caption_lstm", model=model)


def caption_video() -> RunConfig:
    """A small Transformer learns to describe the videos in the folder videos, each with captions beside it."""
    return replace(
        caption(),
        name="caption_video",
        model=PresetConfig(name="video_captioner", layers=4, width=256, heads=4, dropout=0.1),
        data=CorpusConfig(sources=(VideoSource(path="videos"),)),
        rows=MediaRows(length=48, source_length=256, batch=64, features=ClipConfig()),
    )


def classify_images() -> RunConfig:
    """A small Vision Transformer learns the class of each image in the folder images, by the names of its folders."""
    return replace(
        caption(),
        name="classify_images",
        model=PresetConfig(name="vit-base-16", layers=6, width=192, heads=3, dropout=0.1, dials={"patch": 8}),
        tokenizer=CharacterTokenizer(),
        data=CorpusConfig(sources=(ImageClassSource(path="images"),)),
        rows=MediaExampleRows(batch=64, features=PixelsConfig(), augment=(CropConfig(), FlipConfig())),
        objective=ClassifyConfig(smoothing=0.1),
        training=replace(caption().training, steps=2000, schedule=CosineConfig(warmup=200, floor=0.0)),
    )


def transcribe_audio_visual() -> RunConfig:
    """A small Transformer learns to transcribe speech in video, from the sound and the mouth, in the folder videos."""
    size = (32, 64)
    return replace(
        caption_video(),
        name="transcribe_audio_visual",
        model=PresetConfig(name="audio_visual_transformer", layers=4, width=192, heads=4, dropout=0.1),
        tokenizer=CharacterTokenizer(),
        data=CorpusConfig(sources=(AudioVisualSource(path="videos", size=size),)),
        rows=MediaRows(length=128, source_length=256, batch=16, features=AudioVisualConfig(size=size, channels=1)),
        objective=CtcAttentionConfig(attention=SequenceConfig(smoothing=0.1)),
        training=replace(caption().training, steps=4000, batch=16),
    )

"""Speech to text: a small Transformer, listen-attend-and-spell and a CTC encoder, for sounds with their texts."""

from heddle.core import replace
from heddle.data.media import SpecAugmentConfig
from heddle.data.rows import MediaRows
from heddle.data.sources import CorpusConfig, SoundSource
from heddle.models.presets import PresetConfig
from heddle.objectives import CtcAttentionConfig, CtcConfig, SequenceConfig
from heddle.text.tokenizers import CharacterTokenizer
from heddle.training import EveryConfig, KeepConfig, RunConfig, TrainingConfig
from heddle.training.optimizers import AdamWConfig, CosineConfig


def transcribe() -> RunConfig:
    """A small Transformer learns to transcribe the sounds in the folder sounds, each with a text beside it."""
    return RunConfig(
        name="transcribe",
        model=PresetConfig(name="speech_transformer", layers=4, width=144, heads=4, hidden=576, dropout=0.1),
        tokenizer=CharacterTokenizer(),
        data=CorpusConfig(sources=(SoundSource(path="sounds"),)),
        rows=MediaRows(length=256, source_length=1600, batch=16, augment=(SpecAugmentConfig(),)),
        objective=CtcAttentionConfig(attention=SequenceConfig(smoothing=0.1)),
        training=TrainingConfig(
            steps=3000,
            batch=16,
            optimizer=AdamWConfig(learning_rate=1e-3, betas=(0.9, 0.98), weight_decay=0.01),
            schedule=CosineConfig(warmup=300, floor=0.0),
            average_last=5,
        ),
        every=EveryConfig(log=10, validate=200, save=200, sample=1000),
        keep=KeepConfig(last=5),
    )


def transcribe_lstm() -> RunConfig:
    """Listen, attend and spell: LSTMs with attention, on the sounds of `transcribe`."""
    model = PresetConfig(name="speech_lstm", layers=2, width=256, dropout=0.2)
    return replace(transcribe(), name="transcribe_lstm", model=model)


def transcribe_ctc() -> RunConfig:
    """A CTC encoder, which writes all tokens at once, on the sounds of `transcribe`."""
    model = PresetConfig(name="speech_ctc", layers=6, width=144, heads=4, hidden=576, dropout=0.1)
    return replace(transcribe(), name="transcribe_ctc", model=model, objective=CtcConfig())

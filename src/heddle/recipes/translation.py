"""Text to text, from pairs: translation by a small Transformer and recurrent baselines, summaries, and edits."""

from heddle.core import replace
from heddle.data.rows import PairRows
from heddle.data.sources import CorpusConfig, CsvSource, FileSplit, JsonlSource, ParallelSource
from heddle.models.presets import PresetConfig
from heddle.objectives import SequenceConfig
from heddle.text.tokenizers import BpeTokenizer
from heddle.training import EveryConfig, KeepConfig, RunConfig, TrainingConfig
from heddle.training.optimizers import AdamWConfig, CosineConfig


def translate() -> RunConfig:
    """A small Transformer on pairs, for files train.en, train.de, val.en and val.de in this folder."""
    return RunConfig(
        name="translate",
        model=PresetConfig(name="transformer_pre_norm", layers=4, width=256, heads=4, hidden=512, dropout=0.3),
        tokenizer=BpeTokenizer(vocab=8000, lowercase=True),
        data=CorpusConfig(
            sources=(ParallelSource(source="train.en", target="train.de"),),
            split=FileSplit(source=ParallelSource(source="val.en", target="val.de")),
        ),
        rows=PairRows(length=128, source_length=128, batch=256),
        objective=SequenceConfig(smoothing=0.1),
        training=TrainingConfig(
            steps=4000,
            batch=256,
            optimizer=AdamWConfig(learning_rate=2e-3, betas=(0.9, 0.98), weight_decay=0.01),
            schedule=CosineConfig(warmup=500, floor=0.0),
            average_last=5,
        ),
        every=EveryConfig(log=20, validate=200, save=200, sample=1000),
        keep=KeepConfig(last=5),
    )


def translate_lstm() -> RunConfig:
    """LSTM encoder-decoder without attention, on the pairs of `translate`."""
    model = PresetConfig(name="seq2seq_lstm", layers=2, width=512, dropout=0.2)
    return replace(translate(), name="translate_lstm", model=model)


def translate_attention() -> RunConfig:
    """Bidirectional LSTM encoder and LSTM decoder with attention, on the pairs of `translate`."""
    model = PresetConfig(name="seq2seq_attention", layers=2, width=512, dropout=0.2)
    return replace(translate(), name="translate_attention", model=model)


def summarize() -> RunConfig:
    """A small Transformer learns to summarize, from the columns text and summary of train.csv; init=MODEL: BART, T5."""
    return replace(
        translate(),
        name="summarize",
        model=PresetConfig(name="transformer_pre_norm", layers=2, width=128, heads=4, hidden=512, dropout=0.1),
        tokenizer=BpeTokenizer(),
        data=CorpusConfig(sources=(CsvSource(path="train.csv", target="summary"),)),
        rows=PairRows(length=128, source_length=512, batch=32),
        objective=SequenceConfig(smoothing=0.1, prefix="auto"),
        training=replace(translate().training, steps=1000, batch=32, schedule=CosineConfig(warmup=100, floor=0.0)),
    )


def retrieve_and_edit() -> RunConfig:
    """An editor learns to answer a text from a neighbour's answer, on what `heddle retrieve -o edits.jsonl` wrote."""
    model = PresetConfig(
        name="transformer_pre_norm",
        layers=3,
        width=256,
        heads=4,
        hidden=1024,
        dropout=0.2,
        edits={"head": {"kind": "pointer_generator"}},
    )
    pairs = JsonlSource(path="edits.jsonl", target="target", prototype="prototype")
    return replace(
        summarize(),
        name="retrieve_and_edit",
        model=model,
        tokenizer=BpeTokenizer(lowercase=True),
        data=CorpusConfig(sources=(pairs,)),
        rows=PairRows(length=64, source_length=256, batch=64),
        objective=SequenceConfig(smoothing=0.1),
        training=replace(summarize().training, steps=2000, batch=64),
    )

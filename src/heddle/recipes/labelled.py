"""Labelled texts: classes, tags, answers, similarity and embeddings, from scratch or from a model (init=MODEL)."""

from heddle.core import replace
from heddle.data.rows import ExampleRows
from heddle.data.sources import ConllSource, CorpusConfig, CsvSource, SquadSource, TextSource
from heddle.models.presets import PresetConfig
from heddle.objectives import ClassifyConfig, ContrastiveConfig, SimilarityConfig, SpanConfig, TagConfig
from heddle.text.tokenizers import BpeTokenizer
from heddle.training import EveryConfig, KeepConfig, RunConfig, TrainingConfig
from heddle.training.optimizers import AdamWConfig, CosineConfig


def classify() -> RunConfig:
    """A small encoder learns the class of each text, from the columns text and label of train.csv: minutes."""
    return RunConfig(
        name="classify",
        model=PresetConfig(
            name="bert-base", layers=2, width=128, heads=4, dropout=0.1, edits={"pooling": {"kind": "mean"}}
        ),
        tokenizer=BpeTokenizer(lowercase=True),
        data=CorpusConfig(sources=(CsvSource(path="train.csv"),)),
        rows=ExampleRows(length=128, batch=32),
        objective=ClassifyConfig(),
        training=TrainingConfig(
            steps=600,
            batch=32,
            optimizer=AdamWConfig(learning_rate=1e-3, weight_decay=0.01),
            schedule=CosineConfig(warmup=50, floor=0.0),
        ),
        every=EveryConfig(log=10, validate=100, save=100, sample=600),
        keep=KeepConfig(last=1, best=1),
    )


def tag() -> RunConfig:
    """A small encoder learns a tag for each word, such as named entities, from train.conll: minutes on a laptop."""
    return replace(
        classify(),
        name="tag",
        model=PresetConfig(name="bert-base", layers=2, width=128, heads=4, dropout=0.1),
        tokenizer=BpeTokenizer(),
        data=CorpusConfig(sources=(ConllSource(path="train.conll"),)),
        objective=TagConfig(),
    )


def answer() -> RunConfig:
    """A small encoder learns where a context answers a question, from train.json in SQuAD's format."""
    return replace(
        tag(),
        name="answer",
        data=CorpusConfig(sources=(SquadSource(path="train.json"),)),
        rows=ExampleRows(length=256, batch=32),
        objective=SpanConfig(),
    )


def similarity() -> RunConfig:
    """A small encoder learns how similar two texts are, from the columns text, pair and score of train.csv."""
    return replace(classify(), name="similarity", objective=SimilarityConfig())


def embed() -> RunConfig:
    """A small encoder learns sentence embeddings from the lines of train.txt, by contrast (SimCSE)."""
    return replace(
        classify(),
        name="embed",
        data=CorpusConfig(sources=(TextSource(path="train.txt", split="line"),)),
        rows=ExampleRows(length=64, batch=64),
        objective=ContrastiveConfig(),
        training=replace(classify().training, batch=64),
    )

"""Model cards describe the data of a run by its sources, and count parameters without adapters."""

from pathlib import Path
from typing import Any

import pytest
from tasks.pair_runs import tiny_pairs

from heddle.checkpoints.export import _plain_size
from heddle.checkpoints.model_card import describe_data
from heddle.core import encode
from heddle.data.sources import CorpusConfig, PreparedSource, SourceConfig
from heddle.data.sources.builtin import BuiltinSource
from heddle.data.sources.readers import ParallelSource, TextSource
from heddle.data.sources.tables import DatasetsSource
from heddle.models.networks import LanguageModel
from heddle.models.presets import build
from heddle.models.surgery import add_adapters
from heddle.nn.adapters import LoraConfig


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (TextSource(path="some/where/text.txt"), "`text.txt`, read as text"),
        (ParallelSource(source="data/a.de", target="data/a.en"), "`a.de` with `a.en`, read line by line as pairs"),
        (DatasetsSource(name="wiki/40b"), "`wiki/40b`, read as datasets"),
        (PreparedSource(path="data/shards"), "`shards`, prepared before"),
        (BuiltinSource(), "the modules of Python's standard library"),
    ],
)
def test_each_kind_of_source_is_described(source: SourceConfig, told: str) -> None:
    settings: dict[str, Any] = {"data": encode(CorpusConfig(sources=(source,)))}
    assert describe_data(settings) == (told,)
    assert describe_data({"mix": [settings | {"weight": 1.0}], "init": "runs/first"}) == (told, "started from `first`")


def test_a_run_on_pairs_names_both_sides(tmp_path: Path) -> None:
    (told,) = describe_data(encode(tiny_pairs(tmp_path)))
    assert told == "`train.en` with `train.de`, read line by line as pairs"


def test_weights_of_adapters_are_not_counted() -> None:
    model = build("gpt2", layers=1, width=16, heads=2, vocab=50)
    assert isinstance(model, LanguageModel)
    assert _plain_size(add_adapters(model, LoraConfig(rank=2))) == sum(p.numel() for p in model.parameters())

"""Translation: a small Transformer and its recurrent elders, for some ten thousand pairs of sentences."""

from heddle.core import replace
from heddle.data import CorpusConfig, FileSplit, PairRows, ParallelSource
from heddle.models import PresetConfig
from heddle.objectives import SequenceConfig
from heddle.text import BpeTokenizer
from heddle.training import (
    AdamWConfig,
    EveryConfig,
    InverseSquareRootConfig,
    KeepConfig,
    RunConfig,
    TrainingConfig,
)

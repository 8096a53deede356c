"""Models to serve: small ones of every kind, yet wide enough that matrix products depend on the number of rows."""

from functools import cache

from heddle.core import replace
from heddle.models.networks import AutoregressiveModel
from heddle.models.presets import PRESETS as REGISTRY
from heddle.nn.base import FanInInitConfig

VOCAB = 211
PRESETS: dict[str, dict[str, int | float]] = {
    "gpt2": {"layers": 2, "width": 96, "heads": 4, "context": 256},
    "llama": {"layers": 2, "width": 96, "heads": 4, "kv_heads": 2, "hidden": 192, "context": 256},
    "mistral-7b": {"layers": 2, "width": 96, "heads": 4, "kv_heads": 2, "hidden": 192, "window": 40, "context": 256},
    "mixtral-8x7b": {"layers": 2, "width": 96, "heads": 4, "kv_heads": 2, "hidden": 96, "experts": 4, "context": 256},
    "lstm_lm": {"layers": 2, "width": 96},
    "gru_lm": {"layers": 2, "width": 96},
    "mogrifier_lm": {"layers": 1, "width": 96, "hidden": 96, "dropout": 0.0},
    "seq2seq_attention": {"layers": 1, "width": 96},
    "transformer_base": {"layers": 2, "width": 96, "heads": 4, "dropout": 0.0, "context": 128},
    "t5-small": {"layers": 2, "width": 96, "heads": 4, "head_width": 24, "hidden": 192, "context": 128},
}


@cache
def served(name: str) -> AutoregressiveModel:
    """Build a model whose probabilities are far from even."""
    config = REGISTRY[name].config(**PRESETS[name], vocab=VOCAB)
    built = replace(config, init=FanInInitConfig(embedding=1.0, into_stream=1.0)).build(0).eval()
    assert isinstance(built, AutoregressiveModel)
    return built

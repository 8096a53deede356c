"""Settings for a task that came with an imported model: keys of a Hugging Face config, and `task_specific_params`."""

from collections.abc import Mapping
from typing import Any

GENERATION = "generation_config"  # under which the settings of an imported model have its generation config
GENERATES = (
    "num_beams", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "early_stopping",
    "forced_eos_token_id",
)  # fmt: skip


def summarization_settings(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings for summaries, such as T5's prefix and the number of beams; empty where there are none."""
    tasks = settings.get("task_specific_params")
    found = tasks.get("summarization") if isinstance(tasks, Mapping) else None
    return {**generation_settings(settings), **(found if isinstance(found, Mapping) else {})}


def generation_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the config of an imported model, or the generation config beside it, says to generate."""
    beside = settings.get(GENERATION)
    every = {**settings, **(beside if isinstance(beside, Mapping) else {})}
    return {name: every[name] for name in GENERATES if every.get(name) is not None}


def summary_prefix(settings: Mapping[str, Any]) -> str:
    """Return the text that the model wants before a text to summarize, or none."""
    return str(summarization_settings(settings).get("prefix") or "")

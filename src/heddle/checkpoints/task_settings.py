"""Settings for a task that came with an imported model: keys of a Hugging Face config, and `task_specific_params`."""

from collections.abc import Mapping
from typing import Any

from heddle.core import ConfigError

GENERATION = "generation_config"  # under which the settings of an imported model have its generation config
TRANSLATION = "translation_"  # how T5 names its tasks: translation_en_to_de
GENERATES = (
    "num_beams", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "early_stopping",
    "forced_eos_token_id",
)  # fmt: skip


def summarization_settings(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings for summaries, such as T5's prefix and the number of beams; empty where there are none."""
    return {**generation_settings(settings), **_tasks(settings).get("summarization", {})}


def translation_settings(settings: Mapping[str, Any], task: str | None = None) -> Mapping[str, Any]:
    """Return the settings for translation, or refuse to choose among several of T5's tasks, such as en_to_de."""
    known = {name.removeprefix(TRANSLATION): own for name, own in _tasks(settings).items() if TRANSLATION in name}
    if task is None and len(known) <= 1:
        return {**generation_settings(settings), **next(iter(known.values()), {})}
    if task is None or task.removeprefix(TRANSLATION) not in known:
        want = (
            f"one of {', '.join(known)}, which the model was trained for" if known else "none; the model has one task"
        )
        raise ConfigError("task", want=want, got=task)
    return {**generation_settings(settings), **known[task.removeprefix(TRANSLATION)]}


def _tasks(settings: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the settings of each task that a model has."""
    tasks = settings.get("task_specific_params")
    named = tasks if isinstance(tasks, Mapping) else {}
    return {str(name): own for name, own in named.items() if isinstance(own, Mapping)}


def generation_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the config of an imported model, or the generation config beside it, says to generate."""
    beside = settings.get(GENERATION)
    every = {**settings, **(beside if isinstance(beside, Mapping) else {})}
    return {name: every[name] for name in GENERATES if every.get(name) is not None}


def summary_prefix(settings: Mapping[str, Any]) -> str:
    """Return the text that the model wants before a text to summarize, or none."""
    return str(summarization_settings(settings).get("prefix") or "")

"""Settings for a task that came with an imported model: `task_specific_params` of a Hugging Face config."""

from collections.abc import Mapping
from typing import Any


def summarization_settings(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings for summaries, such as T5's prefix and the number of beams; empty where there are none."""
    tasks = settings.get("task_specific_params")
    found = tasks.get("summarization") if isinstance(tasks, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def summary_prefix(settings: Mapping[str, Any]) -> str:
    """Return the text that the model wants before a text to summarize, or none."""
    return str(summarization_settings(settings).get("prefix") or "")

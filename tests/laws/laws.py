"""The laws of models and states, which lie in the library: `heddle check` holds users' parts to the same."""

from heddle.models.laws.laws import *  # noqa: F403

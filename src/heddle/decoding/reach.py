"""Reach: what a model can take (ids, lengths, room), and how it is held while it is used."""

import contextlib
from collections.abc import Iterator, Sequence

import torch

from heddle.core import UsageError
from heddle.models import LanguageModel, LanguageModelConfig
from heddle.nn import Module


def vocab_of(model: LanguageModel) -> int:
    """Return how many ids the model knows."""
    assert isinstance(model.config, LanguageModelConfig)
    return model.config.vocab


def readable(model: LanguageModel, prompt: Sequence[int], begin: int | None = None) -> Sequence[int]:
    """Return a prompt that the model can read, an empty one begun with `begin`; refuse any other."""
    if not len(prompt):
        if begin is None:
            raise UsageError("an empty prompt needs an id to begin from, and none is given")
        prompt = [begin]
    vocab = vocab_of(model)
    for id in prompt:
        if not 0 <= id < vocab:
            raise UsageError(f"prompt: want ids from 0 to {vocab - 1}, got {id}")
    if len(prompt) > model.context and grows(model):
        raise UsageError(f"prompt: {len(prompt)} tokens are more than the model's context of {model.context}")
    return prompt


def grows(model: LanguageModel) -> bool:
    """Tell whether the model keeps something of every token, as attention does; a recurrent one reads on for ever."""
    return any(m.state_elements() for m in model.modules() if isinstance(m, Module))


def limit_of(model: LanguageModel) -> int | None:
    """Return how many tokens a row may hold: as many as there are positions, None where they go on."""
    return model.position.longest


def device_of(model: LanguageModel) -> torch.device:
    """Return where the model's weights are."""
    return next(model.parameters()).device


@contextlib.contextmanager
def at_rest(model: LanguageModel) -> Iterator[None]:
    """Switch dropout off for a while."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)

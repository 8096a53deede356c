"""Explain a text: one forward pass under read-only hooks, and further passes for what asks for them."""

import contextlib
from collections.abc import Callable, Iterator, Mapping

from heddle.core import UsageError
from heddle.explain.attribution import attribution, patching
from heddle.explain.display import Explanation
from heddle.explain.inputs import ExplainOptions, Given, Observer, Reading, Section, observe, read
from heddle.explain.observers import (
    AttentionObserver,
    ExpertsObserver,
    GatesObserver,
    LensObserver,
    ResidualObserver,
    TraceObserver,
    beam_tree,
    probabilities,
)
from heddle.models.networks import Model
from heddle.text.tokenizers import Tokenizer

OBSERVERS: Mapping[str, Callable[[Reading], Observer]] = {
    "attention": AttentionObserver,
    "gates": GatesObserver,
    "lens": LensObserver,
    "residual": ResidualObserver,
    "experts": ExpertsObserver,
    "trace": TraceObserver,
}
FURTHER: Mapping[str, Callable[[Reading, ExplainOptions], Section]] = {
    "attribution": attribution,
    "patching": patching,
    "beams": beam_tree,
}


def explain(
    model: Model,
    tokenizer: Tokenizer | None,
    text: Given,
    options: ExplainOptions | None = None,
    description: str = "",
) -> Explanation:
    """Look inside a model while it reads a text, or ids or features as given; it computes what it always does.

    What was named in `what` and is not there is refused; of the usual things, what a model lacks is left out.
    """
    options = ExplainOptions() if options is None else options
    reading = read(model, tokenizer, text, options)
    refused: dict[str, str] = {}
    observers: dict[str, Observer] = {}
    sections: dict[str, Section] = {}
    for name in options.names:
        if name in OBSERVERS:
            with _refusals(name, options, refused):
                observers[name] = OBSERVERS[name](reading)
    logits = observe(reading, list(observers.values()))
    for name in options.names:
        with _refusals(name, options, refused):
            if name in observers:
                sections[name] = observers[name].result()
            elif name == "probabilities":
                sections[name] = probabilities(reading, logits, options.top)
            elif name in FURTHER:
                sections[name] = FURTHER[name](reading, options)
    return Explanation(description, model.config.noun, reading.sequences, sections, refused)


@contextlib.contextmanager
def _refusals(name: str, options: ExplainOptions, refused: dict[str, str]) -> Iterator[None]:
    """Note a refusal where nobody has asked for the thing by name."""
    try:
        yield
    except UsageError as error:
        if options.what is not None:
            raise
        refused[name] = str(error)

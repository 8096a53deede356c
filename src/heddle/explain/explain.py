"""Explain a text: one forward pass under read-only hooks, and further passes for what asks for them."""

from collections.abc import Callable, Mapping, Sequence

from heddle.core import UsageError
from heddle.explain.attribution import attribution, patching
from heddle.explain.display import Explanation
from heddle.explain.inputs import ExplainOptions, Observer, Reading, Section, observe, read
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
    text: str | Sequence[int],
    options: ExplainOptions | None = None,
    description: str = "",
) -> Explanation:
    """Look inside a model while it reads a text, or ids as given; the model itself computes what it always does.

    What was named in `what` and is not there is refused; of the usual things, what a model lacks is left out.
    """
    options = ExplainOptions() if options is None else options
    reading = read(model, tokenizer, text, options)
    refused: dict[str, str] = {}
    observers: dict[str, Observer] = {}
    for name in options.names:
        if name in OBSERVERS:
            _or_refuse(name, options, refused, lambda name=name: observers.update({name: OBSERVERS[name](reading)}))
    logits = observe(reading, list(observers.values()))
    sections: dict[str, Section] = {}
    for name in options.names:
        made = _maker(name, reading, observers, options)
        if name == "probabilities":
            made = lambda: probabilities(reading, logits, options.top)  # noqa: E731
        if made is not None:
            _or_refuse(name, options, refused, lambda name=name, made=made: sections.update({name: made()}))
    return Explanation(description, model.config.noun, reading.sides, sections, refused)


def _maker(
    name: str, reading: Reading, observers: Mapping[str, Observer], options: ExplainOptions
) -> Callable[[], Section] | None:
    """Return what makes a section; None: it was refused."""
    if name in observers:
        return observers[name].result
    return None if name not in FURTHER else lambda: FURTHER[name](reading, options)


def _or_refuse(name: str, options: ExplainOptions, refused: dict[str, str], run: Callable[[], None]) -> None:
    """Do something; note its refusal where nobody has asked for it by name."""
    try:
        run()
    except UsageError as error:
        if options.what is not None:
            raise
        refused[name] = str(error)

"""Options of `explain`: what to look at, and the target that a prediction is explained for."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypedDict

from heddle.core import ConfigError, UsageError, check_at_least

WHATS = {  # what can be looked at, in the order in which it is shown
    "probabilities": "the next token at every place, and each token's surprisal",
    "attention": "the attention weights of every layer and head",
    "gates": "the gates and states of recurrent cells",
    "lens": "the logit lens: what each layer would predict",
    "residual": "what each branch adds to the residual stream",
    "experts": "the experts that each token uses, and their gates",
    "attribution": "which tokens a prediction depends on, by four methods",
    "patching": "where two texts make a difference: activation patching",
    "beams": "beam search as a tree",
    "trace": "every step of the forward pass, with shapes and values",
}
DEFAULT = ("probabilities", "attention", "gates", "lens", "experts")  # of these, what the model has


class ExplainFields(TypedDict, total=False):
    """The options as keyword arguments."""

    what: str | Sequence[str] | None
    target: str | None
    instead: str | None
    output: str | Sequence[int] | None
    corrupted: str | Sequence[int] | None
    top: int
    beams: int
    max_tokens: int
    steps: int


@dataclass(frozen=True)
class ExplainOptions:
    """What to look at.

    what: names from `WHATS`; None: the usual ones that the model has.
    target: the continuation, masked words or class that is explained; None: what the model predicts.
    instead: explain why the target and not this one.
    output: the output of an encoder-decoder, or its ids from the first on; None: what it writes to the text.
    corrupted: another text of as many tokens, or its ids, for activation patching.
    top: how many of the most probable tokens are kept.
    beams: how many beams the tree of beam search has.
    max_tokens: the most tokens of an output or a beam.
    steps: points on the path of integrated gradients, doubled until the sum is right.
    """

    what: tuple[str, ...] | None = None
    target: str | None = None
    instead: str | None = None
    output: str | Sequence[int] | None = None
    corrupted: str | Sequence[int] | None = None
    top: int = 10
    beams: int = 4
    max_tokens: int = 40
    steps: int = 32

    def __post_init__(self) -> None:
        check_at_least(1, top=self.top, beams=self.beams, max_tokens=self.max_tokens, steps=self.steps)
        for name in self.what or ():
            if name not in WHATS:
                raise ConfigError.unknown("what", name, tuple(WHATS))
        wanted = self.what or ()
        if self.instead is not None and not {"attribution", "patching"} & set(wanted):
            raise UsageError("instead: want it with attribution or patching in `what`, got neither")
        if self.corrupted is not None and "patching" not in wanted:
            raise UsageError("corrupted: want it with patching in `what`, got none")
        if self.corrupted is None and "patching" in wanted:
            raise UsageError("patching: want a second text of as many tokens in `corrupted`, got none")

    @property
    def names(self) -> tuple[str, ...]:
        """Return what to look at, in the order in which it is shown."""
        chosen = DEFAULT if self.what is None else self.what
        return tuple(name for name in WHATS if name in chosen)


def explain_options(given: ExplainFields) -> ExplainOptions:
    """Return the options that keyword arguments stand for; refuse unknown names."""
    known = [field.name for field in fields(ExplainOptions)]
    for name in given:
        if name not in known:
            raise ConfigError.unknown("explain", name, tuple(known))
    plain = dict(given)
    what = plain.pop("what", None)
    if what is not None:
        words = what.split(",") if isinstance(what, str) else what
        if not isinstance(words, list | tuple | set):
            raise UsageError(f"what: want names such as 'attention,gates', got {what!r}")
        plain["what"] = tuple(str(word).strip() for word in words)
    return ExplainOptions(**plain)  # type: ignore[arg-type]

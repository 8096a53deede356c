"""Explanation: everything that was looked at, as data, as JSON, on the terminal and as one HTML file."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group

from heddle.explain.inputs import Section, TokenSequence

FORMAT = 2


@dataclass(frozen=True)
class Explanation:
    """What a model computed for a text. `print` shows it; `to_json` and `html` write it; its sections hold tensors."""

    model: str
    kind: str  # a language model, an encoder-decoder, an encoder
    sequences: tuple[TokenSequence, ...]
    sections: Mapping[str, Section]
    refused: Mapping[str, str]  # what the model cannot show, and why

    def __getitem__(self, name: str) -> Section:
        """Return a section by the name that `what` has for it."""
        return self.sections[name]

    def plain(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        sequences = [_sequence(one) for one in self.sequences]
        about = {"format": FORMAT, "model": self.model, "kind": self.kind, "sequences": sequences}
        return (
            about | {name: section.plain() for name, section in self.sections.items()} | {"refused": dict(self.refused)}
        )

    def to_json(self) -> str:
        """Return all numbers as JSON, with as many digits as single precision has."""
        return json.dumps(short(self.plain()), ensure_ascii=False, allow_nan=False)

    def html(self) -> str:
        """Return one HTML file that needs nothing else."""
        from heddle.explain.display.page import html_page

        return html_page(self)

    def __rich__(self) -> Group:
        """Return it as rich shows it."""
        from heddle.explain.display.terminal import rendered

        return rendered(self)

    def __str__(self) -> str:
        """Return it as text."""
        from heddle.explain.display.terminal import as_text

        return as_text(self)


def _sequence(one: TokenSequence) -> dict[str, Any]:
    found: dict[str, Any] = {"name": one.name, "ids": list(one.ids), "tokens": list(one.texts)}
    return found if one.picture is None else found | {"picture": one.picture.plain()}


def short(data: Any) -> Any:
    """Return plain data with numbers of nine digits, which tell any two floats of single precision apart; what is no
    number, or infinite, is null.
    """
    if isinstance(data, float):
        return float(f"{data:.9g}") if math.isfinite(data) else None
    if isinstance(data, list | tuple):
        return [short(each) for each in data]
    return {key: short(value) for key, value in data.items()} if isinstance(data, dict) else data

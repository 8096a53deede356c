"""The HTML file of an explanation: page, style, script and data in one; its policy lets it load nothing."""

import base64
import dataclasses
import hashlib
import html
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from heddle.explain.display.explanation import Explanation, short
from heddle.explain.observers import Attention, Gates, Trace

EXACT = 1 << 20  # numbers of all maps, up to which a file has them exactly
BUDGET = 5_500_000  # characters of all arrays together, beyond which they are coded coarser
SAMPLED = 12  # arrays that are packed to choose their codes
LAST = 4  # values of a step that the page shows


class Codes(NamedTuple):
    """Levels between the least and the largest number, of the number or of its square root."""

    levels: int
    root: bool


# The best first. The square root keeps small weights apart; by even levels the many small weights of a long text become
# equal, and cost little.
CODES = (Codes(255, True), Codes(255, False), Codes(127, False), Codes(63, False), Codes(15, False), Codes(3, False))


@dataclass
class Blobs:
    """Packed arrays: floats as they are, or codes of a byte."""

    codes: Codes | None  # None: exact
    packed: list[str] = field(default_factory=list)

    def add(self, values: Tensor, weights: bool) -> dict[str, Any]:
        """Pack an array, of weights or of other numbers; return how to read it."""
        array: NDArray[Any] = values.float().numpy()
        about: dict[str, Any] = {"blob": len(self.packed), "shape": list(array.shape)}
        if self.codes is None:
            self.packed.append(_deflated(np.ascontiguousarray(array, "<f4").tobytes()))
            return about | {"code": "f32"}
        levels, root = self.codes.levels, self.codes.root and weights
        low, high = (0.0, 1.0) if weights else (float(array.min()), float(array.max()))
        share = (array - low) / max(high - low, 1e-30)
        codes = np.rint((np.sqrt(share) if root else share) * levels).astype(np.uint8)
        self.packed.append(_deflated(codes.tobytes()))
        read = (codes / levels) ** (2 if root else 1) * (high - low) + low
        error = float(np.abs(read - array).max(initial=0))
        return about | {"code": "root" if root else "line", "low": low, "high": high, "levels": levels, "error": error}


def html_page(explanation: Explanation) -> str:
    """Return an explanation as one HTML file."""
    style, script = (_resource(name) for name in ("page.css", "page.js"))
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'"
    filled = {
        "POLICY": html.escape(policy, quote=False),
        "TITLE": html.escape(f"{explanation.model or explanation.kind}: explained"),
        "STYLE": style,
        "DATA": "\n".join(packed_data(explanation)),
        "SCRIPT": script,
    }
    page, *pieces = _resource("page.html").split("$")
    for piece in pieces:
        name = next(name for name in filled if piece.startswith(name))
        page += filled[name] + piece.removeprefix(name)
    return page


def packed_data(explanation: Explanation) -> list[str]:
    """Return the data as lines of text: the JSON, and the arrays that it names."""
    blobs = Blobs(_codes(explanation))
    text = json.dumps(short(_data(explanation, blobs)), ensure_ascii=False, allow_nan=False)
    return [_deflated(text.encode("utf-8", "surrogatepass")), *blobs.packed]


def _codes(explanation: Explanation) -> Codes | None:
    """Return the finest codes by which all arrays fit into a file; some of them are packed to see."""
    arrays = list(_arrays(explanation))
    count = sum(values.numel() for values, _ in arrays)
    if count <= EXACT:
        return None
    chosen = arrays[:: max(1, len(arrays) // SAMPLED)]
    sample = [(values[:1] if weights else values, weights) for values, weights in chosen]
    for codes in CODES:
        blobs = Blobs(codes)
        for values, weights in sample:
            blobs.add(values, weights)
        if sum(map(len, blobs.packed)) * count / sum(values.numel() for values, _ in sample) <= BUDGET:
            return codes
    return CODES[-1]


def _arrays(explanation: Explanation) -> Iterator[tuple[Tensor, bool]]:
    """Yield every large array, and whether it holds weights between 0 and 1."""
    for section in explanation.sections.values():
        if isinstance(section, Attention):
            yield from ((one.weights, True) for one in section.maps)
        elif isinstance(section, Gates):
            yield from ((values, False) for cell in section.cells for values in cell.values.values())


def _data(explanation: Explanation, blobs: Blobs) -> dict[str, Any]:
    """Return the plain data, with large arrays packed, and of a trace a summary."""
    packed: dict[str, Any] = {}
    for name, section in explanation.sections.items():
        if isinstance(section, Attention):
            packed[name] = [one.about() | {"weights": blobs.add(one.weights, True)} for one in section.maps]
        elif isinstance(section, Gates):
            packed[name] = [
                one.about() | {"values": {key: blobs.add(values, False) for key, values in one.values.items()}}
                for one in section.cells
            ]
        elif isinstance(section, Trace):
            packed[name] = [_summary(step.name, step.kind, step.values) for step in section.steps]
    plain = _plain(explanation, packed)
    for one, shown in zip(explanation.sequences, plain["sequences"], strict=True):
        if one.picture is not None:
            shown["picture"]["pixels"] = _deflated(one.picture.pixels.numpy().tobytes())
    return plain | packed


def _plain(explanation: Explanation, packed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain data of what is not packed."""
    others = {name: one for name, one in explanation.sections.items() if name not in packed}
    return dataclasses.replace(explanation, sections=others).plain()


def _summary(name: str, kind: str, values: Tensor) -> dict[str, Any]:
    numbers = values.double()
    measured = {"mean": float(numbers.mean()), "deviation": float(numbers.std(correction=0))}
    last: Sequence[float] = numbers.flatten()[-LAST:].tolist()
    return {"name": name, "kind": kind, "shape": list(values.shape), **measured, "last": last}


def _deflated(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _resource(name: str) -> str:
    return files("heddle.explain.display").joinpath(name).read_text(encoding="utf-8").strip("\n")

"""Explanations on the terminal, by rich: coloured tokens, rows of blocks, tables and the tree of beams."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree
from torch import Tensor

from heddle.escapes import escaped
from heddle.explain.attribution import Attribution, Patching
from heddle.explain.display.explanation import Explanation
from heddle.explain.inputs import WHATS
from heddle.explain.observers import Attention, BeamTree, ExpertChoices, Gates, Lens, Probabilities, Residual, Trace

PREDICTED = {
    "next token": WHATS["probabilities"],
    "masked token": "each token hidden in turn and predicted from all others, and its surprisal",
    "class": "the class of the text",
}
BLOCKS = " ▁▂▃▄▅▆▇█"
# Surprisal in bits, up to which a token has a colour: from dark to bright, by lightness first, for the colour-blind.
COLOURS = ((1, "grey50"), (3, "cyan"), (6, "bright_white"), (10, "yellow"), (float("inf"), "bold bright_red"))
EACH_HEAD = 32  # heads of a model, up to which each has a line of its own
PLACES = 8  # of the lens: the last ones
WIDTH = 120


def as_text(explanation: Explanation) -> str:
    """Return an explanation as plain text."""
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    console.print(rendered(explanation))
    return "\n".join(line.rstrip() for line in cast("io.StringIO", console.file).getvalue().splitlines())


def rendered(explanation: Explanation) -> Group:
    """Return an explanation as rich shows it."""
    lines: list[RenderableType] = [Text(f"{explanation.kind}: {explanation.model}".rstrip(": "), style="bold")]
    for name, section in explanation.sections.items():
        about = PREDICTED[section.predicts] if isinstance(section, Probabilities) else WHATS[name]
        lines += [Text(""), Text(f"{name}: {about}", style="bold")]
        lines += SHOWN[name](explanation, section)
    if explanation.refused:
        lines += [Text(""), *(Text(f"not shown: {line}", style="dim") for line in explanation.refused.values())]
    return Group(*lines)


def shown(token: str) -> str:
    """Return a token's text as one visible word."""
    return escaped(token).replace("\n", "↵").replace("\t", "→").replace(" ", "␣")


def percent(probability: float) -> str:
    """Return a probability in percent, with two digits at least."""
    return f"{probability:.1%}" if probability >= 0.01 else f"{100 * probability:.2g}%"


def blocks(values: Sequence[float], most: float | None = None) -> str:
    """Return numbers from zero up as a row of blocks."""
    top = max(values, default=0.0) if most is None else most
    last = len(BLOCKS) - 1
    return "".join(BLOCKS[0 if top <= 0 else min(last, round(max(0.0, value) / top * last))] for value in values)


def _tokens(explanation: Explanation, sequence: str) -> tuple[str, ...]:
    return next(one.texts for one in explanation.sequences if one.name == sequence)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    return table


def _probabilities(explanation: Explanation, section: Probabilities) -> Iterator[RenderableType]:
    words, line = _tokens(explanation, section.sequence), Text()
    for word, bits in zip(words, section.surprisals, strict=True):
        style = "dim" if bits is None else next(colour for most, colour in COLOURS if bits <= most)
        line.append(shown(word), style=style).append(" ")
    yield line
    table = _table("place", "token", "bits", f"{section.predicts}")
    for place, distribution in enumerate(section.places):
        best = "  ".join(f"{shown(one.text)} {percent(one.probability)}" for one in distribution.best[:5])
        bits = None if section.predicts == "class" else section.surprisals[place]
        word = "" if section.predicts == "class" else shown(words[place])
        table.add_row(str(place), Text(word), "" if bits is None else f"{bits:.2f}", Text(best))
    yield table


def _attention(explanation: Explanation, section: Attention) -> Iterator[RenderableType]:
    heads = sum(one.weights.shape[0] for one in section.maps)
    yield Text(f"the last place of each map; {'each head' if heads <= EACH_HEAD else 'the mean over heads'}", "dim")
    table = _table("layer", "head", "weights of the keys", "most")
    for one in section.maps:
        words = _tokens(explanation, one.keys)
        rows: dict[str, Tensor] = {"mean": one.weights[:, -1].mean(0)}
        if heads <= EACH_HEAD:
            rows = {str(head): row for head, row in enumerate(one.weights[:, -1])}
        for head, row in rows.items():
            best = row.argsort(descending=True)[:3].tolist()
            named = [f"{_word(words, row, at)} {float(row[at]):.2f}" for at in best]
            table.add_row(f"{one.name} ({one.kind})", head, Text(blocks(row.tolist(), 1.0)), Text("  ".join(named)))
    yield table


def _word(words: Sequence[str], row: Tensor, at: int) -> str:
    return shown(words[at]) if len(words) == len(row) else f"[{at}]"


def _gates(explanation: Explanation, section: Gates) -> Iterator[RenderableType]:
    yield Text("the mean over all units at each token; of candidates and states, the mean size", "dim")
    table = _table("cell", "value", "along the text", "mean")
    for cell in section.cells:
        for name, values in cell.values.items():
            means = values.abs().mean(-1).tolist()
            table.add_row(f"{cell.name} ({cell.kind})", name, blocks(means, 1.0), f"{sum(means) / len(means):.3f}")
    yield table


def _lens(explanation: Explanation, section: Lens) -> Iterator[RenderableType]:
    words = _tokens(explanation, section.sequence)
    first = max(0, len(words) - PLACES)
    if first:
        yield Text(f"the last {PLACES} places", "dim")
    table = _table("layer", *(escaped(shown(word)) for word in words[first:]))
    for layer in section.layers:
        best = [Text(f"{shown(place[0].text)} {percent(place[0].probability)}") for place in layer.places[first:]]
        table.add_row(layer.name, *best)
    yield table


def _residual(explanation: Explanation, section: Residual) -> Iterator[RenderableType]:
    yield Text("share of the last place's stream, and length at every place", "dim")
    table = _table("contribution", "share", "length", "along the text")
    for one in section.contributions:
        norms = one.norms.tolist()
        table.add_row(one.name, f"{float(one.shares[-1]):+.3f}", f"{norms[-1]:.3f}", blocks(norms))
    yield table


def _experts(explanation: Explanation, section: ExpertChoices) -> Iterator[RenderableType]:
    table = _table("layer", "token", "experts and gates")
    for layer in section.layers:
        words = _tokens(explanation, layer.sequence)
        for place, (ids, gates) in enumerate(zip(layer.chosen.tolist(), layer.gates.tolist(), strict=True)):
            used = [f"{id}: {gate:.3f}" for id, gate in zip(ids, gates, strict=True) if id < layer.experts]
            table.add_row(layer.name, Text(shown(words[place])), "  ".join(used))
    yield table


def _attribution(explanation: Explanation, section: Attribution) -> Iterator[RenderableType]:
    against = "" if section.instead is None else f" and not {shown(section.instead)}"
    yield Text(f"why {shown(section.target)}{against}: {section.score:.4f} nats")
    for sequence in explanation.sequences:
        table = _table("token", *section.methods)
        for place, word in enumerate(sequence.texts):
            values = [one[sequence.name][place] if sequence.name in one else None for one in section.methods.values()]
            table.add_row(Text(shown(word)), *("" if value is None else f"{value:+.4g}" for value in values))
        yield table
    yield from (Text(f"not shown: {line}", "dim") for line in section.refused.values())


def _patching(explanation: Explanation, section: Patching) -> Iterator[RenderableType]:
    scores = f"{section.clean_score:.4f} nats, corrupted {section.corrupted_score:.4f}"
    yield Text(f"{shown(section.target)}: {scores}; effect of each layer at each place, 1 = the whole difference")
    table = _table("layer", *(shown(word) for word in section.corrupted))
    for name, row in zip(section.layers, section.effects.tolist(), strict=True):
        table.add_row(name, *(f"{value:+.2f}" for value in row))
    yield table


def _beams(explanation: Explanation, section: BeamTree) -> Iterator[RenderableType]:
    root = Tree(Text(f"{section.beams} beams"))
    kept, branches = section.kept(), list[Tree]()
    for at, (node, text) in enumerate(zip(section.nodes, section.texts, strict=True)):
        line = Text(f"{shown(text)} {node.logprob:.2f}", style="" if at in kept else "dim")
        if node.score is not None:
            line.append(f"  = {node.score:.3f}, {node.reason}", style="bold")
        parent = root if node.parent is None else branches[node.parent]
        branches.append(parent.add(line))
    yield root


def _trace(explanation: Explanation, section: Trace) -> Iterator[RenderableType]:
    table = _table("step", "what", "shape", "mean", "deviation", "last values")
    for step in section.steps:
        values = step.values.double()
        last = " ".join(f"{value:.4f}" for value in values.flatten()[-4:].tolist())
        deviation = float(values.std(correction=0))
        shape = " × ".join(map(str, step.values.shape))
        table.add_row(step.name, step.kind, shape, f"{float(values.mean()):.4f}", f"{deviation:.4f}", last)
    yield table


SHOWN: Mapping[str, Callable[[Explanation, Any], Iterator[RenderableType]]] = {
    "probabilities": _probabilities,
    "attention": _attention,
    "gates": _gates,
    "lens": _lens,
    "residual": _residual,
    "experts": _experts,
    "attribution": _attribution,
    "patching": _patching,
    "beams": _beams,
    "trace": _trace,
}

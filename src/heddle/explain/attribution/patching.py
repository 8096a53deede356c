"""Activation patching (Vig et al. 2020; Meng et al. 2022): where two texts make a difference to a prediction.

The model reads the corrupted text, with the stream of one layer at one place taken from the clean text. An effect of 1
brings the whole score of the clean text back, 0 nothing.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heddle.core import UsageError
from heddle.explain.attribution.attribution import Score, score_of
from heddle.explain.inputs import CHUNK, ExplainOptions, Reading, Section, TokenSequence, modules_of, read
from heddle.nn.stack import Block


@dataclass(frozen=True)
class Patching(Section):
    """The effect of each layer at each place of the first sequence, and the scores of both texts in nats."""

    sequence: str
    target: str
    instead: str | None
    corrupted: tuple[str, ...]  # the tokens of the corrupted text
    clean_score: float
    corrupted_score: float
    layers: tuple[str, ...]
    effects: Tensor  # [layers, places]

    def plain(self) -> dict[str, Any]:
        return {
            "sequence": self.sequence,
            "target": self.target,
            "instead": self.instead,
            "corrupted": list(self.corrupted),
            "clean_score": self.clean_score,
            "corrupted_score": self.corrupted_score,
            "layers": list(self.layers),
            "effects": self.effects.tolist(),
        }


def patching(reading: Reading, options: ExplainOptions) -> Patching:
    """Return the effect of patching each layer's output at each place."""
    if options.corrupted is None:
        raise UsageError("corrupted: want a second text of as many tokens, got none")
    if reading.model.reads != "ids":
        raise UsageError(f"patching: want a model of texts, got one that reads {reading.model.reads}")
    other = read(reading.model, reading.tokenizer, options.corrupted, options)
    sequence, wrong = reading.sequences[0], other.sequences[0]
    if len(sequence.ids) != len(wrong.ids):
        raise UsageError(f"corrupted: want a text of {len(sequence.ids)} tokens, as the other, got {len(wrong.ids)}")
    target = reading.target(options.target)
    instead = None if options.instead is None else reading.target(options.instead)
    clean, corrupted = (score_of(one, target, instead) for one in (reading, other.with_output(reading.main.ids)))
    with reading.looking():
        streams = layer_streams(sequence, clean)
        scores = float(clean(1)[0]), float(corrupted(1)[0])
        if abs(scores[0] - scores[1]) < 1e-9:
            raise UsageError("corrupted: want a text that changes the score, got the same score")
        patched = torch.stack([_patch_layer(sequence, name, stream, corrupted) for name, stream in streams])
    effects = (patched - scores[1]) / (scores[0] - scores[1])
    names = tuple(name for name, _ in streams)
    against = None if instead is None else reading.name_target(instead)
    return Patching(sequence.name, reading.name_target(target), against, wrong.texts, *scores, names, effects.cpu())


def layer_streams(sequence: TokenSequence, score: Score) -> list[tuple[str, Tensor]]:
    """Return the output of each layer of a sequence; a layer of a loop has one for each turn."""
    found: list[tuple[str, Tensor]] = []
    with contextlib.ExitStack() as hooks:
        for name, block in modules_of(sequence, Block):

            def keep(_module: object, inputs: Any, output: Any, name: str = name) -> None:
                found.append((name + inputs[1].turn, output[0]))

            hooks.callback(block.register_forward_hook(keep).remove)
        score(1)
    unique = dict(found)  # a contrastive score runs the model twice
    if any(stream.shape[1] < len(sequence.ids) for stream in unique.values()):
        raise UsageError("patching: want layers of one length, got pooling")
    return list(unique.items())


def _patch_layer(sequence: TokenSequence, name: str, stream: Tensor, score: Score) -> Tensor:
    """Return the score with the layer's output at each place in turn taken from the clean text."""
    blocks: Sequence[tuple[str, Block]] = list(modules_of(sequence, Block))
    owner, _, turn = name.partition("@")
    block = dict(blocks)[owner]
    length, found = len(sequence.ids), list[Tensor]()
    for first in range(0, length, max(1, CHUNK // length)):
        places = torch.arange(first, min(length, first + max(1, CHUNK // length)), device=stream.device)

        def patch(_module: object, inputs: Any, output: Any, places: Tensor = places) -> Any:
            if inputs[1].turn != (f"@{turn}" if turn else ""):
                return None
            x = output[0].clone()
            rows = torch.arange(len(places), device=x.device)
            x[rows, places] = stream[0, places]
            return x, output[1]

        hook = block.register_forward_hook(patch)
        try:
            found.append(score(len(places)))
        finally:
            hook.remove()
    return torch.cat(found)

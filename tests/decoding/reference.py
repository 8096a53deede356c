"""Plain: the plainest searches, which read everything anew for each sequence, and small models to search in."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from laws.cases import ATTENTION, CHANNEL, CROSS, pair, small, tower
from torch import Tensor

from heddle.core import replace
from heddle.decoding.generation import Completion, GenerationConfig, GenerationJob
from heddle.decoding.runtime import PrefixCache, Request
from heddle.decoding.search import BeamSearch
from heddle.models.networks import AutoregressiveModel, EncoderDecoder, TowerConfig, pre_norm
from heddle.nn.attention import CrossAttention
from heddle.nn.base import Context, FanInInitConfig
from heddle.nn.layers import LayerNormConfig
from heddle.nn.positions import NoPositionConfig
from heddle.nn.recurrent import AttentionRNN, AttentionRNNConfig, FirstStateConfig, LSTMConfig
from heddle.nn.stack import RepeatConfig, SumConfig

VOCAB, END = 4, 0
LOUD = FanInInitConfig(embedding=1.0, into_stream=1.0)
CELL = RepeatConfig(body=pre_norm(LSTMConfig(hidden=8), norm=LayerNormConfig()), times=1)
RECURRENT = TowerConfig(plan=CELL)
LOOKING = TowerConfig(plan=RepeatConfig(body=pre_norm(AttentionRNNConfig(), norm=LayerNormConfig()), times=1))
CONFIGS = {
    "attention": small(RepeatConfig(body=pre_norm(ATTENTION, CHANNEL, norm=LayerNormConfig()), times=1)),
    "recurrent": small(CELL, position=NoPositionConfig()),
    "pair-attention": pair(tower(ATTENTION, CHANNEL), tower(ATTENTION, CROSS, CHANNEL)),
    "pair-recurrent": pair(tower(ATTENTION), RECURRENT, bridge=FirstStateConfig()),
    "pair-attentive": pair(tower(ATTENTION), LOOKING),
}
MORE = {"pair-parallel": pair(tower(ATTENTION), tower(ATTENTION, SumConfig(parts=(CROSS, CHANNEL))))}
SOURCES = [[1, 2, 3, 1, END], [2, END], [3, 3, 1, END]]

New = tuple[int, ...]


def model(name: str, seed: int = 0, vocab: int = VOCAB) -> AutoregressiveModel:
    """Build a small model whose probabilities are far from even."""
    built = replace((CONFIGS | MORE)[name], vocab=vocab, init=LOUD).build(seed).double().eval()
    assert isinstance(built, AutoregressiveModel)
    return built


def requests(made: AutoregressiveModel, rows: Sequence[int] = (0, 1, 2), **more: Any) -> list[Request]:
    """Ask for sequences from the beginning, for the sources of some rows where the model reads any."""
    return [Request((), SOURCES[row] if isinstance(made, EncoderDecoder) else None, **more) for row in rows]


def search(
    made: AutoregressiveModel,
    requests: Sequence[Request],
    config: GenerationConfig,
    prefix_cache: PrefixCache | None = None,
) -> list[list[Completion]]:
    """Return the best sequences of each request."""
    return config.strategy.complete(GenerationJob(made, requests, config, prefix_cache=prefix_cache))


def find(
    made: AutoregressiveModel, config: GenerationConfig, rows: Sequence[int] = (0, 1, 2), **more: Any
) -> list[list[Completion]]:
    """Search from the beginning."""
    return search(made, requests(made, rows, **more), config)


def named(found: list[list[Completion]]) -> list[list[list[int]]]:
    """Return the ids alone: log-probabilities may differ in their last bit."""
    return [[h.ids for h in best] for best in found]


@dataclass
class Plain:
    """The searches of one request, with nothing kept from step to step and nothing done early."""

    model: AutoregressiveModel
    config: GenerationConfig
    request: Request

    known: dict[New, list[float]] = field(default_factory=dict)

    @torch.no_grad()
    def logprobs(self, new: New) -> list[float]:
        """Return the log-probability of each id after a beginning."""
        if new not in self.known:
            scores = self.model.logits(torch.tensor([[*self.prompt, *new]]), Context(memory=self.memory))
            self.known[new] = scores[0, -1].log_softmax(-1).tolist()
        return list(self.known[new])

    @property
    def prompt(self) -> Sequence[int]:
        return self.request.ids or [END]

    @cached_property
    @torch.no_grad()
    def memory(self) -> Any:
        return self.model.encode(torch.tensor([self.request.source])) if self.request.source else None

    def steps(self, new: New) -> dict[int, float]:
        """Return the step score of each id that may follow: probabilities, penalties, least length, constraint."""
        options, before = self.config.penalties, Counter(new)
        found = self.logprobs(new)
        for id, value in options.bias:
            found[id] += value
        for id in {*self.prompt, *new}:
            found[id] = found[id] * options.repetition if found[id] < 0 else found[id] / options.repetition
        for id, count in before.items():
            found[id] -= options.presence + options.frequency * count
        allowed = None if self.constraint(new) is None else self.constraint(new).allowed()
        early = self.config.stop if len(new) < self.config.min_tokens else ()
        return {
            id: score
            for id, score in enumerate(found)
            if id not in early and (allowed is None or allowed[id]) and score > float("-inf")
        }

    def constraint(self, new: New) -> Any:
        constraint = self.request.constraint
        for id in new:
            constraint = None if constraint is None or id in self.config.stop else constraint.advance(id)
        return constraint

    def stopped(self, new: New) -> bool:
        constraint = self.constraint(new)
        return new[-1] in self.config.stop or (constraint is not None and constraint.finished)

    def over(self, new: New) -> bool:
        return self.stopped(new) or len(new) == self.config.max_tokens

    def score(self, new: New, total: float) -> float:
        assert isinstance(self.config.strategy, BeamSearch)
        weight = self.config.strategy.coverage
        return total / len(new) ** self.config.strategy.length_penalty + (weight * self.covered(new) if weight else 0.0)

    def everything(self, new: New = (), total: float = 0.0) -> dict[New, float]:
        """Return the score of every sequence that can be."""
        if new and self.over(new):
            return {new: self.score(new, total)}
        found: dict[New, float] = {}
        for id, step in self.steps(new).items():
            found |= self.everything((*new, id), total + step)
        return found

    def beams(self) -> list[New]:
        """Search to the last length."""
        choice = self.config.strategy
        assert isinstance(choice, BeamSearch)
        width = choice.beams // choice.groups
        groups: list[dict[New, float]] = [{(): 0.0} for _ in range(choice.groups)]
        ended: dict[New, float] = {}
        while any(groups):
            taken = Counter[int]()
            for at, live in enumerate(groups):
                grown = {(*new, id): t + step for new, t in live.items() for id, step in self.steps(new).items()}
                fined = {new: t - choice.diversity * taken[new[-1]] for new, t in grown.items()}
                ranked = sorted(grown, key=lambda new: -fined[new])
                ended |= {new: self.score(new, grown[new]) for new in ranked[:width] if self.over(new)}
                groups[at] = {new: grown[new] for new in [new for new in ranked if not self.over(new)][:width]}
                taken.update(new[-1] for new in groups[at])
        broken = {new: not self.stopped(new) and self.broken(new) for new in ended}
        return sorted(ended, key=lambda new: (broken[new], -ended[new]))[: self.config.samples]

    def broken(self, new: New) -> bool:
        """Tell whether a constraint does not let the text end here."""
        constraint = self.constraint(new)
        return constraint is not None and not any(constraint.allowed()[id] for id in self.config.stop)

    @torch.no_grad()
    def covered(self, new: New) -> float:
        """Return the penalty of Wu et al. for what was looked at, by the weights of a whole reading."""
        looks: list[Tensor] = []

        def look(part: Any, given: tuple[Tensor, Context], _: Any) -> None:
            looks.append(part.attention_weights(*given)[0].mean(0))

        readers = [m for m in self.model.modules() if isinstance(m, CrossAttention | AttentionRNN)]
        hooks = [part.register_forward_hook(look) for part in readers]
        self.model(torch.tensor([[*self.prompt, *new[:-1]]]), Context(memory=self.memory))
        for hook in hooks:
            hook.remove()
        return float(torch.stack(looks).mean(0).sum(0).clamp(max=1).log().sum())

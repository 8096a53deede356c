"""Pointer-generator head: each token is generated, or copied from the source (See, Liu & Manning 2017; Gu et al. 2016).

What a position may copy depends on its row's source, which a head does not see. So `point` appends it to the decoder's
vector: a gate, the copy attention over the source, and the source's ids. Whoever selects, flattens or reorders vectors
between the decoder and the head takes each one's source along.
"""

import dataclasses
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import Positive, part
from heddle.core.shapes import Float, Hidden, Ids, Losses, Stream, Targets
from heddle.nn.base import Linear, Role, apply_linear, upcast
from heddle.nn.ends.head import Head, HeadConfig, chunked_nll
from heddle.nn.state import Memory


@part("pointer_generator")
class PointerGeneratorHeadConfig(HeadConfig):
    """Pointer-generator: generate the next token, or copy one of the source (See et al. 2017).

    inner: width of the queries and keys of the copy attention; None: the stream's.
    bias: whether each token has a bias.
    """

    copies: ClassVar[bool] = True

    inner: Positive | None = None
    bias: bool = False

    def build(self, vocab: int, width: int) -> Head:
        return PointerGeneratorHead(vocab, width, self)


@dataclasses.dataclass(frozen=True)
class Pointer:
    """A position's vector, and what it may copy, as the head finds them in one tensor."""

    vectors: Float[Tensor, "... width"]
    gate: Float[Tensor, "... 1"]  # log-odds of generating
    weights: Float[Tensor, "... source"]  # the copy attention
    ids: Int[Tensor, "... source"]

    @property
    def log_gates(self) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of generating and of copying."""
        return F.logsigmoid(self.gate), F.logsigmoid(-self.gate)


class PointerGeneratorHead(Head):
    """p(w) = g · softmax(weight · h)[w] + (1 - g) · sum of a[i] over the source positions i that hold w.

    a = softmax(query(h) · key(m) / sqrt(inner)) over the encoder's last outputs m; g = sigmoid(gate[h; sum of a m]).
    """

    copies = True
    single_softmax = False  # zero weights copy each token as often as the source holds it
    roles = {"weight": Role.HEAD, "bias": Role.BIAS}

    def __init__(self, vocab: int, width: int, config: PointerGeneratorHeadConfig) -> None:
        super().__init__()
        self.vocab, self.width = vocab, width
        inner = width if config.inner is None else config.inner
        self.scale = inner**-0.5
        self.weight = nn.Parameter(torch.empty(vocab, width))
        self.bias = nn.Parameter(torch.empty(vocab)) if config.bias else None
        self.query, self.key = Linear(width, inner), Linear(width, inner)
        self.gate = Linear(2 * width, 1, bias=True)

    def read_source(self, memory: Memory, source: Ids) -> Memory:
        """Return the memory with the source's ids and the keys of the copy attention."""
        return dataclasses.replace(memory, ids=source, keys=self.key(memory.layers[-1]))

    def point(self, hidden: Stream, memory: Memory) -> Float[Tensor, "batch length _"]:
        """Append the gate, then each source position's attention and id, so that zeros may pad a shorter source.

        float32 holds every id exactly.
        """
        assert memory.ids is not None and memory.keys is not None, "read_source was not called"
        scores = upcast(self.query(hidden) @ memory.keys.mT) * self.scale
        if memory.allowed is not None:
            scores = scores.masked_fill(~memory.allowed[:, 0], torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        read = weights.to(hidden.dtype) @ memory.layers[-1]
        gate = self.gate(torch.cat((hidden, read), dim=-1))
        ids = memory.ids[:, None].expand(weights.shape).to(weights.dtype)
        return torch.cat((upcast(hidden), upcast(gate), torch.stack((weights, ids), dim=-1).flatten(-2)), dim=-1)

    def vectors(self, hidden: Hidden) -> Float[Tensor, "... _"]:
        return hidden[..., : self.width]

    def split(self, hidden: Hidden) -> Pointer:
        """Undo the concatenation of `point`."""
        vectors, gate, source = hidden.tensor_split((self.width, self.width + 1), dim=-1)
        weights, ids = source.unflatten(-1, (-1, 2)).unbind(-1)
        return Pointer(vectors, gate, weights, ids.long())

    def generate(self, pointer: Pointer) -> Float[Tensor, "... vocab"]:
        """Return the log-probabilities of generating each token."""
        vectors = pointer.vectors.to(self.weight.dtype)
        return upcast(apply_linear(vectors, self.weight, self.bias, None)).log_softmax(-1)

    def logits(self, hidden: Hidden) -> Float[Tensor, "... vocab"]:
        pointer = self.split(hidden)
        generate, copy = pointer.log_gates
        copied = torch.zeros(*hidden.shape[:-1], self.vocab, dtype=pointer.weights.dtype, device=hidden.device)
        copied = copied.scatter_add(-1, pointer.ids, pointer.weights)
        return torch.logaddexp(generate + self.generate(pointer).to(copied.dtype), copy + _log(copied))

    def nll(self, hidden: Hidden, targets: Targets, smoothing: float = 0.0) -> Losses:
        def nll(vectors: Tensor, labels: Tensor) -> Tensor:
            if smoothing:
                logprobs = self.logits(vectors)
                return F.nll_loss(logprobs, labels, reduction="none") * (1 - smoothing) - smoothing * logprobs.mean(-1)
            pointer = self.split(vectors)
            generate, copy = (gate[:, 0] for gate in pointer.log_gates)
            generated = self.generate(pointer).gather(-1, labels[:, None])[:, 0].to(pointer.weights.dtype)
            copied = (pointer.weights * (pointer.ids == labels[:, None])).sum(-1)
            return -torch.logaddexp(generate + generated, copy + _log(copied))

        return chunked_nll(nll, hidden, targets, self.vocab + hidden.shape[-1])

    def mixing_flops(self, length: int) -> int:
        return 2 * length * (self.query.weight.shape[0] + self.width)


def _log(probabilities: Tensor) -> Tensor:
    """Return the logarithm; that of 0 is far below any other, but finite, so that gradients stay so."""
    return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()

"""Output heads: hidden state -> logits. The head owns the loss, so that training never holds all logits at once."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from heddle.core import Config, ConfigError, Positive, part
from heddle.core.shapes import Float, Hidden, Ids, Losses, Stream, Targets
from heddle.nn.base import InitialValues, Linear, LinearKernel, Module, Role, apply_linear, upcast
from heddle.nn.ends.embedding import FactorProjection, factor_initial_values
from heddle.nn.ends.fused_cross_entropy import LinearSoftmax, fused_linear_cross_entropy
from heddle.nn.layers import ActivationName, LayerNormConfig, NormConfig, activation, apply_softcap
from heddle.nn.state import Memory

# Logits held at once, in elements; beyond it, chunks of tokens are recomputed in the backward pass.
CHUNK = 1 << 27


class HeadConfig(Config, ABC):
    """How hidden states become logits.

    copies: whether tokens can be copied from a source, so that the model must have one.
    """

    copies: ClassVar[bool] = False

    @abstractmethod
    def build(self, vocab: int, width: int) -> "Head":
        """Build the head."""


class Head(Module, ABC):
    """Logits, and the cross-entropy loss with label smoothing."""

    # Whether there is one softmax over all tokens. If not, a head of zeros is not uniform over tokens, and the last
    # bits of a target's loss may depend on the other targets.
    single_softmax: ClassVar[bool] = True
    # Whether hidden states carry what can be copied from the source behind the decoder's vectors.
    copies: ClassVar[bool] = False

    def read_source(self, memory: Memory, source: Ids) -> Memory:
        """Return the memory with what the head needs of the source."""
        return memory

    def point(self, hidden: Stream, memory: Memory) -> Float[Tensor, "batch length _"]:
        """Return the decoder's vectors with what each position may copy from its source."""
        return hidden

    def vectors(self, hidden: Hidden) -> Float[Tensor, "... _"]:
        """Return the decoder's vectors alone."""
        return hidden

    @abstractmethod
    def logits(self, hidden: Hidden) -> Float[Tensor, "... vocab"]:
        """Return the logits of every token."""

    @abstractmethod
    def nll(self, hidden: Hidden, targets: Targets, smoothing: float = 0.0) -> Losses:
        """Return each target's negative log-likelihood (NLL) in nats, with label smoothing."""

    def weighted_nll(
        self, hidden: Hidden, targets: Targets, weights: Tensor, smoothing: float = 0.0, z_loss: float = 0.0
    ) -> Float[Tensor, ""]:
        """Return the sum of `nll`, weighted: the training loss.

        z-loss adds z_loss · log(Z)^2 of the softmax (Mesh-TensorFlow; de Brebisson & Vincent 2016); a head whose logits
        are log-probabilities has Z = 1, so that nothing is added.
        """
        return (self.nll(hidden, targets, smoothing) * weights).sum()


def chunked_nll(nll: Callable[[Tensor, Tensor], Tensor], hidden: Hidden, targets: Targets, scores: int) -> Losses:
    """Return `nll` of hidden states and targets, in chunks of at most `CHUNK` logits that are recomputed."""
    vectors, labels = hidden.reshape(-1, hidden.shape[-1]), targets.flatten()
    tokens = max(1, CHUNK // scores)
    if len(labels) <= tokens:
        return nll(vectors, labels).view_as(targets)
    losses = [
        checkpoint(nll, v, w, use_reentrant=False, preserve_rng_state=False)
        for v, w in zip(vectors.split(tokens), labels.split(tokens), strict=True)
    ]
    return torch.cat(losses).view_as(targets)


def cross_entropy_from_logits(
    head: Head, hidden: Hidden, targets: Targets, smoothing: float, vocab: int, z_loss: float = 0.0
) -> Losses:
    """Return the cross-entropy of the logits, with label smoothing and z-loss, a chunk of tokens at a time."""

    def nll(vectors: Tensor, labels: Tensor) -> Tensor:
        logits = upcast(head.logits(vectors))
        losses = F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
        return losses + z_loss * logits.logsumexp(-1).square() if z_loss else losses

    return chunked_nll(nll, hidden, targets, vocab)


class FullSoftmaxHead(Head, ABC):
    """A head with one softmax over the whole vocabulary: its loss is the cross-entropy of its logits."""

    vocab: int

    def nll(self, hidden: Hidden, targets: Targets, smoothing: float = 0.0) -> Losses:
        return cross_entropy_from_logits(self, hidden, targets, smoothing, self.vocab)

    def weighted_nll(
        self, hidden: Hidden, targets: Targets, weights: Tensor, smoothing: float = 0.0, z_loss: float = 0.0
    ) -> Float[Tensor, ""]:
        if not z_loss:
            return super().weighted_nll(hidden, targets, weights, smoothing)
        losses = cross_entropy_from_logits(self, hidden, targets, smoothing, self.vocab, z_loss)
        return (losses * weights).sum()


class LinearSoftmaxHead(FullSoftmaxHead, ABC):
    """softmax(softcap(weight · project(hidden) + bias)): one matrix, so that product and loss can be fused."""

    roles = {"weight": Role.HEAD, "bias": Role.BIAS}

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.vocab = vocab
        self.softcap: float | None = None
        self.kernel: LinearKernel | None = None

    @abstractmethod
    def project(self, hidden: Hidden) -> Float[Tensor, "... inner"]:
        """Return the vectors that the matrix is multiplied by."""

    def logits(self, hidden: Hidden) -> Float[Tensor, "... vocab"]:
        return apply_softcap(apply_linear(self.project(hidden), self.weight, self.bias, self.kernel), self.softcap)

    def weighted_nll(
        self, hidden: Hidden, targets: Targets, weights: Tensor, smoothing: float = 0.0, z_loss: float = 0.0
    ) -> Float[Tensor, ""]:
        small = targets.numel() * self.vocab <= CHUNK and not hidden.is_cuda
        if small or not torch.is_grad_enabled():
            return super().weighted_nll(hidden, targets, weights, smoothing, z_loss)
        each = self.project(hidden).flatten(0, -2), targets.flatten(), weights.flatten()
        return fused_linear_cross_entropy(*each, LinearSoftmax(self.weight, self.bias, self.softcap, smoothing, z_loss))


@part("softmax")
class SoftmaxHeadConfig(HeadConfig):
    """Softmax head: one matrix, one softmax over the whole vocabulary.

    bias: whether each token has a bias.
    scale: factor of the hidden state, before the matrix.
    power: the hidden state is also multiplied by width^power: -0.5 with a tied table of unit deviation (T5).
    softcap: logits become softcap * tanh(logits / softcap), as in Gemma 2; None: they stay.
    """

    bias: bool = False
    scale: float = 1.0
    power: float = 0.0
    softcap: float | None = None

    def __post_init__(self) -> None:
        if self.softcap is not None and self.softcap <= 0:
            raise ConfigError("softcap", want="above 0, or null for none", got=self.softcap)

    def build(self, vocab: int, width: int) -> Head:
        return SoftmaxHead(vocab, width, self)


class SoftmaxHead(LinearSoftmaxHead):
    """softmax(softcap(weight · (hidden * scale) + bias))."""

    def __init__(self, vocab: int, width: int, config: SoftmaxHeadConfig) -> None:
        super().__init__(vocab)
        self.scale, self.softcap = config.scale * width**config.power, config.softcap
        self.weight = nn.Parameter(torch.empty(vocab, width))
        self.bias = nn.Parameter(torch.empty(vocab)) if config.bias else None

    def project(self, hidden: Hidden) -> Hidden:
        return scaled(hidden, self.scale)


def scaled(x: Tensor, scale: float) -> Tensor:
    """Multiply, unless the scale is one."""
    return x if scale == 1.0 else x * scale


@part("transformed")
class TransformedHeadConfig(HeadConfig):
    """Masked language modelling head: dense layer, activation and norm before the matrix (Devlin et al. 2018).

    inner: width after the dense layer; None: the stream's.
    activation: the function after the dense layer.
    norm: norm before the matrix.
    bias: whether each token has a bias.
    """

    inner: Positive | None = None
    activation: ActivationName = "gelu"
    norm: NormConfig = LayerNormConfig(eps=1e-12)
    bias: bool = True

    def build(self, vocab: int, width: int) -> Head:
        return TransformedHead(vocab, width, self)


class TransformedHead(LinearSoftmaxHead):
    """softmax(weight · norm(activation(dense(hidden))) + bias)."""

    def __init__(self, vocab: int, width: int, config: TransformedHeadConfig) -> None:
        super().__init__(vocab)
        inner = width if config.inner is None else config.inner
        self.dense = Linear(width, inner, bias=True)
        self.activation, self.norm = activation(config.activation), config.norm.build(inner)
        self.weight = nn.Parameter(torch.empty(vocab, inner))
        self.bias = nn.Parameter(torch.empty(vocab)) if config.bias else None

    def project(self, hidden: Hidden) -> Float[Tensor, "... inner"]:
        return self.norm(self.activation(self.dense(hidden)))  # type: ignore[no-any-return]


@part("factorized")
class FactorizedHeadConfig(HeadConfig):
    """Factorized head: the transposed matrices of a factorized embedding (Lan et al. 2020).

    inner: width between the two matrices.
    power: the hidden state is first multiplied by width^power.
    deviation: standard deviation of the initial product of both matrices; None: the initializer's.
    """

    inner: Positive = 128
    power: float = 0.0
    deviation: float | None = None

    def build(self, vocab: int, width: int) -> Head:
        return FactorizedHead(vocab, width, self)


class FactorizedHead(LinearSoftmaxHead):
    """softmax(weight · (hidden · map)); `weight` and `map` have the embedding's shapes, so that they can be tied."""

    def __init__(self, vocab: int, width: int, config: FactorizedHeadConfig) -> None:
        super().__init__(vocab)
        self.scale = width**config.power
        self.weight, self.bias = nn.Parameter(torch.empty(vocab, config.inner)), None
        self.map = FactorProjection(config.inner, width, config.deviation)
        if config.deviation is None:  # transposed, as the embedding has it: the initializer cannot know its fan-in
            self.map.initial_values = {"weight": InitialValues(scale=width**-0.5)}
        self.initial_values = factor_initial_values(config.inner, config.deviation)

    def project(self, hidden: Hidden) -> Float[Tensor, "... inner"]:
        return self.map.back(scaled(hidden, self.scale))


@part("mixture")
class MixtureHeadConfig(HeadConfig):
    """Mixture of softmaxes (MoS): several softmaxes over one matrix, mixed by a learned prior (Yang et al. 2018).

    components: how many softmaxes.
    power: the hidden state is first multiplied by width^power.
    deviation: standard deviation of the initial components and prior; None: the initializer's.
    """

    components: Positive = 15
    power: float = 0.0
    deviation: float | None = None

    def build(self, vocab: int, width: int) -> Head:
        return MixtureHead(vocab, width, self)


class MixtureHead(Head):
    """sum over k of softmax(prior · hidden)[k] * softmax(weight · tanh(component[k] · hidden))."""

    roles = {"weight": Role.HEAD}

    def __init__(self, vocab: int, width: int, config: MixtureHeadConfig) -> None:
        super().__init__()
        self.components, self.scale = config.components, width**config.power
        self.weight = nn.Parameter(torch.empty(vocab, width))
        self.component = Linear(width, config.components * width)
        self.prior = Linear(width, config.components)
        if config.deviation is not None:
            for inner in (self.component, self.prior):
                inner.initial_values = {"weight": InitialValues(scale=config.deviation)}

    def log_prior_and_scores(self, hidden: Hidden) -> tuple[Tensor, Tensor]:
        """Return the log-prior and each component's logits, [..., components, vocab]."""
        hidden = scaled(hidden, self.scale)
        vectors = self.component(hidden).tanh().unflatten(-1, (self.components, -1))
        scores = F.linear(vectors, self.weight.to(hidden.dtype))
        return upcast(self.prior(hidden)).log_softmax(-1), upcast(scores)

    def logits(self, hidden: Hidden) -> Float[Tensor, "... vocab"]:
        prior, scores = self.log_prior_and_scores(hidden)
        return (prior[..., None] + scores.log_softmax(-1)).logsumexp(-2).to(hidden.dtype)

    def nll(self, hidden: Hidden, targets: Targets, smoothing: float = 0.0) -> Losses:
        def nll(vectors: Tensor, labels: Tensor) -> Tensor:
            prior, scores = self.log_prior_and_scores(vectors)
            if smoothing:
                logprobs = (prior[..., None] + scores.log_softmax(-1)).logsumexp(-2)
                return F.nll_loss(logprobs, labels, reduction="none") * (1 - smoothing) - smoothing * logprobs.mean(-1)
            target_scores = scores.gather(-1, labels[:, None, None].expand(-1, self.components, 1))[..., 0]
            return -(prior + target_scores - scores.logsumexp(-1)).logsumexp(-1)

        return chunked_nll(nll, hidden, targets, self.components * len(self.weight))

    def mixing_flops(self, length: int) -> int:
        return 2 * (self.components - 1) * self.weight.numel()

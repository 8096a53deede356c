"""Optimizers: AdamW (Loshchilov & Hutter 2019), Adafactor, Muon (Jordan et al. 2024), SGD; learning-rate schedules."""

import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from heddle.core import Config, ConfigError, DamageError, part, within
from heddle.models.networks import Model
from heddle.nn.base import Role, roles_of
from heddle.nn.channels import ROUTER_BIAS_RATE
from heddle.training.optimizers.adafactor import Adafactor, AdafactorOptions
from heddle.training.optimizers.muon import Muon
from heddle.training.optimizers.stacked import StackedOptimizer

TRITON = importlib.util.find_spec("triton") is not None
MIN_KERNEL_ELEMENTS = 1 << 20  # elements; below, one launch for many tensors is worth more than a faster kernel
ORTHOGONAL = {Role.INSIDE, Role.INTO_STREAM, Role.RECURRENT}
DECAYED = ORTHOGONAL | {Role.HEAD, Role.EMBEDDING}
TRAINED = set(Role) - {Role.ROUTER_BIAS}  # by the optimizer that is chosen; router biases have their own


class AdamW(torch.optim.AdamW):
    """AdamW as torch has it, in state and, but for rounding, in numbers; our kernel updates large tensors on a GPU."""

    found_inf: Tensor | None = None
    grad_scale: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step along the gradients that there are."""
        assert closure is None
        large: list[tuple[Tensor, dict[str, Any]]] = []
        if self.found_inf is not None:
            large = [(p, group) for group in self.param_groups for p in group["params"] if uses_kernel(p)]
            self._kernel_step(large, self.found_inf)
        gradients = [p.grad for p, _ in large]
        for p, _ in large:
            p.grad = None  # updated already
        super().step()
        for (p, _), gradient in zip(large, gradients, strict=True):
            p.grad = gradient

    def _kernel_step(self, large: list[tuple[Tensor, dict[str, Any]]], bad: Tensor) -> None:
        if not large:
            return
        from heddle.nn.kernels import adamw as kernel

        for p, _ in large:
            if not self.state[p]:
                zeros = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                self.state[p] |= {"step": torch.zeros((), device=p.device)} | zeros
        torch._foreach_add_([self.state[p]["step"] for p, _ in large], [1 - bad] * len(large))
        grad_divisor = torch.ones_like(bad) if self.grad_scale is None else self.grad_scale
        for p, group in large:
            kernel.adamw_update(p, self.state[p], group, bad, grad_divisor)


def uses_kernel(p: Tensor) -> bool:
    """Tell whether our kernel can update a tensor and is worth its launch."""
    if not (TRITON and p.is_cuda) or p.grad is None or p.numel() < MIN_KERNEL_ELEMENTS:
        return False
    return p.dtype is p.grad.dtype is torch.float32 and p.is_contiguous() and p.grad.is_contiguous()


STATE_KEYS: dict[type[Optimizer], set[str]] = {
    AdamW: {"step", "exp_avg", "exp_avg_sq"},
    Adafactor: {"step", "exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col"},
    Muon: {"momentum_buffer"},
    SGD: {"momentum_buffer"},
}  # of each optimizer, as saved


class OptimizerConfig(Config, ABC):
    """Optimizer of a run: parameters are grouped by role, never by name."""

    @abstractmethod
    def build(self, model: Model) -> "Optimizers":
        """Give every trainable parameter to an optimizer, by its role."""


def _check(field: str, value: float, below: float = float("inf")) -> None:
    if not 0 <= value < below:
        want = "0 or more" if below == float("inf") else f"0 to below {below:g}"
        raise ConfigError(field, want=want, got=value)


@part("adamw")
class AdamWConfig(OptimizerConfig):
    """AdamW: Adam with decoupled weight decay; gains and biases are not decayed (Loshchilov & Hutter 2019).

    learning_rate: the peak learning rate, which the schedule scales.
    betas: decay rates of the running means of the gradient and of its square.
    eps: added to the denominator, so that nothing is divided by zero.
    weight_decay: weight decay: how strongly matrices are pulled towards zero.
    """

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        _check("learning_rate", self.learning_rate)
        for name, value in (("betas.0", self.betas[0]), ("betas.1", self.betas[1])):
            _check(name, value, below=1)
        _check("eps", self.eps)
        _check("weight_decay", self.weight_decay)

    def build(self, model: Model) -> "Optimizers":
        return Optimizers(model, [self.over(by_role(model, TRAINED))])

    def over(self, named: Mapping[str, tuple[Role, nn.Parameter]]) -> Optimizer:
        """Build AdamW over some parameters."""
        return AdamW(
            _groups(named, self.weight_decay), lr=self.learning_rate, betas=self.betas, eps=self.eps, fused=True
        )


@part("adafactor")
class AdafactorConfig(OptimizerConfig):
    """Adafactor, as T5 was trained: factored second moments, steps in proportion to each parameter, no momentum.

    learning_rate: the peak rate, which the schedule scales: a step as a share of the parameter's root mean square.
    clip_threshold: update clipping: the largest root mean square of an update before it is scaled.
    decay_exponent: second moments keep 1 - t^-decay_exponent of themselves in step t.
    eps: added to squared gradients; and the least root mean square that a parameter counts with.
    """

    learning_rate: float = 0.01
    clip_threshold: float = 1.0
    decay_exponent: float = 0.8
    eps: tuple[float, float] = (1e-30, 1e-3)

    def __post_init__(self) -> None:
        _check("learning_rate", self.learning_rate)
        if not self.clip_threshold > 0:
            raise ConfigError("clip_threshold", want="above 0", got=self.clip_threshold)
        if not 0 < self.decay_exponent <= 1:
            raise ConfigError("decay_exponent", want="above 0 and at most 1", got=self.decay_exponent)
        for name, value in (("eps.0", self.eps[0]), ("eps.1", self.eps[1])):
            if not value > 0:
                raise ConfigError(name, want="above 0", got=value)

    def build(self, model: Model) -> "Optimizers":
        options = AdafactorOptions(self.clip_threshold, self.decay_exponent, self.eps[0])
        parameters = [p for _, p in by_role(model, TRAINED).values()]
        return Optimizers(model, [Adafactor(parameters, self.learning_rate, options, self.eps[1])])


@part("sgd")
class SGDConfig(OptimizerConfig):
    """SGD, perhaps with momentum; with averaged weights it is ASGD, as word-level LSTMs were trained.

    learning_rate: the peak learning rate, which the schedule scales.
    momentum: share of the previous update that is kept.
    weight_decay: weight decay: how strongly matrices are pulled towards zero.
    """

    learning_rate: float = 30.0
    momentum: float = 0.0
    weight_decay: float = 1.2e-6

    def __post_init__(self) -> None:
        _check("learning_rate", self.learning_rate)
        _check("momentum", self.momentum, below=1)
        _check("weight_decay", self.weight_decay)

    def build(self, model: Model) -> "Optimizers":
        groups = _groups(by_role(model, TRAINED), self.weight_decay)
        descent = SGD(groups, lr=self.learning_rate, momentum=self.momentum, fused=True)
        if self.momentum:  # from zero, not from the first gradient: a GPU may find that step to be a bad one
            for p in model.trainable().values():
                descent.state[p]["momentum_buffer"] = torch.zeros_like(p)
        return Optimizers(model, [descent])


def _groups(named: Mapping[str, tuple[Role, nn.Parameter]], decay: float) -> list[dict[str, Any]]:
    """Return parameter groups with and without weight decay."""
    decayed = [p for role, p in named.values() if role in DECAYED]
    plain = [p for role, p in named.values() if role not in DECAYED]
    groups = [{"params": decayed, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


@part("muon")
class MuonConfig(OptimizerConfig):
    """Muon: orthogonalized momentum for the matrices inside the stack, AdamW for the rest (Jordan et al. 2024).

    learning_rate: the peak learning rate of matrices, which the schedule scales.
    momentum: share of the previous update that is kept.
    weight_decay: weight decay: how strongly matrices are pulled towards zero.
    rest: the optimizer of everything else: embeddings, head, gains and biases.
    """

    learning_rate: float = 0.02
    momentum: float = 0.95
    weight_decay: float = 0.0
    rest: AdamWConfig = AdamWConfig(weight_decay=0.0)

    def __post_init__(self) -> None:
        _check("learning_rate", self.learning_rate)
        _check("momentum", self.momentum, below=1)
        _check("weight_decay", self.weight_decay)

    def build(self, model: Model) -> "Optimizers":
        matrices = {n: (r, p) for n, (r, p) in by_role(model, ORTHOGONAL).items() if p.dim() == 2}
        rest = {n: (r, p) for n, (r, p) in by_role(model, TRAINED).items() if n not in matrices}
        if not matrices:
            raise ConfigError("optimizer", "Muon needs trainable 2-D weights in the layers; this model has none")
        weights = [p for _, p in matrices.values()]
        muon = Muon(weights, self.learning_rate, self.momentum, self.weight_decay, model.compute)
        return Optimizers(model, [muon, self.rest.over(rest)] if rest else [muon])


def by_role(model: Model, wanted: Iterable[Role]) -> dict[str, tuple[Role, nn.Parameter]]:
    """Return the parameters of some roles by name, without those that are frozen."""
    parameters, chosen = model.trainable(), set(wanted)
    roles = {name: role for name, role in roles_of(model).items() if name in parameters and role in chosen}
    return {name: (role, parameters[name]) for name, role in roles.items()}


class Optimizers:
    """One or several torch optimizers that step together, with state that is saved by parameter name."""

    def __init__(self, model: Model, optimizers: list[Optimizer]) -> None:
        biases = [p for _, p in by_role(model, {Role.ROUTER_BIAS}).values()]
        self.optimizers = [*optimizers, SGD(biases, lr=ROUTER_BIAS_RATE, fused=True)] if biases else optimizers
        self.names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
        for group in self.groups():
            group["peak"] = group["lr"]
        self._scheduled = [group for optimizer in optimizers for group in optimizer.param_groups]

    def groups(self) -> list[dict[str, Any]]:
        """Return every parameter group."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def set_learning_rate(self, factor: float) -> None:
        """Set learning rates to a factor of their peak; router biases keep theirs."""
        for group in self._scheduled:
            group["lr"] = group["peak"] * factor

    @property
    def learning_rate(self) -> float:
        """Return the first group's learning rate, for the log."""
        return float(self.groups()[0]["lr"])

    def step(self, bad: Tensor, grad_divisor: Tensor | None = None) -> None:
        """Take one step along the gradients divided by `grad_divisor`, unless the step is bad.

        On a GPU both are done on the device by the kernels that move the weights: without
        synchronizing, and gradients are read once.
        """
        if bad.is_cuda and all(
            isinstance(each, StackedOptimizer) or each.defaults["fused"] for each in self.optimizers
        ):
            skip, scale = bad.float(), None if grad_divisor is None else grad_divisor.float()
            for optimizer in self.optimizers:
                optimizer.found_inf, optimizer.grad_scale = skip, scale  # type: ignore[attr-defined]
                optimizer.step()
        elif not bool(bad):
            if grad_divisor is not None:
                torch._foreach_div_([p.grad for p in self.names if p.grad is not None], grad_divisor)
            for optimizer in self.optimizers:
                optimizer.step()

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state as `parameter/key` -> tensor."""
        return {
            f"{self.names[p]}/{key}": value
            for optimizer in self.optimizers
            for p, state in optimizer.state.items()
            for key, value in state.items()
            if isinstance(value, Tensor)
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the state from `tensors()` of the same model and optimizer."""
        known = {name: (optimizer, p) for optimizer in self.optimizers for p, name in self._owned(optimizer)}
        for path, tensor in tensors.items():
            name, _, key = path.rpartition("/")
            if name not in known:
                raise DamageError(f"optimizer state for {name!r}, which this model does not have")
            optimizer, p = known[name]
            if key not in STATE_KEYS[type(optimizer)]:
                want = f"the optimizer of the checkpoint, which has {key} for {name}"
                raise ConfigError("training.optimizer", want=want, got=type(optimizer).__name__.lower())
            # steps are counted in float32; on a GPU the count lives beside the weights
            optimizer.state[p][key] = tensor.clone().to(p.device)

    def _owned(self, optimizer: Optimizer) -> list[tuple[nn.Parameter, str]]:
        return [(p, self.names[p]) for group in optimizer.param_groups for p in group["params"]]


@torch.no_grad()
def global_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return the length of all gradients as one vector, on their device."""
    return nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


# --- learning-rate schedules ------------------------------------------------------------------------------------------


class ScheduleConfig(Config, ABC):
    """A factor between 0 and 1 for every step."""

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """Return the factor for a step (0 is the first) of a run of `steps`."""


def _ramp(step: int, warmup: int) -> float:
    """Learning-rate warm-up: rise linearly to 1; never 0, so that the first step changes something."""
    return min(1.0, (step + 1) / (warmup + 1))


Warmup = Annotated[int, within("0 or more steps", lambda warmup: warmup >= 0)]
Floor = Annotated[float, within("0 to 1, of the peak rate", lambda floor: 0 <= floor <= 1)]


@part("cosine")
class CosineConfig(ScheduleConfig):
    """Warm-up, then cosine decay to a floor (Loshchilov & Hutter 2017).

    warmup: warm-up: steps in which the learning rate rises linearly from zero.
    floor: the learning rate at the end, as a share of the peak.
    """

    warmup: Warmup = 100
    floor: Floor = 0.1

    def factor(self, step: int, steps: int) -> float:
        if step < self.warmup:
            return _ramp(step, self.warmup)
        done = min(1.0, (step - self.warmup) / max(1, steps - self.warmup))
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done))


@part("stable_decay")
class StableDecayConfig(ScheduleConfig):
    """Warm-up, constant, then linear decay over the last part (WSD, Hu et al. 2024).

    warmup: warm-up: steps in which the learning rate rises linearly from zero.
    decay: share of all steps, at the end, in which the learning rate falls.
    floor: the learning rate at the end, as a share of the peak.
    """

    warmup: Warmup = 100
    decay: Annotated[float, within("0 to 1, of all steps", lambda decay: 0 <= decay <= 1)] = 0.3
    floor: Floor = 0.0

    def factor(self, step: int, steps: int) -> float:
        falling = max(1.0, self.decay * steps)
        down = min(1.0, (steps - step) / falling)
        return _ramp(step, self.warmup) * (self.floor + (1 - self.floor) * max(0.0, down))


@part("constant")
class ConstantConfig(ScheduleConfig):
    """Warm-up, then constant.

    warmup: warm-up: steps in which the learning rate rises linearly from zero.
    """

    warmup: Warmup = 0

    def factor(self, step: int, steps: int) -> float:
        return _ramp(step, self.warmup)

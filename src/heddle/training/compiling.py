"""torch.compile: whether a run's step is compiled, for which shapes, and what happens where a compiler fails."""

import logging

import torch

from heddle.core import find
from heddle.core.system import Hardware, compiler_fault, enable_compile_cache
from heddle.models.networks import Model
from heddle.nn.recurrent import Recurrent
from heddle.objectives import SamplingConfig, TeacherForcingConfig
from heddle.training.loop import ModelWithLoss
from heddle.training.optimizers import Optimizers, StackedOptimizer
from heddle.training.run_config import RunConfig

log = logging.getLogger("heddle")


def should_compile_run(config: RunConfig, model: Model, hardware: Hardware) -> bool:
    """Tell whether the step is to be compiled: as the config says, or where it is known to help."""
    if config.hardware.compile in ("on", "off"):
        return config.hardware.compile == "on"
    helps = model.should_compile() and not _decodes_stepwise(config, model) and config.rows.fixed_shape
    return hardware.device.type == "cuda" and helps


def _decodes_stepwise(config: RunConfig, model: Model) -> bool:
    """Tell whether a recurrent model reads its own tokens, one after the other: a compiler would unroll that."""
    sampled = any(not isinstance(one, TeacherForcingConfig) for one in find(config.objective, SamplingConfig))
    return sampled and any(isinstance(module, Recurrent) for module in model.modules())


def compile_losses(losses: ModelWithLoss, config: RunConfig) -> None:
    """Compile the model with its loss at the first step; compiled code is cached for later runs.

    Batches of several lengths are compiled once, for any. With `graphs` forward and backward are replayed as CUDA
    graphs: a small model would otherwise wait for its launches.
    """
    enable_compile_cache()
    torch._dynamo.config.capture_dynamic_output_shape_ops = True  # what a recurrence keeps has a size of its own
    torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True  # routers record in forward alone
    mode = "reduce-overhead" if config.hardware.compile == "graphs" else None
    losses.compile(dynamic=None if config.rows.fixed_shape else True, mode=mode)


def fall_back_to_eager(losses: ModelWithLoss, error: Exception) -> bool:
    """Run eagerly from now on where a compiler failed; False: something else failed."""
    if (reason := compiler_fault(error)) is None:
        return False
    losses._compiled_call_impl = None
    log.warning("the step could not be compiled and runs eagerly, more slowly (%s)", reason)
    return True


def compile_update(optimizers: Optimizers) -> None:
    """Have what moves the weights compiled, where torch has no kernel that does it all at once."""
    for one in optimizers.optimizers:
        if isinstance(one, StackedOptimizer):
            one.compile()

"""Activation checkpointing: backward computes activations again instead of storing them (Chen et al. 2016).

It trades time for memory. Recomputing whole blocks costs a third more; keeping matrix products and attention, which
are expensive, and recomputing only what is between them costs little (Korthikanti et al. 2022).
"""

import logging
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from heddle.nn.recurrent import Recurrent
from heddle.nn.stack import Block

ActivationCheckpointing = Literal["none", "selective", "full"]

aten = torch.ops.aten
SAVED = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten._grouped_mm.default,
    aten._scaled_mm.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.higher_order.flex_attention,
}


def _policy(_ctx: Any, operator: Any, *_args: Any, **_more: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in SAVED else CheckpointPolicy.PREFER_RECOMPUTE


def checkpoint_activations(model: nn.Module, mode: ActivationCheckpointing) -> None:
    """Set what the blocks of a model compute again in backward.

    A recurrent layer is recomputed only with `full`: its kernels do not expose what is between their products.
    """
    if mode == "selective":  # torch warns of changes in place, which no part makes
        logging.getLogger("torch._higher_order_ops.wrap").setLevel(logging.ERROR)
    for module in model.modules():
        if isinstance(module, Block):
            kept = mode == "selective" and any(isinstance(inner, Recurrent) for inner in module.modules())
            module.recompute = None if kept else RECOMPUTED[mode]


_blocks = partial(checkpoint, use_reentrant=False)
RECOMPUTED = {
    "none": None,
    "full": _blocks,
    "selective": partial(_blocks, context_fn=partial(create_selective_checkpoint_contexts, _policy)),
}

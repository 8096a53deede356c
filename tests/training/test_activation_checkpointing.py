"""What is computed again on the way back changes neither loss nor gradients, dropout and routers included."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from laws.cases import CONTEXT, VOCAB, ids, own_presets, small_preset

from heddle.core import decode
from heddle.data.rows import Batch
from heddle.models.networks import EncoderDecoderConfig
from heddle.objectives import NextTokenConfig, SequenceConfig
from heddle.training import TrainingConfig
from heddle.training.loop import ActivationCheckpointing, ModelWithLoss, checkpoint_activations

NAMES = ["gpt2", "mixtral", "lstm_lm", "t5", "speedrun"]


def config_of(name: str) -> Any:
    named = own_presets()[name]
    if name == "gpt2":
        return named.make(layers=2, width=16, heads=4, vocab=VOCAB, context=CONTEXT, dropout=0.3)
    return small_preset(named)


def found(model: Any, compiled: bool = False) -> list[torch.Tensor]:
    """Return the loss and the gradients of one batch."""
    tokens = ids(2, CONTEXT + 1)
    rows = Batch(tokens[:, :-1], tokens[:, 1:], torch.ones(2, CONTEXT), torch.arange(2))
    pairs = Batch(
        rows.inputs, rows.targets, rows.weights, rows.rows, source=ids(2, 7), source_lengths=torch.tensor([4, 7])
    )
    paired = isinstance(model.config, EncoderDecoderConfig)
    losses = ModelWithLoss(model, SequenceConfig() if paired else NextTokenConfig())
    if compiled:
        losses.compile(fullgraph=True, backend="aot_eager")
    torch.default_generator.manual_seed(0)
    total = losses(pairs if paired else rows, None).total
    model.zero_grad()
    total.backward()
    return [total.detach(), *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("how", ["selective", "full"])
@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradients_are_the_same(name: str, how: ActivationCheckpointing) -> None:
    model = config_of(name).build(0)
    want = found(model)
    checkpoint_activations(model, how)
    for one, other in zip(found(model), want, strict=True):
        assert torch.equal(one, other)


def test_less_is_kept_for_the_way_back() -> None:
    model, kept = config_of("gpt2").build(0), {}
    for how in ("none", "selective", "full"):
        checkpoint_activations(model, how)
        sizes: list[int] = []

        def pack(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            found(model)
        kept[how] = sum(sizes)
    assert max(kept["full"], kept["selective"]) < kept["none"]


def test_a_wrong_word_is_refused() -> None:
    with pytest.raises(Exception, match=r"activation_checkpointing.*none, selective, full"):
        decode(TrainingConfig, {"activation_checkpointing": "all"})


COMPILED = """
import torch
from training.test_activation_checkpointing import config_of, found
from heddle.training.loop import checkpoint_activations
torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True
for name in ("gpt2", "mixtral"):
    model = config_of(name).build(0)
    want = found(model, compiled=True)
    for how in ("selective", "full"):
        checkpoint_activations(model, how)
        torch._dynamo.reset()
        for one, other in zip(found(model, compiled=True), want, strict=True):
            torch.testing.assert_close(one, other)
"""


@pytest.mark.full
def test_compiled_it_is_the_same_in_one_graph() -> None:
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    env = os.environ | {"PYTHONPATH": paths}
    command = [sys.executable, "-c", COMPILED]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=env)
    assert done.returncode == 0, done.stderr[-2000:]

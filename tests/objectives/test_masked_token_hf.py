"""Training our BERT on hidden tokens is training `transformers`' BertForMaskedLM: losses and weights, step by step."""

from pathlib import Path
from typing import Any

import torch
import transformers as hf

import heddle
from heddle.data.rows import Batch
from heddle.models.networks import Model
from heddle.objectives import MaskedTokenConfig
from heddle.objectives.masked_token import MaskedBatch
from heddle.training.optimizers import AdamWConfig

VOCAB, LENGTH, STEPS = 120, 40, 5
MASK = VOCAB - 1
SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
OPTIMIZER = {"betas": (0.9, 0.98), "eps": 1e-6}


def their_steps(model: Any, batches: list[MaskedBatch]) -> list[float]:
    """Train their model as BERT was: AdamW, without decay of biases and norms; return the losses."""
    decayed = [w for name, w in model.named_parameters() if w.dim() > 1]
    others = [w for name, w in model.named_parameters() if w.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer, losses = torch.optim.AdamW(groups, lr=1e-2, **OPTIMIZER), []  # type: ignore[arg-type]
    for batch in batches:
        loss = model(input_ids=batch.inputs, labels=batch.targets.where(batch.weights > 0, -100)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def our_steps(model: Model, objective: MaskedTokenConfig, batches: list[MaskedBatch]) -> list[float]:
    """Train ours by the objective and the optimizer of a run; return the losses."""
    (optimizer,) = AdamWConfig(learning_rate=1e-2, weight_decay=0.1, **OPTIMIZER).build(model).optimizers  # type: ignore[arg-type]
    losses = []
    for batch in batches:
        loss = objective(model, batch).total / batch.weights.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_losses_and_weights_are_those_of_transformers_after_each_step(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = hf.BertConfig(vocab_size=VOCAB, max_position_embeddings=LENGTH, **SMALL, **DRY)
    theirs = hf.BertForMaskedLM(config).train()
    theirs.save_pretrained(tmp_path)
    ours = heddle.load(tmp_path, device="cpu").model.train().requires_grad_(True)
    objective = MaskedTokenConfig(mask=MASK, vocab=VOCAB, never_masked=(0,))
    batches = []
    for number in range(STEPS):
        ids = torch.randint(1, 6, (4, LENGTH))  # 0 is their padding, whose vector they do not train
        rows = torch.arange(4 * number, 4 * number + 4)
        batches.append(objective.prepare(Batch(ids, ids, torch.ones(4, LENGTH), rows), seed=1))
    found, wanted = our_steps(ours, objective, batches), their_steps(theirs, batches)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=0, atol=1e-4)
    assert wanted[0] - wanted[-1] > 0.1, "losses of weights that hardly move prove little"

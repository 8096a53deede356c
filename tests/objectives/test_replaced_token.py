"""Replaced-token detection: loss and gradients as written out, fair draws, a run that resumes, and what it leaves."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from laws.objective_cases import CASES, LENGTH, electra, encoder, plain
from reliability.harness import tiny, trainer_for, write_text
from torch.nn import functional as F

import heddle
from heddle.checkpoints import find_source
from heddle.cli.main import main
from heddle.core import ConfigError, decode, encode, replace
from heddle.models.presets import PresetConfig
from heddle.nn.base import Context
from heddle.objectives import ObjectiveConfig, ReplacedTokenConfig
from heddle.objectives.replaced_token import draw_by_coins
from heddle.training.optimizers import SGDConfig

CASE = CASES["replaced_token"]


def written_out(model: Any, made: Any, weight: float = 50.0) -> torch.Tensor:
    """The loss of Clark et al. 2020 step by step, row by row and token by token."""
    ctx = Context(documents=made.documents)
    scores = model.generator.scores("masked_token", made.inputs, ctx)
    masked = torch.zeros((), dtype=torch.float64)
    shown = made.targets.clone()
    for row in range(len(shown)):
        places = made.weights[row].topk(made.coins.shape[1]).indices.tolist()
        for number, place in enumerate(places):
            if made.weights[row, place] == 0:
                continue
            masked = masked + F.cross_entropy(scores[row, place], made.targets[row, place])
            probabilities = scores[row, place].detach().softmax(-1)
            total, chosen = 0.0, 0
            for token, probability in enumerate(probabilities.tolist()):
                total, chosen = total + probability, token
                if total > made.coins[row, number].item():
                    break
            shown[row, place] = chosen
    logits = model.scores("replaced_token", shown, ctx)
    logit = logits[..., 1] - logits[..., 0]
    replaced = (shown != made.targets).double()  # a right guess is original
    each = F.binary_cross_entropy_with_logits(logit, replaced, reduction="none")
    return masked + weight * 6 / LENGTH * (each * made.real).sum()


@pytest.mark.parametrize("weight", [50.0, 3.0])
def test_loss_and_gradients_are_those_written_out(weight: float) -> None:
    model, made = electra().eval(), CASE.prepare(CASE.batch(), 3)
    objective = dataclasses.replace(CASE.objective, weight=weight)  # type: ignore[type-var]
    total, wanted = objective(model, made).total, written_out(model, made, weight)  # type: ignore[operator]
    torch.testing.assert_close(total, wanted)
    names, weights = zip(*model.named_parameters(), strict=True)
    pairs = [torch.autograd.grad(one, weights, allow_unused=True) for one in (total, wanted)]
    for name, mine, theirs in zip(names, *pairs, strict=True):
        assert (mine is None) == (theirs is None), name
        if mine is not None:
            torch.testing.assert_close(mine, theirs, msg=name)


def test_no_gradient_of_detection_reaches_the_generator() -> None:
    model, made = electra().eval(), CASE.prepare(CASE.batch(), 3)
    grads = []
    for weight in (0.0, 50.0):
        model.zero_grad()
        dataclasses.replace(CASE.objective, weight=weight)(model, made).total.backward()  # type: ignore[type-var,operator]
        own = [(n, p.grad.clone()) for n, p in model.generator.named_parameters() if p.grad is not None]
        grads.append({name: grad for name, grad in own if "embedding" not in name and "head.weight" not in name})
    assert len(grads[0]) > 10 and all(torch.equal(grad, grads[1][name]) for name, grad in grads[0].items())
    shared = model.generator.embedding.table.tokens.weight
    assert shared is model.embedding.tokens.weight is model.generator.outputs["masked_token"].head.weight


def test_draws_follow_the_probabilities() -> None:
    scores = torch.tensor([2.0, 0.0, -1.0, 1.0]).double()
    coins = torch.rand(1, 40_000, generator=torch.Generator().manual_seed(0))
    counts = draw_by_coins(scores.expand(1, 40_000, 4), coins)[0].bincount(minlength=4) / 40_000
    wanted = scores.softmax(-1)
    assert ((counts - wanted).abs() < 4 * (wanted * (1 - wanted) / 40_000).sqrt()).all()
    edges = draw_by_coins(scores.expand(1, 2, 4), torch.tensor([[0.0, 1.0]]))
    assert edges.tolist() == [[0, 3]], "no number falls outside"


def test_what_cannot_be_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"model\.outputs: want the output replaced_token and a generator"):
        CASE.loss(encoder(), CASE.prepare(plain(), 0))
    with pytest.raises(ConfigError, match="made by `prepare`"):
        CASE.loss(electra(), plain())
    with pytest.raises(ConfigError, match="an encoder for replaced_token"):
        CASE.loss(heddle.build("gpt2", layers=1, width=16, heads=2, vocab=45, context=40), CASE.prepare(plain(), 0))


def test_a_run_resumes_in_the_same_bits_and_leaves_the_discriminator(tmp_path: Path) -> None:
    config = tiny(write_text(tmp_path / "text.txt"), every__save=4, training__micro_batch=2)
    model = PresetConfig(name="electra-small", layers=1, width=32, heads=2, dropout=0.1)
    config, ended = replace(config, model=model, objective=ReplacedTokenConfig()), []
    for name, stops in (("whole", (8,)), ("cut", (4, 8))):
        for steps in stops:
            here = replace(config, training=replace(config.training, steps=steps))
            trainer = trainer_for(here, tmp_path / name / "run")
            trainer.fit()
        ended.append(trainer.model.weights())
    assert any(name.startswith("generator.") for name in ended[0]), "its weights are in checkpoints"
    assert all(torch.equal(weight, ended[1][name]) for name, weight in ended[0].items())
    assert decode(ObjectiveConfig, encode(trainer.objective)) == trainer.objective
    found = find_source(str(tmp_path / "cut" / "run")).model()
    assert found.config.generator is None and not any("generator" in name for name in found.weights())  # type: ignore[attr-defined]
    lm = heddle.load(tmp_path / "cut" / "run")
    lm.save(tmp_path / "saved")
    again = heddle.load(tmp_path / "saved")
    assert all(torch.equal(weight, again.model.weights()[name]) for name, weight in lm.model.weights().items())
    assert main(["convert", str(tmp_path / "cut" / "run"), str(tmp_path / "hf"), "--to", "hf"]) == 0
    assert "ElectraForPreTraining" in (tmp_path / "hf" / "config.json").read_text()


@pytest.mark.parametrize("split", [1, 2])
def test_micro_batches_draw_the_same_tokens(split: int, tmp_path: Path) -> None:
    config = tiny(write_text(tmp_path / "text.txt"), training__steps=2, training__average=None)
    sgd = SGDConfig(learning_rate=0.1)  # linear in the gradient: Adam would blow roundings up
    model = PresetConfig(name="electra-small", layers=1, width=32, heads=2, dropout=0.0)
    config = replace(config, model=model, objective=ReplacedTokenConfig())
    weights = []
    for number, micro in enumerate((4, split)):
        here = replace(config, training=replace(config.training, micro_batch=micro, optimizer=sgd))
        trainer = trainer_for(here, tmp_path / str(number) / "run")
        trainer.fit()
        weights.append(trainer.model.weights()["embedding.tokens.weight"])
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-6)

"""Distillation: losses and gradients as written out, a teacher that is only read, runs that resume, layers to start."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from laws.objective_cases import MASKED, encoder, encoder_decoder, language_model, pairs, plain, teacher
from reliability.harness import tiny, trainer_for, write_text
from torch.nn import functional as F

import heddle
from heddle.checkpoints.store import load_config
from heddle.cli.main import main
from heddle.core import ConfigError, DamageError, UsageError, decode, encode, replace
from heddle.core.system import read_config
from heddle.models.networks import Encoder
from heddle.models.presets import PresetConfig, build
from heddle.models.surgery import choose_layers, spread_layers
from heddle.nn.base import Context
from heddle.nn.ends import head
from heddle.nn.stack import Block
from heddle.objectives import (
    DistillationConfig,
    InverseSigmoidSamplingConfig,
    MaskedTokenConfig,
    NextTokenConfig,
    ObjectiveConfig,
    SequenceConfig,
)
from heddle.training import RunConfig
from heddle.training.optimizers import SGDConfig

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def hidden_and_logits(model: Any, made: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The last hidden states and the logits of every position, by the model's own doors."""
    memory = None if made.source is None else model.encode(made.source, made.source_lengths)
    hidden = model(made.inputs, Context(documents=made.documents, memory=memory))
    head = model.outputs["masked_token"].head if isinstance(model, Encoder) else model.head
    return hidden, head.logits(hidden)


def written_out(model: Any, guide: Any, made: Any, temperature: float = 2.0) -> torch.Tensor:
    """The loss of Sanh et al. 2019, position by position."""
    (hidden, logits), (taught, wanted) = hidden_and_logits(model, made), hidden_and_logits(guide, made)
    share = 6 / 40 if made.documents is not None else 1.0  # of positions that the student's own loss predicts
    total = torch.zeros((), dtype=torch.float64)
    for row, place in itertools.product(*map(range, made.inputs.shape)):
        own, given = logits[row, place], wanted[row, place].detach()
        if made.weights[row, place] > 0:
            total = total + 2 * F.cross_entropy(own, made.targets[row, place])
        if made.real[row, place] > 0:
            p, q = ((x / temperature).softmax(-1) for x in (given, own))
            divergence = (p * (p.log() - q.log())).sum()
            x, y = hidden[row, place], taught[row, place].detach()
            cosine = (x * y).sum() / (x.square().sum().sqrt() * y.square().sum().sqrt())
            total = total + share * (5 * temperature**2 * divergence + 1 - cosine)
    return total


KINDS: dict[str, tuple[ObjectiveConfig, Any, Any]] = {
    "language model": (NextTokenConfig(), language_model, plain),
    "encoder": (MASKED, encoder, plain),
    "encoder-decoder": (SequenceConfig(), encoder_decoder, pairs),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [2.0, 3.5])
def test_loss_and_gradients_are_those_written_out(
    kind: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    hard, make, rows = KINDS[kind]
    objective, guide = DistillationConfig(hard_targets=hard, temperature=temperature), teacher(make)
    model, made = make().train(), objective.prepare(rows(), 3)
    wanted = written_out(model, guide, made, temperature)
    names, weights = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(wanted, weights, allow_unused=True)
    for chunk in (1 << 27, 45 * 2 * 7):  # all at once, or seven tokens at a time
        monkeypatch.setattr(head, "CHUNK", chunk)
        total = objective.loss_function(guide)(model, made, None, None).total
        torch.testing.assert_close(total, wanted, **CLOSE)
        for name, mine, theirs in zip(
            names, torch.autograd.grad(total, weights, allow_unused=True), gradients, strict=True
        ):
            assert (mine is None) == (theirs is None), name
            if mine is not None and theirs is not None:
                torch.testing.assert_close(mine, theirs, msg=name, **CLOSE)
    assert all(weight.grad is None and not weight.requires_grad for weight in guide.parameters())


def test_each_weight_scales_its_own_term() -> None:
    made, model, guide = DistillationConfig().prepare(plain(), 3), language_model().train(), teacher(language_model)

    def total(**weights: float) -> torch.Tensor:
        objective = DistillationConfig(**{"soft_weight": 0.0, "hard_weight": 0.0, "cosine_weight": 0.0} | weights)
        return objective.loss_function(guide)(model, made, None, None).total

    alone = [total(soft_weight=5.0), total(soft_weight=1.0, hard_weight=2.0) - total(soft_weight=1.0)]
    whole = DistillationConfig().loss_function(guide)(model, made, None, None)
    torch.testing.assert_close(whole.total, sum(alone, total(cosine_weight=1.0)), **CLOSE)
    found = {name: float(value) for name, value in whole.metrics.items()}
    parts = 5 * found["soft_loss"] + 2 * found["hard_loss"] + found["cosine_loss"]
    assert parts == pytest.approx(whole.total.item() / made.tokens)


def test_held_out_rows_cost_the_student_s_own_loss() -> None:
    objective, model = DistillationConfig(), language_model().eval()
    found = objective.loss_function(teacher(language_model))(model, objective.prepare(plain(), 3), None, None)
    assert torch.equal(found.total, NextTokenConfig()(model, plain()).total) and objective.gives_bits_per_byte
    assert not DistillationConfig(hard_targets=MASKED).gives_bits_per_byte


def test_a_larger_vocabulary_of_one_side_is_left_out() -> None:
    objective, made = DistillationConfig(), DistillationConfig().prepare(plain(), 3)
    model = language_model().train()
    wide, narrow = (
        build("gpt2", layers=1, width=16, heads=2, vocab=vocab, context=40).double().eval() for vocab in (50, 45)
    )
    own = {name: weight[:45] for name, weight in wide.weights().items() if weight.shape[0] == 50}
    narrow.load_weights({**wide.weights(), **own})
    totals = [objective.loss_function(guide)(model, made, None, None).total for guide in (wide, narrow)]
    torch.testing.assert_close(*totals, **CLOSE)


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a text and two teachers, a language model and an encoder of two layers."""
    root = tmp_path_factory.mktemp("distillation")
    text = write_text(root / "text.txt", lines=120)
    for name, model, objective in (
        ("teacher", PresetConfig(name="first", layers=3, width=32, heads=2, dropout=0.2), NextTokenConfig()),
        ("encoder", PresetConfig(name="bert-base-masked", layers=2, width=32, heads=2), MaskedTokenConfig()),
    ):
        config = replace(tiny(text, training__steps=2), model=model, objective=objective)
        trainer_for(config, root / name).fit()
    return root


def student(folder: Path) -> Any:
    """Return a run of a student of one layer, which is the teacher's first."""
    config = tiny(folder / "text.txt", training__steps=4, every__save=2, every__validate=2)
    place = str(folder / "teacher")
    return replace(config, init=place, init_layers=1, objective=DistillationConfig(teacher=place))


def new_student(folder: Path, place: Path, **changes: Any) -> Any:
    """Return a run of a student of one layer with new weights and without dropout."""
    config = encode(tiny(folder / "text.txt", training__steps=2, training__average=None, **changes))
    config = decode(RunConfig, config | {"tokenizer": {"kind": "pretrained", "path": str(place)}})
    masked = place.name == "encoder"
    name, hard = ("bert-base-masked", MaskedTokenConfig()) if masked else ("first", NextTokenConfig())
    model = PresetConfig(name=name, layers=1, width=32, heads=2, dropout=0.0)
    return replace(config, model=model, objective=DistillationConfig(teacher=str(place), hard_targets=hard))


def test_a_run_resumes_in_the_same_bits_and_its_checkpoints_hold_the_student(folder: Path, tmp_path: Path) -> None:
    ended = []
    for name, stops in (("whole", (4,)), ("cut", (2, 4))):
        for steps in stops:
            path = tmp_path / name / "run" / "config.json"
            here = decode(RunConfig, load_config(read_config(path), path)) if path.exists() else student(folder)
            trainer = trainer_for(replace(here, training=replace(here.training, steps=steps)), path.parent)
            trainer.fit()
        ended.append(trainer.model.weights())
    assert all(torch.equal(weight, ended[1][name]) for name, weight in ended[0].items())
    assert decode(ObjectiveConfig, encode(trainer.objective)) == trainer.objective
    lm = heddle.load(tmp_path / "cut" / "run")
    assert lm.model.config.plan.times == 1 and len(lm.model.weights()) == len(ended[0])  # type: ignore[attr-defined]
    state = trainer.snapshot().state["frozen_model"]
    assert state["name"] == str(folder / "teacher") and "step-" in state["path"] and len(state["sha256"]) == 64
    assert list((folder / "teacher" / "checkpoints").glob(".held-*")), "the teacher's checkpoint is not pruned"
    assert main(["convert", str(tmp_path / "cut" / "run"), str(tmp_path / "hf"), "--to", "hf"]) == 0


def teacher_is_only_read(trainer: Any) -> None:
    """The teacher gives the same loss whatever is drawn, has no gradient, and is no part of what is trained."""
    guide, batch = trainer.frozen_model.model, next(iter(trainer.loader))
    losses = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        losses.append(trainer.loss(trainer.model, batch, None, None).total)
    assert torch.equal(*losses), "the teacher draws"
    losses[0].backward()
    assert all(weight.grad is None for weight in guide.parameters())
    trained = {id(weight) for weight in trainer.take_step.parameters}
    assert not any(id(weight) in trained for weight in guide.parameters())


def test_the_teacher_is_in_eval_mode_and_a_bug_is_found(folder: Path, tmp_path: Path) -> None:
    trainer: Any = trainer_for(new_student(folder, folder / "teacher"), tmp_path / "run")
    trainer.fit()
    assert trainer.model.training and not trainer.frozen_model.model.training
    teacher_is_only_read(trainer)
    trainer.frozen_model.model.train()
    with pytest.raises(AssertionError, match="the teacher draws"):
        teacher_is_only_read(trainer)


@pytest.mark.parametrize("name", ["teacher", "encoder"])
def test_micro_batches_give_the_same_steps(name: str, folder: Path, tmp_path: Path) -> None:
    sgd, weights = SGDConfig(learning_rate=0.1), []  # linear in the gradient: Adam would blow roundings up
    for micro in (4, 1):
        config = new_student(folder, folder / name, training__micro_batch=micro, hardware__dtype="float32")
        trainer = trainer_for(replace(config, training=replace(config.training, optimizer=sgd)), tmp_path / str(micro))
        before = {name: weight.clone() for name, weight in trainer.model.weights().items()}
        trainer.fit()
        weights.append(trainer.model.weights())
    assert max(float((weight - before[name]).abs().max()) for name, weight in weights[0].items()) > 0.005
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-6)


def test_a_teacher_that_changed_or_went_is_refused_and_a_copy_is_taken(folder: Path, tmp_path: Path) -> None:
    for name in ("moving", "copy"):
        shutil.copytree(folder / "teacher", tmp_path / name)
    runs, config = tmp_path / "runs" / "run", new_student(folder, tmp_path / "moving")
    longer = replace(config, training=replace(config.training, steps=4))
    trainer_for(config, runs).fit()
    (tmp_path / "moving").rename(tmp_path / "away")
    with pytest.raises(UsageError, match=r"its teacher is .*moving, which is not at .*objective\.teacher=PATH"):
        trainer_for(longer, runs)
    other = tiny(folder / "text.txt", training__steps=1)
    trainer_for(replace(other, model=replace(config.model, layers=3)), tmp_path / "moving").fit()
    with pytest.raises(DamageError, match="moving has other weights than those that the run began with"):
        trainer_for(longer, runs)
    trainer_for(replace(longer, objective=replace(config.objective, teacher=str(tmp_path / "copy"))), runs).fit()


def test_what_cannot_be_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    base, place = tiny(folder / "text.txt"), str(folder / "teacher")
    ours = decode(type(base), encode(base) | {"tokenizer": {"kind": "pretrained", "path": place}})
    taught = DistillationConfig(teacher=place)
    narrow = PresetConfig(name="first", layers=1, width=16, heads=2)
    other, wrong = str(folder / "encoder"), "want a model with the run's tokenizer"
    cases: list[tuple[Any, str]] = [
        (replace(base, objective=DistillationConfig()), "objective.teacher: want a model: a run"),
        (replace(base, objective=taught), "teacher, because both models need the same tokenizer"),
        (replace(ours, objective=taught, model=narrow), "objective.cosine_weight: want 0, because the student's width"),
        (replace(ours, objective=DistillationConfig(teacher=other)), f"objective.teacher: {wrong}"),
        (replace(ours, objective=DistillationConfig(teacher="nothing")), "nothing"),
        (replace(base, init_layers=2), "init_layers: want null where no init names another model"),
        (replace(base, init=place, init_layers=4), "init_layers: want 1 to 3"),
        (replace(base, init=place, init_layers=(0, 3)), "init_layers: want ascending numbers from 0 to 2"),
        (replace(base, init=place, init_layers=(1, 0)), "init_layers: want ascending"),
        (replace(base, init=place, init_layers=()), "init_layers: want ascending"),
    ]
    for number, (config, words) in enumerate(cases):
        with pytest.raises((ConfigError, UsageError)) as caught:
            trainer_for(config, tmp_path / str(number))
        assert words in str(caught.value) and "\n" not in str(caught.value)
    sampled = NextTokenConfig(sampling=InverseSigmoidSamplingConfig())
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"temperature": 0.0}, "temperature"),
        ({"soft_weight": 0.0, "cosine_weight": 0.0}, "soft_weight: want above 0, or cosine_weight"),
        ({"hard_targets": sampled}, r"hard_targets\.sampling: want none"),
    )
    for fields, words in refused:
        with pytest.raises(ConfigError, match=words):
            DistillationConfig(**fields)
    with pytest.raises(ConfigError, match=r"hard_targets\.kind: want one of masked_token, next_token, sequence"):
        decode(ObjectiveConfig, {"kind": "distillation", "hard_targets": "span_corruption"})
    with pytest.raises(ConfigError, match="made by `prepare`"):
        DistillationConfig()(language_model(), plain())
    with pytest.raises(ConfigError, match="given to `loss_function`"):
        DistillationConfig()(language_model().train(), DistillationConfig().prepare(plain(), 0))
    with pytest.raises(ConfigError, match=r"objective\.teacher: want a model for masked_token, as the student is"):
        DistillationConfig(hard_targets=MASKED).check_frozen(encoder(), language_model())


# --- layers to start from ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("student", "hard", "own"),
    [
        (language_model, MASKED, "next_token, because the student is a language model"),
        (encoder, SequenceConfig(), "masked_token, because the student is an encoder"),
        (encoder_decoder, MASKED, "sequence, because the student is an encoder-decoder"),
    ],
)
def test_hard_targets_of_another_kind_of_model_name_the_right_ones(student: Any, hard: Any, own: str) -> None:
    with pytest.raises(ConfigError, match=f"objective.hard_targets: want {own}, got '{hard.kind}'"):
        DistillationConfig(hard_targets=hard).checked_model(student())


def test_layers_are_spread_as_in_distilbert() -> None:
    assert spread_layers(12, 6) == (0, 2, 4, 7, 9, 11) and spread_layers(30, 15)[::14] == (0, 29)
    assert spread_layers(3, 1) == (0,) and spread_layers(4, 4) == (0, 1, 2, 3)


@pytest.mark.parametrize("name", ["gpt2", "bert-base-masked", "t5-small"])
def test_chosen_layers_are_those_of_the_teacher(name: str) -> None:
    large = build(name, layers=5, width=16, heads=2, vocab=45, context=40)
    small = choose_layers(large, (0, 2, 4))
    assert small.config == build(name, layers=3, width=16, heads=2, vocab=45, context=40).config
    for mine, theirs in zip(small.towers, large.towers, strict=True):
        ours, others = ([m for m in tower.modules() if isinstance(m, Block)] for tower in (mine, theirs))
        assert len(ours) == 3 and len(others) == 5
        for block, number in zip(ours, (0, 2, 4), strict=True):
            for key, weight in block.named_parameters():
                assert torch.equal(weight, others[number].get_parameter(key)), key
    rest = {key: weight for key, weight in small.weights().items() if "stack" not in key}
    assert rest and all(torch.equal(weight, large.weights()[key]) for key, weight in rest.items())


def test_layers_that_are_shared_cannot_be_chosen() -> None:
    model = build("albert-base-masked", layers=4, width=16, heads=2, vocab=45, context=40)
    with pytest.raises(ConfigError, match=r"init_layers: want null, because the layers .* cannot be taken apart"):
        choose_layers(model, 2)

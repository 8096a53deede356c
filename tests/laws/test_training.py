"""The laws of training (DESIGN §3): k micro-batches are one batch; a resumed run ends in the same bits.

`splits_agree` has a sequel with two processes in tests/reliability/test_r29_splits.py.
"""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from laws.cases import CONTEXT, SMALL, Case, cases, ids, loud, preset_functions
from reliability.harness import tiny, trainer_for, write_text
from torch import Tensor

from heddle.core import replace
from heddle.data.rows import Batch, StreamRows
from heddle.models.networks import LanguageModel, LanguageModelConfig
from heddle.models.presets import PRESETS, PresetConfig, preset
from heddle.objectives import NextTokenConfig
from heddle.training import RunConfig
from heddle.training.loop import Callback, Guard, GuardConfig, ModelWithLoss, ProcessGroup, Report, Step, Trainer, step
from heddle.training.optimizers import Optimizers

ROWS = 8
Take = Callable[[Step, Batch, int, int], Report]


# --- k micro-batches are one batch ------------------------------------------------------------------------------------


def unequal(rows: int, seed: int) -> Batch:
    """Return rows of which each has another number of targets that count, some none."""
    tokens = ids(rows, CONTEXT + 1, seed=seed)
    real = torch.arange(CONTEXT) < torch.randint(CONTEXT + 1, (rows, 1), generator=torch.Generator().manual_seed(seed))
    return Batch(tokens[:, :-1], tokens[:, 1:], real.float(), torch.arange(rows), documents=(~real).long())


def build_step(model: LanguageModel, micro: int) -> Step:
    """Return a step of plain descent, which shows the gradient as it is."""
    return Step(
        losses=ModelWithLoss(model, NextTokenConfig()),
        model=model,
        optimizers=Optimizers(model, [torch.optim.SGD(model.parameters(), lr=0.1)]),
        guard=Guard.start(GuardConfig(), torch.device("cpu")),
        average=None,
        processes=ProcessGroup(),
        seed=0,
        clip=1.0,
        micro_batch=micro,
        carried=[None] * (ROWS // micro),
    )


def trained(case: Case, micro: int, take: Take) -> tuple[list[Tensor], list[Tensor]]:
    """Take three steps; return the weights, and each step's loss and norm."""
    model = loud(case.config).train()
    stepping, seen = build_step(model, micro), []
    for number in range(3):
        batch = unequal(ROWS, seed=number)
        report = take(stepping, batch, number, batch.tokens)
        seen += [report.loss, report.norm]
    return [p.detach() for p in model.parameters()], seen


def _apart(left: Tensor, right: Tensor) -> float:
    """Return how far apart two results are, by the size of the larger numbers where those are beyond one."""
    return ((left - right).abs().max() / left.abs().max().clamp(min=1)).item()


def splits_agree(case: Case, take: Take = Step.__call__) -> None:
    """One batch, and the same in pieces of any size, give the same weights to 1e-12 in double precision."""
    weights, seen = trained(case, ROWS, take)
    for micro in (4, 2, 1):
        others, also = trained(case, micro, take)
        for ours, theirs in ((weights, others), (seen, also)):
            worst = max(_apart(a, b) for a, b in zip(ours, theirs, strict=True))
            assert worst <= 1e-12, f"{ROWS} = {ROWS // micro} x {micro}: {worst:.3g} apart"  # false for NaN too


@pytest.mark.parametrize("case", cases(), ids=lambda c: c.name)
def test_micro_batches_are_one_batch(case: Case) -> None:
    if not case.splits:
        with pytest.raises(AssertionError, match="apart"):
            splits_agree(case)
        return
    splits_agree(case)


def by_micro_tokens(stepping: Step, batch: Batch, number: int, tokens: int) -> Report:
    """Take the mean of each micro-batch's mean: short rows count for more."""
    pieces = range(0, len(batch), stepping.micro_batch)
    for first in pieces:
        piece = batch.slice(first, first + stepping.micro_batch)
        loss = stepping.losses(piece, None).total
        (loss / max(1, piece.tokens) / len(pieces)).backward()
    return stepping._update(loss.detach() / tokens, tokens)


def counted_twice(stepping: Step, batch: Batch, number: int, tokens: int) -> Report:
    """Divide by the tokens of a piece, and not by the number of pieces: the gradient grows with it."""
    for first in range(0, len(batch), stepping.micro_batch):
        loss = stepping.losses(batch.slice(first, first + stepping.micro_batch), None).total
        (loss / (tokens * stepping.micro_batch / len(batch))).backward()
    return stepping._update(loss.detach() / tokens, tokens)


def last_only(stepping: Step, batch: Batch, number: int, tokens: int) -> Report:
    """Forget all gradients but the last piece's."""
    for first in range(0, len(batch), stepping.micro_batch):
        stepping.optimizers.zero_grad()
        loss = stepping.losses(batch.slice(first, first + stepping.micro_batch), None).total
        (loss / tokens).backward()
    return stepping._update(loss.detach() / tokens, tokens)


@pytest.mark.parametrize("bug", [by_micro_tokens, counted_twice, last_only], ids=lambda bug: bug.__name__)
def test_a_planted_bug_of_accumulation_is_found(bug: Take) -> None:
    case = next(case for case in cases() if case.name == "preset=gpt2")
    with pytest.raises(AssertionError, match="apart"):
        splits_agree(case, bug)


# --- a resumed run ends in the same bits ------------------------------------------------------------------------------


class StopAfter(Callback):
    """Ends a run after a step, with a checkpoint."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, trainer: Trainer, report: Report) -> None:
        if trainer.step == self.step:
            trainer.stop = "cut"


def finished(trainer: Trainer) -> dict[str, Any]:
    """Train to the end; return every tensor and number that a checkpoint would hold."""
    trainer.fit()
    snapshot = trainer.snapshot()
    named = {f"{group}/{name}": t.clone() for group, ts in snapshot.tensors.items() for name, t in ts.items()}
    return named | {"state": dict(snapshot.state)}


def resumes_in_the_same_bits(config: RunConfig, folder: Path, cut: int) -> None:
    """Cut after a step and gone on with, a run holds what the whole run holds."""
    whole = finished(trainer_for(config, folder / "whole" / "run"))
    first = trainer_for(config, folder / "cut" / "run")
    first.callbacks.insert(-1, StopAfter(cut))
    first.fit()
    again = trainer_for(config, folder / "cut" / "run")
    assert first.step == again.step == cut
    resumed = finished(again)
    assert whole.keys() == resumed.keys()
    for name, value in whole.items():
        same = torch.equal(value, resumed[name]) if isinstance(value, Tensor) else value == resumed[name]
        assert same, f"{name} differs after a resume"


def run_of(name: str, text: Path, **changes: Any) -> RunConfig:
    """Return a run of six steps of a preset family, with dropout where it has any."""
    options: dict[str, Any] = dict(SMALL[name])
    if "dropout" in preset(name).option_names:
        options["dropout"] = 0.2
    config = tiny(text, training__steps=6, every__save=100, every__validate=3, rows__length=16, **changes)
    dials = {option: options.pop(option) for option in ("memory",) if option in options}
    return replace(config, model=PresetConfig(name=name, dials=dials, **options))


@pytest.mark.parametrize("name", [n for n in preset_functions(LanguageModelConfig) if n in PRESETS])
def test_a_resumed_run_of_every_preset_family_ends_in_the_same_bits(name: str, tmp_path: Path) -> None:
    resumes_in_the_same_bits(run_of(name, write_text(tmp_path / "text.txt")), tmp_path, cut=4)


@pytest.mark.parametrize(
    "name", ["lstm_lm", "gru_lm", "awd_lstm", "mogrifier_lm", "qrnn_lm", "window_lm", "transformer_xl"]
)
def test_a_resumed_run_goes_on_with_what_its_streams_carry(name: str, tmp_path: Path) -> None:
    config = run_of(name, write_text(tmp_path / "text.txt"))
    resumes_in_the_same_bits(replace(config, rows=StreamRows(length=8, lanes=4)), tmp_path, cut=3)


@pytest.mark.parametrize(
    "optimizer",
    ["adamw", "muon", {"kind": "sgd", "learning_rate": 0.5}, {"kind": "sgd", "learning_rate": 0.1, "momentum": 0.9}],
    ids=["adamw", "muon", "sgd", "momentum"],
)
def test_a_resumed_run_of_every_optimizer_ends_in_the_same_bits(optimizer: Any, tmp_path: Path) -> None:
    config = run_of("first", write_text(tmp_path / "text.txt"), training__optimizer=optimizer)
    resumes_in_the_same_bits(config, tmp_path, cut=2)


@pytest.mark.parametrize("cut", [2, 3, 5])
@pytest.mark.parametrize(
    "average",
    [{"kind": "plain", "begin": 1}, {"kind": "plain", "begin": 4}, {"kind": "triggered", "patience": 1}],
    ids=["plain-1", "plain-4", "triggered"],
)
def test_a_resumed_run_of_every_average_ends_in_the_same_bits(average: Any, cut: int, tmp_path: Path) -> None:
    """At this rate the held-out loss rises at once, so that the average that waits begins during the run."""
    changes = {"training__average": average, "training__optimizer": {"kind": "sgd", "learning_rate": 500.0}}
    config = run_of("lstm_lm", write_text(tmp_path / "text.txt"), **changes)
    resumes_in_the_same_bits(replace(config, every=replace(config.every, validate=1)), tmp_path, cut=cut)


def forget(*_: object) -> None:
    """Do nothing."""


def rewound(trainer: Trainer, checkpoint: Any, frozen: Any, real: Callable[..., None] = Trainer.restore) -> None:
    real(trainer, checkpoint, frozen)
    trainer.loader.consumed = 0


def stateless(trainer: Trainer, checkpoint: Any, frozen: Any, real: Callable[..., None] = Trainer.restore) -> None:
    real(trainer, checkpoint, frozen)
    trainer.take_step.carried = [None] * len(trainer.take_step.carried)


def restarted(trainer: Trainer, checkpoint: Any, frozen: Any, real: Callable[..., None] = Trainer.restore) -> None:
    real(trainer, checkpoint, frozen)
    assert trainer.take_step.average is not None
    trainer.take_step.average.load(trainer.model.weights())


BUGS: dict[str, tuple[Any, str, Any]] = {
    "optimizer state lost": (Optimizers, "load", forget),
    "dropout not keyed": (step, "_seed", forget),
    "data begins again": (Trainer, "restore", rewound),
    "carried state lost": (Trainer, "restore", stateless),
    "average begins again": (Trainer, "restore", restarted),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_of_resuming_is_found(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = run_of("lstm_lm", write_text(tmp_path / "text.txt"))
    config = replace(config, rows=StreamRows(length=8, lanes=4))
    resumes_in_the_same_bits(config, tmp_path / "right", cut=3)
    monkeypatch.setattr(*BUGS[bug])
    with pytest.raises(AssertionError, match="differs after a resume"):
        resumes_in_the_same_bits(config, tmp_path / "wrong", cut=3)


def test_micro_batches_with_dropout_draw_for_themselves() -> None:
    """The declared exception: dropout is keyed by step and micro-batch, so splits agree only without it."""
    config = dataclasses.replace(PresetConfig(name="gpt2", **SMALL["gpt2"], dropout=0.5, context=CONTEXT), vocab=23)
    model = config.build()
    assert isinstance(model, LanguageModel)
    losses = [float(build_step(model, 4)(unequal(ROWS, 0), number, 10).loss) for number in (0, 0, 1)]
    assert not math.isnan(losses[0]) and losses[0] != losses[2]

"""Stored teacher outputs: a run that reads them is the run that asks the teacher; others, and damage, are refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from laws.objective_cases import language_model
from reliability.harness import tiny, trainer_for, write_text

from heddle import load
from heddle.checkpoints.store import load_config
from heddle.cli.main import main
from heddle.core import ConfigError, DamageError, DataError, UsageError, decode, encode, replace
from heddle.core.system import read_config
from heddle.data.rows import PairRows
from heddle.data.shards import TeacherOutputs
from heddle.data.sources import corpus_for
from heddle.models.presets import PresetConfig
from heddle.nn.base import Context
from heddle.nn.ends import Prediction
from heddle.objectives import DistillationConfig, MaskedTokenConfig, NextTokenConfig, SequenceConfig
from heddle.text.tokenizers import ByteTokenizer
from heddle.training import RunConfig, store_teacher_outputs
from heddle.training.optimizers import SGDConfig

HARD: dict[str, Any] = {"lm": NextTokenConfig(), "encoder": MaskedTokenConfig(), "pairs": SequenceConfig()}
PRESETS = {"lm": "first", "encoder": "bert-base-masked", "pairs": "t5-small"}


def base(root: Path, kind: str) -> RunConfig:
    config = tiny(root / "text.txt", training__steps=3, training__average=None, training__micro_batch=None)
    sgd = replace(config.training, optimizer=SGDConfig(learning_rate=0.1))
    if kind == "pairs":
        source = {"kind": "parallel", "source": str(root / "text.txt"), "target": str(root / "upper.txt")}
        data = replace(
            corpus_for(str(root / "text.txt")), sources=decode(type(config.data), {"sources": [source]}).sources
        )
        config = replace(config, data=data, rows=PairRows(length=80, batch=4))
    return replace(config, training=sgd, tokenizer=ByteTokenizer())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with texts and a teacher of each kind."""
    root = tmp_path_factory.mktemp("stored")
    text = write_text(root / "text.txt", lines=120)
    (root / "upper.txt").write_text(text.read_text().upper())
    for kind, hard in HARD.items():
        model = PresetConfig(name=PRESETS[kind], layers=2, width=32, heads=2)
        trainer_for(replace(base(root, kind), model=model, objective=hard), root / kind).fit()
    return root


def student(root: Path, kind: str, teacher: Path | None = None) -> RunConfig:
    """Return a run without dropout that learns from a teacher, of another size than its own."""
    config = base(root, kind)
    config = decode(RunConfig, encode(config) | {"tokenizer": {"kind": "pretrained", "path": str(root / kind)}})
    model = PresetConfig(name=PRESETS[kind], layers=1, width=32, heads=2, dropout=0.0)
    place = str(root / kind if teacher is None else teacher)
    return replace(config, model=model, objective=DistillationConfig(teacher=place, hard_targets=HARD[kind]))


def trained(config: RunConfig, folder: Path) -> dict[str, torch.Tensor]:
    trainer = trainer_for(config, folder)
    trainer.fit()
    return trainer.model.weights()


@pytest.mark.parametrize("kind", HARD)
def test_a_run_from_stored_outputs_is_the_run_that_asks_the_teacher(kind: str, root: Path, tmp_path: Path) -> None:
    asked = trained(student(root, kind), tmp_path / "runs" / "asked")
    for precision, rounding in (("float32", 1e-6), ("float16", 2e-4)):
        out = tmp_path / precision
        stored = store_teacher_outputs(student(root, kind), out, None, precision, tmp_path / "runs")  # type: ignore[arg-type]
        assert stored.manifest.columns == stored.manifest.vocab and stored.manifest.rows == 12
        read = trained(student(root, kind, out), tmp_path / "runs" / precision)
        for name, weight in asked.items():
            torch.testing.assert_close(read[name], weight, rtol=0, atol=rounding, msg=f"{precision}: {name}")
    assert not list((tmp_path / "runs").glob(".teach-*"))


@torch.no_grad()
def test_the_most_probable_ids_are_learnt_with_the_rest_as_one_outcome() -> None:
    models = (language_model().eval(), other())
    theirs, mine = (Prediction(m.run(torch.arange(8)[None], Context())[0], m.head.logits, 45) for m in models)
    logprobs, ids = theirs.soft_targets(2.0, 45, 4)
    assert ids is not None and logprobs.shape == (1, 8, 5) and logprobs.exp().sum(-1).sub(1).abs().max() < 1e-9
    found = mine.stored_target_loss(logprobs, ids, 2.0)
    p, q = ((one.logits(one.hidden) / 2).softmax(-1) for one in (theirs, mine))
    for at in range(8):
        best = p[0, at].argsort(descending=True)[:4]
        pairs = [(p[0, at, id], q[0, at, id]) for id in best] + [(1 - p[0, at, best].sum(), 1 - q[0, at, best].sum())]
        torch.testing.assert_close(found[0, at], 4 * sum(a * (a / b).log() for a, b in pairs))
    whole = mine.soft_target_loss(theirs, 2.0)
    errors = [(whole - mine.stored_target_loss(*theirs.soft_targets(2.0, 45, k), 2.0)).abs().max() for k in (4, 20, 44)]
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-9, "with all ids but one it is the whole"


def test_an_impossible_id_costs_no_nan() -> None:
    hidden = torch.randn(1, 3, 5, dtype=torch.float64)
    without = Prediction(hidden, lambda rows: rows.index_fill(-1, torch.tensor([2]), -torch.inf), 5)
    mine = Prediction(hidden, lambda rows: rows, 5)
    live = mine.soft_target_loss(without, 2.0)
    assert live.isfinite().all() and live.max() > 0
    for top_k in (None, 3):
        assert mine.stored_target_loss(*without.soft_targets(2.0, 5, top_k), 2.0).isfinite().all()


def other() -> Any:
    torch.manual_seed(5)
    model = language_model().eval()
    for weight in model.parameters():
        weight.add_(0.3 * torch.randn_like(weight))
    return model


def test_rows_that_come_again_are_stored_once(root: Path, tmp_path: Path) -> None:
    config = student(root, "lm")
    rows = replace(config.rows, recut=False)  # each epoch has the same rows, in another order
    long = replace(config, rows=rows, training=replace(config.training, steps=120))
    made = store_teacher_outputs(long, tmp_path / "out", 2, runs=tmp_path).manifest
    assert made.rows == 480 and made.stored < 240 and made.ids == 2
    masked = student(root, "encoder")
    masked = replace(masked, training=replace(masked.training, steps=60))
    made = store_teacher_outputs(masked, tmp_path / "masked", 2, runs=tmp_path).manifest
    assert made.stored == made.rows == 240, "each epoch hides other tokens"


def test_a_run_resumes_in_the_same_bits_and_finds_moved_outputs(root: Path, tmp_path: Path) -> None:
    store_teacher_outputs(student(root, "lm"), tmp_path / "out", 5, runs=tmp_path)
    config = replace(student(root, "lm", tmp_path / "out"), every=replace(student(root, "lm").every, save=1))
    whole = trained(config, tmp_path / "a" / "whole")
    folder = tmp_path / "a" / "cut"
    trained(replace(config, training=replace(config.training, steps=2)), folder)
    (tmp_path / "out").rename(tmp_path / "moved")
    saved = decode(RunConfig, load_config(read_config(folder / "config.json"), folder / "config.json"))
    more = replace(saved, training=replace(saved.training, steps=3))
    with pytest.raises(UsageError, match=r"its teacher is .*out, which is not at .*objective\.teacher=PATH"):
        trainer_for(more, folder)
    shutil.copytree(tmp_path / "moved", tmp_path / "b")
    moved = replace(more, objective=replace(more.objective, teacher=str(tmp_path / "b")))
    ended = trained(moved, folder)
    assert all(torch.equal(weight, ended[name]) for name, weight in whole.items())
    changed = replace(student(root, "lm"), seed=1)
    store_teacher_outputs(changed, tmp_path / "others", 5, runs=tmp_path)
    again = replace(more, objective=replace(more.objective, teacher=str(tmp_path / "others")))
    with pytest.raises(DamageError, match="others has other teacher outputs than those that the run began with"):
        trainer_for(again, folder)


def test_every_damaged_file_is_found(root: Path, tmp_path: Path) -> None:
    store_teacher_outputs(student(root, "lm"), tmp_path / "out", 5, runs=tmp_path)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert len(names) == 7
    for name in names:
        copy = tmp_path / f"copy-{name}"
        shutil.copytree(tmp_path / "out", copy)
        data = bytearray((copy / name).read_bytes())
        data[len(data) // 2] ^= 4
        (copy / name).write_bytes(data)
        with pytest.raises(DamageError, match=name.replace(".", r"\.")):
            TeacherOutputs.open(copy)
        (copy / name).write_bytes(data[:-1])
        with pytest.raises(DamageError):
            TeacherOutputs.open(copy)


def test_outputs_of_other_rows_are_refused_in_one_line(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    store_teacher_outputs(student(root, "lm"), out, 5, runs=tmp_path)
    config = student(root, "lm", out)
    wide = replace(config, model=PresetConfig(name="first", layers=1, width=16, heads=2))
    cases: list[tuple[RunConfig, str]] = [
        (replace(config, seed=4), "seed: want 0, as the outputs in"),
        (replace(config, rows=replace(config.rows, length=16)), "rows.length: want 32, as the outputs"),
        (replace(config, objective=replace(config.objective, temperature=3.0)), "objective.temperature: want 2.0"),
        (replace(config, training=replace(config.training, steps=4)), "training.steps: want at most 3, because"),
        (wide, "objective.cosine_weight: want 0, because"),
        (replace(config, model=replace(config.model, vocab=300)), "model.vocab: want a model of 257 ids"),
    ]
    other_ids = decode(RunConfig, encode(config) | {"tokenizer": {"kind": "pretrained", "path": str(root / "encoder")}})
    cases.append((other_ids, "tokenizer: want that of the teacher, as the outputs in"))
    for number, (case, words) in enumerate(cases):
        with pytest.raises(ConfigError) as caught:
            trainer_for(case, tmp_path / str(number))
        assert words in str(caught.value) and "\n" not in str(caught.value)
    text = write_text(tmp_path / "other.txt", lines=120, seed=9)
    with pytest.raises(DataError, match=r"stored for other rows: row 0 of the run reads otherwise now"):
        trained(replace(config, data=corpus_for(str(text))), tmp_path / "other")
    with pytest.raises(ConfigError, match=r"objective\.teacher: want a model, to store its outputs"):
        store_teacher_outputs(config, tmp_path / "more", 5, runs=tmp_path)
    with pytest.raises(ConfigError, match=r"objective\.kind: want distillation, which has a teacher, got 'next_token'"):
        store_teacher_outputs(base(root, "lm"), tmp_path / "more", 5, runs=tmp_path)
    with pytest.raises(UsageError, match="exists already, and teacher outputs are written once"):
        store_teacher_outputs(student(root, "lm"), out, 5, runs=tmp_path)


def test_a_teacher_that_fails_leaves_nothing(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise UsageError("enough")

    monkeypatch.setattr(DistillationConfig, "outputs_of", fail)
    with pytest.raises(UsageError, match="enough"):
        store_teacher_outputs(student(root, "lm"), tmp_path / "out", 5, runs=tmp_path / "runs")
    assert not [path for path in tmp_path.rglob("*") if "out" in path.name or "teach" in path.name]


def test_the_command_writes_what_a_run_reads(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        f"data={root / 'text.txt'}",
        f"init={root / 'encoder'}",
        "init_layers=1",
        "training.steps=2",
        "rows.length=32",
    ]
    words += ["training.batch=4", "hardware.device=cpu"]
    assert main(["data", "teach", *words, "--top-k", "3", "-o", "taught"]) == 0
    assert "taught: 8 rows, 8 of them stored" in capsys.readouterr().out
    assert main(["train", "distill", *words, "objective.teacher=taught"]) == 0
    vocab = load(root / "encoder").model.vocab
    assert main(["data", "teach", *words, "--whole", "-o", "all"]) == 0
    assert main(["data", "teach", *words, "--top-k", str(vocab - 1), "-o", "nearly"]) == 0  # the rest is the last one
    assert Path("nearly/logprobs.bin").read_bytes() == Path("all/logprobs.bin").read_bytes()
    capsys.readouterr()
    for more, refusal in (
        (["--top-k", "0", "-o", "x"], "--top-k: want at least 1, got 0"),
        (["--precision", "int8", "-o", "x"], "precision: want float16 or float32, got 'int8'"),
        (["-o", "taught"], "taught: exists already"),
        (["objective.tempereture=3", "-o", "x"], "objective.tempereture"),
    ):
        assert main(["data", "teach", *words, *more]) == 2
        error = capsys.readouterr().err
        assert refusal in error and error.count("\n") == 1, error
    assert main(["bench", "train", "distill", *words, "objective.teacher=taught", "--steps", "1"]) == 0

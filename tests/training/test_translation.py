"""Training on pairs: the loss falls, held-out pairs count once, a cut run ends in the same bits, samples translate."""

import json
import math
from pathlib import Path

import pytest
import torch
from reliability.harness import differences, trainer_for
from rich.console import Console
from tasks.pair_runs import CONTEXT, TOKENIZER, tiny_pairs, write_pairs

from heddle.checkpoints import RunSource
from heddle.cli.main import main
from heddle.cli.reporter import ConsoleReporter
from heddle.core import ConfigError, encode, override, replace
from heddle.core.system import to_yaml
from heddle.data.shards import prepare
from heddle.data.sources import CorpusConfig, PreparedSource
from heddle.models.networks import EncoderDecoder
from heddle.models.presets import PresetConfig
from heddle.nn.base import Context
from heddle.objectives import NextTokenConfig
from heddle.tasks.generation import sample_writer
from heddle.text.tokenizers import BpeTokenizer
from heddle.training import RunEnvironment, set_up
from heddle.training.loop import Callback, Report, Trainer


class Stop(Callback):
    """Ends a run after a step, with a checkpoint."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, trainer: Trainer, report: Report) -> None:
        if trainer.step == self.step:
            trainer.stop = "cut"


def held_out_lines(run: Path) -> list[float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["validation_loss"] for line in lines if "validation_loss" in line]


def test_the_loss_falls_and_the_run_loads_as_an_encoder_decoder(tmp_path: Path) -> None:
    config = tiny_pairs(tmp_path, training__steps=40, every__validate=20)
    trainer_for(config, tmp_path / "run").fit()
    first, last = held_out_lines(tmp_path / "run")
    assert last < first < math.log(TOKENIZER.vocab)
    model = RunSource(tmp_path / "run").model()
    assert isinstance(model, EncoderDecoder) and model.context == CONTEXT


def test_the_held_out_loss_is_the_mean_over_every_held_out_target(tmp_path: Path) -> None:
    trainer = trainer_for(tiny_pairs(tmp_path, hardware__dtype="float32"), tmp_path / "run")
    trainer.fit()
    model = RunSource(tmp_path / "run").model()  # the average, which is what is measured
    assert isinstance(model, EncoderDecoder)
    total = count = 0.0
    lines = zip(*((tmp_path / f"valid.{side}").read_text().splitlines() for side in ("en", "de")), strict=True)
    for source, target in dict.fromkeys(lines):
        ids = [TOKENIZER.end, *TOKENIZER.encode(target), TOKENIZER.end]
        memory = model.encode(torch.tensor([[*TOKENIZER.encode(source), TOKENIZER.end]]))
        hidden = model(torch.tensor([ids[:-1]]), Context(memory=memory))
        total += float(model.head.nll(hidden, torch.tensor([ids[1:]])).detach().sum())
        count += len(ids) - 1
    assert held_out_lines(tmp_path / "run")[-1] == pytest.approx(total / count, rel=1e-4)


@pytest.mark.parametrize("step", [5, 7])
def test_a_cut_run_on_pairs_ends_in_the_same_bits(tmp_path: Path, step: int) -> None:
    config = tiny_pairs(tmp_path)
    trainer_for(config, tmp_path / "whole" / "run").fit()
    cut = trainer_for(config, tmp_path / "cut" / "run")
    cut.callbacks.insert(-1, Stop(step))  # before the save
    cut.fit()
    again = trainer_for(config, tmp_path / "cut" / "run")
    assert again.step == step
    again.fit()
    assert not differences(tmp_path / "cut" / "run", tmp_path / "whole" / "run")


def test_pairs_without_room_are_told(tmp_path: Path) -> None:
    console = Console(record=True, file=(tmp_path / "said").open("w"), width=200)
    with console.file:
        set_up(
            tiny_pairs(tmp_path, rows__length=16), RunEnvironment(tmp_path / "run", reporter=ConsoleReporter(console))
        )
    assert "target too long" in console.export_text()


def test_the_cost_of_a_step_is_told_for_rows_of_the_usual_length(tmp_path: Path) -> None:
    plan = trainer_for(tiny_pairs(tmp_path), tmp_path / "run").loader.plan
    lengths = [int(plan.row(i).weights.sum()) for i in range(plan.rows_per_epoch)]
    assert plan.mean_length == round(sum(lengths) / sum(length > 0 for length in lengths)) < plan.length


def test_one_vocabulary_is_learnt_from_both_sides(tmp_path: Path) -> None:
    config = replace(tiny_pairs(tmp_path), tokenizer=BpeTokenizer(lowercase=True))
    trainer_for(replace(config, model=replace(config.model, vocab=400)), tmp_path / "run")
    tokens = set(json.loads((tmp_path / "run" / "tokenizer.json").read_text())["model"]["vocab"])
    assert {"Ġdog", "Ġhund"} <= tokens


def test_rows_model_and_objective_must_fit(tmp_path: Path) -> None:
    config = tiny_pairs(tmp_path)
    model = PresetConfig(name="first", layers=1, width=16, heads=2)
    with pytest.raises(ConfigError, match=r"model\.kind: want encoder_decoder, because rows are pairs"):
        trainer_for(replace(config, model=model), tmp_path / "a")
    with pytest.raises(ConfigError, match=r"rows\.kind: want pairs"):
        trainer_for(override(config, "rows", {"kind": "packed"}), tmp_path / "b")
    with pytest.raises(ConfigError, match="objective: want a language model"):
        trainer_for(replace(config, objective=NextTokenConfig()), tmp_path / "c").fit()
    with pytest.raises(ConfigError, match=r"model\.vocab: want at least the tokenizer's 257"):
        trainer_for(replace(config, model=replace(config.model, vocab=9)), tmp_path / "d")


def test_samples_are_translations_of_held_out_sources(tmp_path: Path) -> None:
    config = tiny_pairs(tmp_path)
    trainer = trainer_for(config, tmp_path / "run")
    text = sample_writer(config.data, config.seed, tmp_path / "run")(trainer.model)
    sources = (tmp_path / "valid.en").read_text().splitlines()
    assert [line[8:] for line in text.splitlines() if line.startswith("source")] == sources[:3]
    assert sum(line.startswith("model") for line in text.splitlines()) == 3


def test_prepared_pairs_are_a_source_with_samples(tmp_path: Path) -> None:
    config = tiny_pairs(tmp_path)
    prepare(config.data, TOKENIZER, tmp_path / "prepared")
    ready = replace(config, data=CorpusConfig(sources=(PreparedSource(path=str(tmp_path / "prepared")),)))
    trainer = trainer_for(ready, tmp_path / "run")
    assert (tmp_path / "valid.de").read_text().splitlines()[0] in sample_writer(
        ready.data, ready.seed, tmp_path / "run"
    )(trainer.model)


def test_the_command_trains_on_pairs_and_a_batch_is_one_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pairs.yaml").write_text(to_yaml(encode(tiny_pairs(tmp_path))))
    assert main(["train", "pairs.yaml", "training.batch=4", "training.steps=2", "every.sample=2"]) == 0
    assert "heddle translate" in capsys.readouterr().out
    assert "source" in Path("runs/pairs/samples.txt").read_text()
    write_pairs(tmp_path, "test", 3, seed=2)
    assert main(["translate", "test.en", "--max-tokens", "8", "--device", "cpu"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3

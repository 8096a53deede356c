"""Set-up: fine-tuning, mixing, streams, resuming with changes, and what must not happen on the way."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from reliability.harness import tiny, trainer_for, write_text
from rich.console import Console

from heddle.checkpoints import RunSource
from heddle.checkpoints.store import with_checksum
from heddle.cli.reporter import ConsoleReporter
from heddle.core import ConfigError, DamageError, UsageError, encode, override, replace
from heddle.data.rows import PairRows, StreamRows
from heddle.data.sources import CorpusConfig, corpus_for
from heddle.models.networks import LanguageModelConfig
from heddle.models.presets import PresetConfig
from heddle.nn.positions import AlibiPositionConfig
from heddle.training import MixConfig, RunConfig, RunEnvironment, assemble, set_up
from heddle.training.loop import Trainer
from heddle.training.optimizers import AdamWConfig, MuonConfig


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text.txt")


def short(text: Path, **changes: Any) -> RunConfig:
    return tiny(text, **({"training__steps": 3, "every__validate": 100} | changes))


def streaming(config: RunConfig, lanes: int = 4) -> RunConfig:
    model = PresetConfig(name="lstm_lm", width=16, layers=1)
    return replace(config, model=model, rows=StreamRows(length=8, lanes=lanes))


def said(config: RunConfig, folder: Path) -> tuple[Trainer, str]:
    """Set up, and return what was said."""
    console = Console(record=True, quiet=False, file=open("/dev/null", "w"), width=200)  # noqa: SIM115
    with console.file:
        return set_up(config, RunEnvironment(folder, reporter=ConsoleReporter(console))), console.export_text()


def test_only_what_is_prepared_is_announced(text: Path, tmp_path: Path) -> None:
    config = short(text)
    first, again = (said(config, tmp_path / "runs" / name)[1] for name in ("a", "b"))
    assert "text becomes tokens" in first and "training the tokenizer" not in first, "bytes are not learnt"
    assert "text becomes tokens" not in again, "the shards are there"
    learnt = said(override(config, "tokenizer", {"kind": "bpe", "vocab": 300}), tmp_path / "runs" / "c")[1]
    assert "training the tokenizer" in learnt and "text becomes tokens" in learnt


# --- the folder -------------------------------------------------------------------------------------------------------


def test_a_run_folder_explains_itself(text: Path, tmp_path: Path) -> None:
    trainer_for(short(text), tmp_path / "run").fit()
    held = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.json", "environment.json", "metrics.jsonl", "tokenizer.json", "checkpoints"} <= held
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["model"]["kind"] == "language_model", "a preset is written out in full"
    assert config["model"]["vocab"] == 257 and config["model"]["context"] == 32
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("step-00000003")
    assert with_checksum(json.loads((checkpoint / "config.json").read_text())) == config
    env = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert {"python", "torch", "device", "dtype", "threads"} <= set(env)


def test_a_resume_that_cannot_go_on_leaves_the_run_as_it_was(text: Path, tmp_path: Path) -> None:
    config = short(text)
    trainer_for(config, tmp_path / "run").fit()
    before = (tmp_path / "run" / "config.json").read_bytes()
    for wrong, fault in (
        (override(config, "model.width", 64), ConfigError),
        (override(config, "training.optimizer", encode(MuonConfig())), ConfigError),
    ):
        with pytest.raises(fault):
            trainer_for(wrong, tmp_path / "run")
        assert (tmp_path / "run" / "config.json").read_bytes() == before
    assert trainer_for(config, tmp_path / "run").step == 3


def test_damaged_checkpoints_are_named_and_if_none_is_left_nothing_begins_anew(text: Path, tmp_path: Path) -> None:
    config = short(text, every__save=1, keep__last=2)
    trainer_for(config, tmp_path / "run").fit()
    folders = sorted((tmp_path / "run" / "checkpoints").iterdir())
    (folders[-1] / "model.safetensors").write_bytes(b"rubbish")
    trainer, words = said(config, tmp_path / "run")
    assert trainer.step == 2 and "skipped step-00000003" in words and "resumed at step 2" in words
    for folder in folders[:-1]:
        (folder / "state.json").write_bytes(b"{}")
    with pytest.raises(DamageError, match="no good checkpoint left, 2 damaged: nothing to resume from"):
        trainer_for(config, tmp_path / "run")


def test_changed_data_is_told_on_resume(text: Path, tmp_path: Path) -> None:
    trainer_for(short(text), tmp_path / "run").fit()
    assert "changed" not in said(short(text), tmp_path / "run")[1]
    write_text(text, lines=80, seed=1)
    assert "the data files changed since the checkpoint" in said(short(text), tmp_path / "run")[1]


@pytest.fixture
def threads() -> Iterator[int]:
    """Return the number of threads, and set it again."""
    had = torch.get_num_threads()
    yield had
    torch.set_num_threads(had)


def test_a_changed_thread_count_is_told_once_on_resume(text: Path, tmp_path: Path, threads: int) -> None:
    trainer_for(short(text), tmp_path / "run").fit()
    assert "changed" not in said(short(text), tmp_path / "run")[1]
    torch.set_num_threads(threads + 1)
    words = said(short(text), tmp_path / "run")[1]
    wanted = f"changed: threads {threads} -> {threads + 1}, since the run was last trained: results may differ"
    assert words.count("changed") == 1 and wanted in words
    assert "changed" not in said(short(text), tmp_path / "run")[1], "the run now has this many"
    assert "changed" not in said(short(text), tmp_path / "new")[1], "a new run has nothing to be compared with"


def test_other_processes_are_told_unless_sums_are_fixed(text: Path, tmp_path: Path) -> None:
    for reduction, count in (("fast", 1), ("deterministic", 0)):
        config = short(text, training__reduction=reduction)
        trainer_for(config, tmp_path / reduction).fit()
        path = tmp_path / reduction / "environment.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"processes": 2, "python": "2.7"}))
        words = said(config, tmp_path / reduction)[1]
        assert words.count("changed: processes 2 -> 1,") == words.count("changed") == count


@pytest.mark.parametrize("held", [None, "{", "[]", "{}"])
def test_an_environment_that_cannot_be_read_is_written_anew(text: Path, tmp_path: Path, held: str | None) -> None:
    trainer_for(short(text), tmp_path / "run").fit()
    path = tmp_path / "run" / "environment.json"
    path.unlink() if held is None else path.write_text(held)
    assert "changed" not in said(short(text), tmp_path / "run")[1]
    assert json.loads(path.read_text())["threads"] == torch.get_num_threads()


# --- fine-tuning ------------------------------------------------------------------------------------------------------


def test_a_run_starts_from_the_weights_tokenizer_and_model_of_another(text: Path, tmp_path: Path) -> None:
    parent = short(text, training__average=None, tokenizer={"kind": "character"})
    trainer_for(parent, tmp_path / "parent").fit()
    wanted = RunSource(tmp_path / "parent").model()
    child = short(write_text(tmp_path / "other.txt", seed=5), init=str(tmp_path / "parent"), model__width=64)
    trainer = trainer_for(child, tmp_path / "child")
    assert trainer.step == 0
    assert all(torch.equal(wanted.weights()[n], w) for n, w in trainer.model.weights().items())
    assert encode(trainer.model.config) == encode(wanted.config)
    assert trainer.texts["tokenizer.json"] == (tmp_path / "parent" / "tokenizer.json").read_text()
    trainer.fit()
    assert RunSource(tmp_path / "child").checkpoint.step == 3


def test_a_fine_tuned_run_goes_on_after_its_parent_is_gone(text: Path, tmp_path: Path) -> None:
    trainer_for(short(text), tmp_path / "parent").fit()
    child = short(text, init=str(tmp_path / "parent"))
    trainer_for(child, tmp_path / "child").fit()
    (tmp_path / "parent").rename(tmp_path / "elsewhere")
    resolved = replace(child, model=RunSource(tmp_path / "child").config())
    trainer = trainer_for(override(resolved, "training.steps", 5), tmp_path / "child")
    assert trainer.step == 3
    trainer.fit()
    with pytest.raises(UsageError, match="no run is called"):
        trainer_for(child, tmp_path / "another")


# --- mixing -----------------------------------------------------------------------------------------------------------


def test_a_further_corpus_is_mixed_in_by_weight(text: Path, tmp_path: Path) -> None:
    (tmp_path / "digits.txt").write_text("0123456789 " * 300)
    share = MixConfig(data=corpus_for(str(tmp_path / "digits.txt")), weight=0.5)
    config = replace(short(text, training__batch=100, training__micro_batch=None), mix=(share,))
    trainer = trainer_for(config, tmp_path / "run")
    digits, rows = 0, 0
    for batch, _ in zip(trainer.loader, range(10), strict=False):
        digits += int(((batch.inputs >= ord("0")) & (batch.inputs <= ord("9"))).any(dim=1).sum())
        rows += len(batch)
    assert rows == 1000 and digits == 333, "a third of every thousand rows"
    trainer = trainer_for(config, tmp_path / "run-2")
    trainer.fit()
    assert trainer.step == 3 and len(trainer.data) == 2


def test_streams_cannot_be_mixed(text: Path, tmp_path: Path) -> None:
    config = replace(streaming(short(text)), mix=(MixConfig(data=corpus_for(str(text))),))
    with pytest.raises(ConfigError, match=r"rows\.kind: want packed, to mix several corpora"):
        trainer_for(config, tmp_path / "run")


# --- streams ----------------------------------------------------------------------------------------------------------


def test_an_lstm_carries_its_state_from_step_to_step(text: Path, tmp_path: Path) -> None:
    trainer = trainer_for(streaming(short(text)), tmp_path / "run")
    trainer.fit()
    carried = trainer.take_step.carried
    assert len(carried) == 2 and all(state is not None and len(state.lengths) == 2 for state in carried)
    vectors = [v for state in carried if state for v in state.tensors().values() if v.dim() > 1]
    assert len(vectors) == 4 and all(vector.abs().sum() > 0 for vector in vectors)
    assert set(trainer.snapshot().tensors) == {"model", "optimizer", "guard", "average", "carried"}


def test_carried_state_enters_the_loss_and_no_gradient_goes_back_through_it(text: Path, tmp_path: Path) -> None:
    """The loss of a second chunk equals that of the model run over both chunks at once."""
    config = override(streaming(short(text, hardware__dtype="float32")), "training.micro_batch", None)
    trainer = trainer_for(config, tmp_path / "run")
    trainer.model.eval()  # no dropout
    stepping, batches = trainer.take_step, iter(trainer.loader)
    first, second = next(batches), next(batches)
    stepping.optimizers.set_learning_rate(0.0)
    stepping(first, 0, first.tokens)
    report = stepping(second, 1, second.tokens)
    both = torch.cat((first.inputs, second.inputs), dim=1)
    model: Any = trainer.model
    nll = model.head.nll(model(both), torch.cat((first.targets, second.targets), dim=1))[:, 8:]
    assert float(report.loss) == pytest.approx(nll.mean().item(), rel=1e-5)
    assert not any(t.requires_grad for state in stepping.carried if state for t in state.tensors().values())


def test_streams_resumed_with_other_lanes_are_refused_by_name(text: Path, tmp_path: Path) -> None:
    config = streaming(short(text))
    trainer_for(config, tmp_path / "run").fit()
    for batch in (8, 2):
        wrong = override(override(config, "training.batch", batch), "rows.lanes", batch)
        with pytest.raises(ConfigError, match=rf"training\.batch: want 4 when resuming.*, got {batch}"):
            trainer_for(wrong, tmp_path / "run")


@pytest.mark.parametrize("micro", [1, 2, 4])
def test_streams_go_on_in_other_micro_batches_with_each_rows_own_state(text: Path, tmp_path: Path, micro: int) -> None:
    config = streaming(short(text))
    trainer = trainer_for(config, tmp_path / "run")
    trainer.fit()
    resumed = trainer_for(override(config, "training.micro_batch", micro), tmp_path / "run")
    carried = [[state.tensors() for state in t.take_step.carried if state] for t in (trainer, resumed)]
    assert [len(states) for states in carried] == [2, 4 // micro]
    for name in carried[0][0]:
        before, after = (torch.cat([state[name] for state in states]) for states in carried)
        assert torch.equal(before, after)


def test_attention_refuses_streams(text: Path, tmp_path: Path) -> None:
    config = replace(short(text), rows=StreamRows(length=8, lanes=4))
    with pytest.raises(ConfigError, match=r"rows\.kind: want packed, because attention carries no state"):
        trainer_for(config, tmp_path / "run")


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"training__micro_batch": 3}, r"training\.micro_batch: want a divisor of training\.batch, 4"),
        ({"model__vocab": 100}, r"model\.vocab: want at least the tokenizer's 257, got 100"),
        ({"hardware__device": "tpu"}, "device: want one of auto, cpu"),
        ({"hardware__dtype": "int8"}, "dtype: want auto or one of"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, Any], match: str, text: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=match):
        trainer_for(short(text, **changes), tmp_path / "run")


def test_rows_of_pairs_are_refused_for_a_language_model(text: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.kind: want encoder_decoder, because rows are pairs"):
        trainer_for(replace(short(text), rows=PairRows()), tmp_path / "run")


EARLY: dict[str, tuple[dict[str, Any], str, bool]] = {  # and whether it shows before a tokenizer is learnt
    "streams": ({"rows": {"kind": "streams", "length": 8, "lanes": 4}}, r"rows\.kind: want packed, because", True),
    "pairs": ({"rows": {"kind": "pairs"}}, r"model\.kind: want encoder_decoder", True),
    "lanes": (
        {"model": {"kind": "preset", "name": "lstm_lm"}, "rows": {"kind": "streams"}},
        r"rows\.lanes: want",
        True,
    ),
    "micro": ({"training__micro_batch": 3}, r"training\.micro_batch: want a divisor", True),
    "objective": ({"objective": {"kind": "sequence"}}, "objective: want an encoder-decoder", False),
    "frozen": ({"frozen": ["nothing.*"]}, r"frozen\.0: want a pattern", False),
    "reach": ({"model": {"kind": "preset", "name": "gpt2", "context": 16}}, "length 32 exceeds", False),
}


@pytest.mark.parametrize("name", EARLY)
def test_wrong_settings_are_told_before_the_text_is_read(
    name: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, match, at_once = EARLY[name]
    config = short(text, **changes)
    monkeypatch.setattr(assemble, "prepare_data", lambda *_: pytest.fail("the text was made tokens"))
    if at_once:
        monkeypatch.setattr(assemble, "find_tokenizer", lambda *_: pytest.fail("the text was read"))
    with pytest.raises((ConfigError, UsageError), match=match):
        trainer_for(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        ("training.steps", 0, "training.steps: want at least 1"),
        ("training.micro_batch", 0, "training.micro_batch: want at least 1"),
        ("training.clip", 0.0, "training.clip: want above 0"),
        ("training.average", {"kind": "moving", "decay": 1.0}, "training.average.decay: want between 0 and 1"),
        ("training.average", {"kind": "plain", "begin": -1}, "training.average.begin: want at least 0"),
        ("training.average", {"kind": "triggered", "patience": 0}, "training.average.patience: want at least 1"),
        ("keep.last", 0, "keep.last: want at least 1"),
        ("keep.best", -1, "keep.best: want at least 0"),
        ("mix", [{"data": {}, "weight": 0}], "mix.0.weight: want above 0"),
        ("mix", [{"data": {}, "weight": 1e-9}], "mix.0.weight: want at least 1/1000 of all weights"),
        ("mix", [{"data": {}, "weight": 1e9}], "data, which weighs 1: want at least 1/1000 of all weights"),
        ("every.save", 0, "every.save: want at least 1"),
        ("validation_rows", 0, "validation_rows: want at least 1"),
        ("name", "a/b", "name: want a plain folder name"),
        ("name", "..", "name: want a plain folder name"),
    ],
)
def test_nonsense_in_a_run_is_refused_by_its_path(path: str, value: Any, match: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override(RunConfig(data=CorpusConfig()), path, value)
    assert str(caught.value).startswith(match)


def test_an_edited_preset_still_follows_the_text_and_the_rows(text: Path, tmp_path: Path) -> None:
    config = short(text)
    model = override(config, "model.position", "alibi").model
    made = trainer_for(replace(config, model=model), tmp_path / "run").model.config
    plain = trainer_for(config, tmp_path / "plain").model.config
    assert isinstance(made, LanguageModelConfig) and made == replace(plain, position=AlibiPositionConfig())


def test_a_full_model_config_is_taken_as_it_stands(text: Path, tmp_path: Path) -> None:
    full = PresetConfig(name="gpt2", width=16, layers=1, heads=2, vocab=300, context=64).expand()
    trainer = trainer_for(replace(short(text, training__optimizer=encode(AdamWConfig())), model=full), tmp_path / "run")
    assert isinstance(trainer.model.config, LanguageModelConfig) and trainer.model.config == full


def test_a_run_may_multiply_in_eight_bits_and_then_differs_but_little(text: Path, tmp_path: Path) -> None:
    model = PresetConfig(name="llama", width=32, layers=1, heads=2)
    losses = []
    for matmul in ("plain", "float8"):
        config = replace(short(text, hardware__matmul=matmul), model=model)
        trainer = trainer_for(config, tmp_path / matmul)
        batch = next(iter(trainer.loader))
        losses.append(trainer.take_step(batch, 0, batch.tokens).loss.item())
    assert losses[0] != losses[1] and abs(losses[0] - losses[1]) < 0.02 * losses[0]

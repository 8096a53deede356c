"""heddle help: every key has a sentence, is reached, and is found by the field's words; the reference is up to date."""

import json
from pathlib import Path

import pytest

from heddle.cli.catalog import FILE, Catalog, build_catalog, catalog, to_text
from heddle.cli.keys import explain, find_matches, search
from heddle.cli.main import main
from heddle.cli.reference import reference
from heddle.comparison.scaling import ScaleConfig
from heddle.comparison.suites import SuiteConfig
from heddle.core import Config, kinds
from heddle.core.describe import field_types, reachable, sentences
from heddle.training import RunConfig

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
REGENERATE = "run `make reference`"

# What people ask for in the words of their field, and the key that they should find.
ASKED = {
    "early stopping": "stop.patience",
    "label smoothing": "objective.smoothing",
    "EMA": "training.average",
    "exponential moving average": "training.average=moving",
    "gradient clipping": "training.clip",
    "warm-up": "training.schedule.warmup",
    "warmup": "training.schedule.warmup",
    "keeping of checkpoints": "keep.last",
    "keep checkpoints": "keep.last",
    "TensorBoard": "tensorboard",
    "seed": "seed",
    "dtype": "hardware.dtype",
    "mixed precision": "hardware.dtype",
    "threads": "hardware.threads",
    "gradient accumulation": "training.micro_batch",
    "batch size": "training.batch",
    "weight decay": "training.optimizer.weight_decay",
    "time limit": "stop.minutes",
}


def test_every_key_has_a_sentence() -> None:
    every = (*reachable(RunConfig), *reachable(SuiteConfig), *reachable(ScaleConfig))
    own = [cls for cls in every if cls.__module__.startswith("heddle.")]
    lacking = [f"{cls.__name__}.{name}" for cls in own for name in field_types(cls) if name not in sentences(cls)]
    assert not lacking, "write `field: sentence` into the docstring of the class"
    wrong = [f"{cls.__name__}: {text}" for cls in own for text in sentences(cls).values() if not text.endswith(".")]
    assert not wrong, "a sentence ends with a full stop"


def test_catalog_and_reference_are_up_to_date() -> None:
    built = to_text(build_catalog())
    assert json.loads(built) == json.loads(FILE.read_text(encoding="utf-8")), REGENERATE
    assert built == FILE.read_text(encoding="utf-8"), REGENERATE
    assert reference(catalog()) == PAGE.read_text(encoding="utf-8"), REGENERATE


def test_help_reaches_every_key() -> None:
    known = catalog()
    for table in known.tables.values():
        for key in table.keys.values():
            path = [*known.paths[table.name], *([] if table.kind is None else [table.kind]), key.name]
            found = find_matches(known, ".".join(path))
            assert key in [place.key for place in found], path


def test_help_shows_type_default_sentence_and_kinds() -> None:
    (line, about, *_) = explain("stop.patience")
    assert line == "stop.patience  (integer or null) = null" and "Early stopping" in about
    shown = "\n".join(explain("training"))
    for words in ("steps  (integer) = 1000", "kinds: adamw, adafactor, sgd, muon", "spike  (number) = 20.0"):
        assert words in shown
    shown = "\n".join(explain("training.optimizer"))
    assert "muon" in shown and "orthogonalized momentum" in shown
    assert "momentum  (number) = 0.95" in "\n".join(explain("training.optimizer.muon"))


def test_keys_of_compare_and_scale_are_found_with_the_command_and_without() -> None:
    for words, line in (
        ("budgets", "heddle scale budgets  (list of number) = [1e+11, 3e+11, 1e+12, 3e+12]"),
        ("scale.budgets", "heddle scale budgets  (list of number) = [1e+11, 3e+11, 1e+12, 3e+12]"),
        ("larger.tokens", "heddle scale larger.tokens  (number or null) = null"),
        ("budget.flops", "heddle compare budget.flops  (number or null) = null"),
        ("arms", "heddle compare arms  (list of tokens, rate, time) = [tokens]"),
    ):
        assert line in explain(words), words
    assert {"heddle compare seeds  (integer) = 3", "heddle scale seeds  (integer) = 2"} <= set(explain("seeds"))
    assert "  rule  (power, width, fixed) = power" in explain("scale")


def test_an_overview_names_every_topic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in field_types(RunConfig))


@pytest.mark.parametrize("words", ASKED)
def test_usual_words_find_their_key_in_one_command(words: str) -> None:
    shown = list(explain(words))
    assert any(line.split()[0] == ASKED[words] for line in shown if line.strip()), "\n".join(shown)


def test_options_of_commands_are_found_too() -> None:
    assert any(entry.name == "heddle generate --beams" for entry in search(catalog(), "beam search"))


def test_an_unknown_word_is_one_line_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "patiense"]) == 2
    assert "'patience'" in capsys.readouterr().err
    assert main(["help", "xyzzy", "plugh"]) == 2
    assert "heddle help" in capsys.readouterr().err


def test_paths_lead_to_the_tables() -> None:
    """What the catalog knows of the tree is what the classes say."""
    known: Catalog = catalog()
    assert known.paths["MuonConfig"] == ("training", "optimizer")
    assert known.paths["ParallelSource"] == ("data", "sources", "N")
    assert set(known.paths) == set(known.tables)
    optimizers = next(cls for cls in reachable(RunConfig) if cls.__name__ == "MuonConfig").__mro__[1]
    assert issubclass(optimizers, Config) and {"adamw", "muon", "sgd"} <= kinds(optimizers).keys()

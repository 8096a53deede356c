"""Run configs of earlier formats are migrated to the current one."""

import pytest

from heddle.checkpoints.store import CONFIG_FORMAT, migrate_config
from heddle.core import ConfigError, UsageError, decode, encode, override
from heddle.training import RunConfig, TrainingConfig
from heddle.training.optimizers import MovingAverageConfig, PlainAverageConfig


def test_the_decay_of_format_1_becomes_a_moving_average() -> None:
    old = encode(RunConfig()) | {"format": 1}
    old["training"] = old["training"] | {"average": 0.99}
    found = decode(RunConfig, migrate_config(old, "config.json"))
    assert found.training.average == MovingAverageConfig(decay=0.99)


def test_a_run_of_format_1_without_an_average_still_has_none() -> None:
    assert decode(RunConfig, migrate_config(encode(RunConfig()) | {"format": 1}, "config.json")) == RunConfig()


def test_a_config_of_this_format_is_left_as_it_is() -> None:
    now = encode(RunConfig(training=TrainingConfig(average=PlainAverageConfig(begin=7))))
    assert migrate_config(now, "config.json") == now


def test_dropout_of_format_1_becomes_a_part() -> None:
    branch = {"part": {"kind": "pass"}, "dropout": 0.3}
    found = migrate_config(
        {"model": {"embedding": {"kind": "full", "dropout": 0.1}, "plan": {"branches": [branch]}}}, "c"
    )
    assert found["model"]["embedding"]["dropout"] == {"kind": "element", "rate": 0.1}
    assert found["model"]["plan"]["branches"][0]["dropout"] == {"kind": "element", "rate": 0.3}


def test_a_config_of_a_later_format_is_refused() -> None:
    with pytest.raises(UsageError, match="newer heddle, in format 99"):
        migrate_config({"format": 99}, "config.json")


@pytest.mark.parametrize("number", [0, -(10**30), True, False])
def test_a_config_of_no_format_that_ever_was_is_refused(number: int) -> None:
    with pytest.raises(UsageError, match=r"config\.json: want a format of 1 to 3, found"):
        migrate_config({"format": number}, "config.json")


@pytest.mark.parametrize("number", [1, 2, 99])
def test_no_override_changes_the_format(number: int) -> None:
    with pytest.raises(ConfigError, match=f"format: want {CONFIG_FORMAT}, in which this version writes configs, got"):
        override(RunConfig(), "format", number)

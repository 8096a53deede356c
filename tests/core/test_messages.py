"""What messages have in common: hints at the nearest name, one line of an error of others, and ranges of fields."""

import pytest

from heddle.core import ConfigError, check_at_least, check_share, did_you_mean, first_line, hint


def test_a_hint_names_the_nearest_or_else_helps() -> None:
    assert hint("grru", ["gru", "lstm"]) == "; did you mean 'gru'?"
    assert hint("?", ["gru", "lstm"]) == ""
    assert hint("?", ["gru", "lstm"], "; known: gru, lstm") == "; known: gru, lstm"
    assert did_you_mean("bert", "bart") == "; did you mean 'bert' or 'bart'?"
    assert did_you_mean() == ""


@pytest.mark.parametrize(
    "said, line", [("one\ntwo", "one"), ("\n one", "one"), ("", "ValueError"), ("x" * 999, "x" * 160)]
)
def test_an_error_of_others_is_told_in_one_short_line(said: str, line: str) -> None:
    assert first_line(ValueError(said)) == line


def test_fields_stay_in_their_range() -> None:
    check_at_least(1, least=1, width=None)
    check_share(dropout=0.0, jitter=0.99)
    for value in (0.5, float("nan")):
        with pytest.raises(ConfigError, match="width: want at least 1, got"):
            check_at_least(1, heads=2, width=value)
    for value in (-0.1, 1.0, float("nan")):
        with pytest.raises(ConfigError, match="jitter: want at least 0 and below 1, got"):
            check_share(dropout=0.1, jitter=value)

"""YAML and JSON are read without surprises."""

from pathlib import Path

import pytest

from heddle.core import ConfigError, HeddleError, parse_json, parse_yaml, read_table, to_yaml


def test_yaml_numbers_and_words_mean_what_they_say() -> None:
    text = "a: 1e-3\nb: no\nc: true\nd: 12:30\ne: 0x10\nf: 007\n"
    assert parse_yaml(text) == {"a": 1e-3, "b": "no", "c": True, "d": "12:30", "e": "0x10", "f": 7}


def test_yaml_written_is_read_back() -> None:
    data = {"a": [1, 2.5, 1e-8, "yes", "1e5", None, True], "b": {"c": "null", "d": "x: y"}}
    assert parse_yaml(to_yaml(data)) == data


@pytest.mark.parametrize(
    "text", ["a: &x [1]\nb: *x", "a: 1\na: 2", "a: [", "!!python/object:os.system {}", "[" * 100_000]
)
def test_hostile_yaml_is_one_error(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_yaml(text)


@pytest.mark.parametrize("text", ["NaN", "[1", "[" * 100_000, "1" * 5000, '{"a": Infinity}'])
def test_hostile_json_is_one_error(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_json(text)


def test_a_file_that_must_hold_a_table_does(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}')
    assert read_table(path) == {"a": 1}
    for text, said in (("[1]", r"want a table, found \[1\]"), ("{", "valid JSON"), ("{}" + " " * 99, "larger than 64")):
        path.write_text(text)
        with pytest.raises(HeddleError, match=said) as fault:
            read_table(path, limit=64)
        assert str(path) in str(fault.value)

"""YAML and JSON are read without surprises; files are written whole or not at all."""

from pathlib import Path

import pytest

from heddle.core import ConfigError, HeddleError, UsageError
from heddle.core.system import check_writable, parse_json, parse_yaml, read_table, replacing, to_yaml, write_json


def test_yaml_numbers_and_words_mean_what_they_say() -> None:
    text = "a: 1e-3\nb: no\nc: true\nd: 12:30\ne: 0x10\nf: 007\n"
    assert parse_yaml(text) == {"a": 1e-3, "b": "no", "c": True, "d": "12:30", "e": "0x10", "f": 7}
    assert parse_yaml("[0100, 08, -010, +0, 0]") == [100, 8, -10, 0, 0]
    assert parse_yaml(to_yaml(["0100", 100])) == ["0100", 100]


def test_yaml_written_is_read_back() -> None:
    data = {"a": [1, 2.5, 1e-8, "yes", "1e5", None, True], "b": {"c": "null", "d": "x: y"}}
    assert parse_yaml(to_yaml(data)) == data


@pytest.mark.parametrize(
    "text", ["a: &x [1]\nb: *x", "a: 1\na: 2", "a: [", "!!python/object:os.system {}", "!!int 0x1", "[" * 100_000]
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
    for text, said in (("[1]", r"object, found \[1\]"), ("{", "valid JSON"), ("{}" + " " * 99, "larger than 64")):
        path.write_text(text)
        with pytest.raises(HeddleError, match=said) as fault:
            read_table(path, limit=64)
        assert str(path) in str(fault.value)


# --- writing ----------------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_when_all_of_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250)  # as long as a name may be: what stands beside it has a shorter one
    path.write_text("old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_a_fault_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path, folder = tmp_path / "a.json", tmp_path / "folder"
    folder.mkdir()
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": [1.0, float("nan")]})
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    with pytest.raises(IsADirectoryError) as fault:
        write_json(folder, {})
    assert fault.value.filename == str(folder)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "folder"]
    assert parse_json(path.read_text()) == {"a": 1}


def test_a_place_to_write_nothing_at_is_told_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_writable(tmp_path / "new" / "deep")
    with pytest.raises(UsageError, match=r"cannot be created: .*file is not a writable folder"):
        check_writable(tmp_path / "file" / "x")
    with pytest.raises(UsageError, match="name too long"):
        check_writable(tmp_path / ("n" * 300))

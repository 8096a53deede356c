"""Lines: what is text is read, what is not is told with its place, and the rest is done."""

import gzip
import io
from collections.abc import Sequence
from pathlib import Path

import pytest

from heddle.cli import line_input
from heddle.cli.line_input import InputLine, LineErrors, read_lines, valid_lines, valid_records
from heddle.core import ConfigError, DamageError, DataError, MissingExtra, UsageError


def test_bad_lines_are_told_and_the_rest_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "text"
    path.write_bytes(
        "\ufeffone\r\n\n".encode() + b"caf\xe9\n\0nul\x85\x0c\n".replace(b"\x85", "\x85".encode()) + b"last"
    )
    line_errors = LineErrors()
    with valid_lines(str(path), line_errors) as found:
        assert list(found) == [
            InputLine(1, "one"),
            InputLine(2, ""),
            InputLine(4, "\0nul\x85\x0c"),
            InputLine(5, "last"),
        ]
    assert capsys.readouterr().err == f"heddle: {path}:3: want UTF-8 text, found byte 0xe9 at 3\n"
    assert line_errors.code() == 1


def test_a_line_without_end_is_refused_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(line_input, "MAX_LINE_BYTES", 100)
    path = tmp_path / "text"
    path.write_text("x" * 100 + "\r\n" + "y" * 101 + "\n" + "z" * 1000 + "\nend\n" + "w" * 1000)
    line_errors = LineErrors()
    with valid_lines(str(path), line_errors) as found:
        assert list(found) == [InputLine(1, "x" * 100), InputLine(4, "end")]
    told = capsys.readouterr().err.splitlines()
    assert [line.split(": want")[0] for line in told] == [f"heddle: {path}:{n}" for n in (2, 3, 5)]
    assert all("at most 100 bytes" in line for line in told)


def test_standard_input_is_read_and_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"a\n\xff\nb"))
    monkeypatch.setattr("sys.stdin", stdin)
    with valid_lines("-", LineErrors()) as found:
        assert [line.text for line in found] == ["a", "b"]
    assert capsys.readouterr().err.startswith("heddle: standard input:2: want UTF-8")
    monkeypatch.setattr("sys.stdin", io.StringIO("naïve\n"))
    with read_lines("-") as plain:
        assert list(plain) == ["naïve"]


def test_records_are_objects_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "text.jsonl"
    path.write_text('{"a": 1}\n{"a": \n[1]\n\n{"a": NaN}\n{"b": "\\ud800"}\n{"a": 2}\n')
    line_errors = LineErrors()
    with valid_records(str(path), line_errors) as found:
        assert list(found) == [(1, {"a": 1}), (7, {"a": 2})]
    told = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in told] == [f"{path}:{n}" for n in (2, 3, 5, 6)]  # a blank line is none
    for line, hint in zip(told, ("valid JSON", "an object", "finite", "surrogate"), strict=True):
        assert hint in line


def test_strict_lines_end_at_the_first_bad_one(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"a\n\xff\n")
    with read_lines(str(tmp_path / "text")) as found, pytest.raises(DataError, match=r"text:2: want UTF-8"):
        list(found)
    for wrong, hint in ((tmp_path / "nothing", "no such file"), (tmp_path, "found a folder")):
        with pytest.raises(UsageError, match=hint), read_lines(str(wrong)):
            pass


@pytest.mark.parametrize("error", [UsageError("a\nb"), DataError("a b"), ConfigError("a", want="b", got=1)])
def test_a_fault_of_the_line_is_one_line(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    line_errors = LineErrors()
    assert line_errors.code() == 0
    with line_errors.at("file", 7):
        raise error
    assert capsys.readouterr().err.startswith("heddle: file:7: a")
    assert line_errors.code() == 1


@pytest.mark.parametrize("error", [DamageError("x"), MissingExtra("x", "y", "z"), ValueError("x")])
def test_a_fault_of_something_else_ends_the_work(error: Exception) -> None:
    line_errors = LineErrors()
    with pytest.raises(type(error)), line_errors.at("file", 7):
        raise error
    with pytest.raises(type(error)):
        list(line_errors.run_batch("file", [(1, 1), (2, 2)], lambda _: (_ for _ in ()).throw(error)))  # type: ignore[arg-type]


def test_a_batch_with_bad_items_is_done_without_them(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[int] = []

    def halve(numbers: list[int]) -> Sequence[int]:
        calls.append(len(numbers))
        if odd := [n for n in numbers if n % 2]:
            raise DataError(f"{odd[0]} is odd")
        return [n // 2 for n in numbers]

    line_errors = LineErrors()
    batch = [(n, 2 * n) for n in range(100)]
    assert list(line_errors.run_batch("file", batch, halve)) == [(n, n) for n in range(100)] and calls == [100]
    calls.clear()
    batch[41] = (41, 83)
    assert list(line_errors.run_batch("file", batch, halve)) == [(n, n) for n in range(100) if n != 41]
    assert len(calls) < 20 and capsys.readouterr().err == "heddle: file:41: 83 is odd\n"
    assert list(line_errors.run_batch("file", [], halve)) == []


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "utf-16-be"])
def test_lines_are_decoded_as_training_data_are(encoding: str, tmp_path: Path) -> None:
    text = "one caf\xe9\r\ntwo\r\n"
    data = (("\ufeff" if encoding == "utf-16-be" else "") + text).encode(encoding)
    for content in (data, gzip.compress(data)):
        (tmp_path / "text").write_bytes(content)
        with read_lines(str(tmp_path / "text")) as lines:
            assert list(lines) == ["one caf\xe9", "two"]
    (tmp_path / "text").write_bytes(gzip.compress(data)[:-9])
    with (
        read_lines(str(tmp_path / "text")) as lines,
        pytest.raises(DataError, match="text: cannot be read: unreadable"),
    ):
        list(lines)

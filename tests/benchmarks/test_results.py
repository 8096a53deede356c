"""Results of benchmarks: lines that a kill has cut do not stop the next call."""

from pathlib import Path

from scripts import script


def test_a_line_that_was_cut_is_removed(tmp_path: Path) -> None:
    results, path = script("results"), tmp_path / "results.jsonl"
    assert results.read_lines(path) == []
    path.write_text('{"a": 1}\n{"b": "x')
    assert results.read_lines(path) == [{"a": 1}]
    assert path.read_text() == '{"a": 1}\n'
    path.write_text('{"b')
    assert results.read_lines(path) == [] and path.read_text() == ""

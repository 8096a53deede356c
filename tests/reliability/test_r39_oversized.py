"""R39: requests that are too large are refused before the work, within a second, by the name of what is too large."""

import json
import resource
import time
from pathlib import Path

import pytest
from cli.runs import CONTEXT, config, save_run

import heddle
from heddle.cli.main import main
from heddle.core import ConfigError, HeddleError

NAMES = [f"key{i}" for i in range(5000)]
SCHEMA = {"type": "object", "properties": {name: {"type": "string"} for name in NAMES}}
FILES = {
    "schema.json": json.dumps(SCHEMA),
    "required.json": json.dumps(SCHEMA | {"required": NAMES}),
    "nested.json": json.dumps({"type": "array", "items": {"anyOf": [SCHEMA]}}),
    "ambiguous.lark": 'start: s\ns: s s | s s s\n  | "a" | "b c"\n',
    "long.lark": "start: " + " | ".join(f'"w{i}"' for i in range(20_000)),
    "text.txt": "a b\n" * 3,
}
TOO_LARGE = {
    "samples": (["--samples", "1000000", "--temperature", "1"], "--samples: want at most 1,024, got 1000000"),
    "beams": (["--beams", "1000000"], "--beams: want at most 1,024, got 1000000"),
    "tokens": (["--max-tokens", "1000000000"], "--max-tokens: want at most 16,777,216, got 1000000000"),
    "schema": (["--schema", "schema.json"], "--schema: want at most 500 properties, got '5,000'"),
    "required": (["--schema", "required.json"], "--schema: want at most 500 properties, got '5,000'"),
    "nested": (["--schema", "nested.json"], "--schema: want at most 500 properties, got '5,000'"),
    "ambiguous": (["--grammar", "ambiguous.lark"], "--grammar: want no rule that splits a text in countless ways"),
    "grammar": (["--grammar", "long.lark"], "--grammar: want at most 100,000 characters"),
    "regex": (["--regex", "|".join(f"w{i}" for i in range(20_000))], "--regex: want at most 100,000 characters"),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)


@pytest.mark.parametrize("name", TOO_LARGE)
def test_too_large_a_request_is_refused_before_the_work(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, want = TOO_LARGE[name]
    save_run(Path("run"))
    monkeypatch.setattr("heddle.tasks.generation.TextGenerator.generate", lambda *_: pytest.fail("worked"))
    took = []
    for _ in range(2):  # the first may import modules or collect the garbage of other tests
        capsys.readouterr()
        start = time.thread_time()
        assert main(["generate", "a", "-m", "run", *words]) == 2
        took.append(time.thread_time() - start)
    assert min(took) < 1.0
    message = capsys.readouterr().err
    assert message.startswith(f"heddle: {want}") and message.count("\n") == 1, message


HUGE = [1025, 10**4, 10**6, 10**9, 10**12, 10**18, 10**30]  # samples and beams; new tokens, from the fourth on
VERBS = {  # commands that generate, each with the options that have limits
    "generate": (["generate", "a", "-m", "run"], ("--samples", "--beams", "--max-tokens")),
    "generate many": (["generate", "a", "b", "-m", "run"], ("--samples", "--beams", "--max-tokens")),
    "chat": (["chat", "--once", "a", "-m", "run", "--template", "plain"], ("--max-tokens",)),
    "translate": (["translate", "text.txt", "-m", "run"], ("--beams", "--max-tokens")),
    "translate mbr": (["translate", "text.txt", "-m", "run", "--choose", "mbr"], ("--samples", "--max-tokens")),
}


def refused(words: list[str], want: str, capsys: pytest.CaptureFixture[str]) -> float:
    """Return the seconds that a refusal takes."""
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()
    assert main(words) == 2, words
    seconds = time.thread_time() - start
    message = capsys.readouterr().err
    assert message.startswith(f"heddle: {want}") and message.count("\n") == 1, message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10, words  # kilobytes
    return seconds


@pytest.mark.full
def test_r39_full(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance")
    save_run(Path("run"))
    monkeypatch.setattr("heddle.decoding.runtime.prefill.prepare_prefill", lambda *_: pytest.fail("worked"))
    took = []
    for words, options in VERBS.values():
        for option in options:
            for number in HUGE[3:] if option == "--max-tokens" else HUGE:
                took.append(refused([*words, option, str(number)], f"{option}: want at most", capsys))
    generate = ["generate", "a", "-m", "run"]
    for count in (501, 1000, 5000, 20_000):
        names = [f"key{i}" for i in range(count)]
        flat = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
        nested = {"anyOf": [{"type": "array", "items": flat}, {"$ref": "#/$defs/x"}], "$defs": {"x": flat}}
        for schema in (flat, flat | {"required": names}, nested):
            Path("huge.json").write_text(json.dumps(schema))
            took.append(refused([*generate, "--schema", "huge.json"], "--schema: want at most 500 properties", capsys))
    for text in (*AMBIGUOUS, FILES["ambiguous.lark"]):
        Path("huge.lark").write_text(text)
        took.append(refused([*generate, "--grammar", "huge.lark"], "--grammar: want no rule that splits", capsys))
    for length in (100_001, 10**6):
        took.append(refused([*generate, "--regex", "a" * length], "--regex: want at most 100,000 char", capsys))
    print(f"R39: {len(took)} oversized requests refused, the slowest in {max(took):.2f} s of CPU time")
    assert max(took) < 1.0


def test_a_schema_that_the_library_cannot_follow_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance")
    save_run(Path("run"))
    many = {"type": "object", "properties": {name: {"type": "string"} for name in NAMES[:500]}}
    assert main(["generate", "a", "-m", "run", "--schema", json.dumps(many)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("heddle: --schema: want a JSON schema that can be followed (")
    few = json.dumps(many | {"properties": {name: {"type": "string"} for name in NAMES[:100]}})
    assert main(["generate", "a", "-m", "run", "--schema", few, "--max-tokens", "4"]) == 0


@pytest.mark.parametrize("options", [{}, {"beams": 2}, {"contrast": 0.5}, {"temperature": 1.0}])
def test_a_rotary_model_ends_at_its_context(options: dict[str, float]) -> None:
    save_run(Path("run"), config("llama2-7b"))
    lm = heddle.load("run")
    assert lm.model.max_length is None  # rotary positions have no end of their own
    ids = lm.generate_ids([[1, 2, 3]], max_tokens=200, bias={256: -100.0}, **options)[0]
    assert len(ids) == CONTEXT + 1 - 3 - (1 if "contrast" in options else 0)


def test_a_recurrent_model_has_no_such_end() -> None:
    save_run(Path("run"), config("lstm_lm"))
    assert len(heddle.load("run").generate_ids([[1]], max_tokens=2 * CONTEXT, bias={256: -100.0})[0]) == 2 * CONTEXT


ORDINARY = [
    'start: s\ns: s "a" | "a"',
    'start: e\ne: e "+" e | /[0-9]+/',
    'start: "s s" | s2 s2\ns2: "a"',
    'start: value\nvalue: "[" (value ("," value)*)? "]" | /[0-9]+/',
    "start: (\n  a b\n)\na: start start B\nB: /x/",
    "?start: a a\na: B* -> start\nB: /start start/",
    'start: "a" // start: start start\n',
]
AMBIGUOUS = [
    'start: s+\ns: "a" | s s\n',
    'start: s\ns: (s s) | "a"',
    'start: s\ns: t t | "a"\nt: s',
    'start: s\ns: s s* | "a"',
    'start: s\ns: s gap s | "a"\ngap: " "*',
    'start: s\n?s.2: s s -> pair\n  | "a"',
]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_grammars_are_not_refused(text: str) -> None:
    heddle.rules(grammar=text)


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_ambiguous_grammars_are_refused_by_their_rule(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^grammar: want no rule that splits a text in countless ways"):
        heddle.rules(grammar=text)


def test_what_no_check_foresees_is_named_when_it_overflows() -> None:
    pytest.importorskip("llguidance")
    save_run(Path("run"))
    rules = [f'r{number}: "a" "{number}"' for number in range(2100)]  # all of them are open after the second token
    grammar = "\n".join(['start: "c" "b" x', f"x: {' | '.join(rule.partition(':')[0] for rule in rules)}", *rules])
    with pytest.raises(HeddleError, match=r"^grammar: too complex to follow further: Parser Error: Current row has"):
        heddle.load("run").generate("", rules=heddle.rules(grammar=grammar), max_tokens=9)

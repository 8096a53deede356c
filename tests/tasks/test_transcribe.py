"""Transcription: from a folder of sounds to texts, by the library and the command line; lists, grades, refusals."""

import json
from pathlib import Path

import pytest
from data.sounds import RATE, tones, words, write_wav
from tasks.sound_runs import train_ctc, train_joint

import heddle
from heddle.cli.main import main
from heddle.core import ConfigError, UsageError
from heddle.serving import Engine
from heddle.tasks.evaluation import GradedModel, run_task, task_named
from heddle.tasks.recognition import error_rates
from heddle.tasks.rescoring import parse_nbest

DEVICE = ["--device", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("speech")
    train_ctc(root)
    train_joint(root)
    new = root / "new"
    new.mkdir()
    for number, text in enumerate(words(6, seed=99)):
        write_wav(new / f"{number}.wav", tones(text, 500 + number, rate=16_000), 16_000)  # resampled
        (new / f"{number}.txt").write_text(text)
    heddle.train("lstm_characters", overrides=tiny_lm(root), runs=root / "runs", progress=False)
    return root


def test_a_folder_of_sounds_is_learnt_and_new_sounds_are_transcribed(folder: Path) -> None:
    lm, texts = heddle.load(folder / "runs" / "transcribe_ctc"), words(6, seed=99)
    files = [folder / "new" / f"{number}.wav" for number in range(6)]
    found = lm.transcribe(files)
    assert error_rates(found, texts).cer < 10
    assert lm.transcribe(files[0]) == found[0] and lm.transcribe(folder / "new") == found
    assert lm.transcribe(files, beams=1) == found  # every one is sure
    metrics = (folder / "runs" / "transcribe_ctc" / "metrics.jsonl").read_text().splitlines()
    rates = [line["token_error_rate"] for line in map(json.loads, metrics) if "token_error_rate" in line]
    assert rates and 0 <= rates[-1] < 0.3


def test_the_verb_writes_json_lists_that_rescore_reads_and_grades(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, new = str(folder / "runs" / "transcribe_ctc"), str(folder / "new")
    assert main(["transcribe", f"{new}/0.wav", "-m", run, *DEVICE]) == 0
    assert capsys.readouterr().out.strip() == words(6, seed=99)[0]
    assert main(["transcribe", new, "-m", run, "--json", "--n-best", "3", "--reference", "beside", *DEVICE]) == 0
    *lists, rates = map(json.loads, capsys.readouterr().out.splitlines())
    assert len(lists) == 6 and rates["sounds"] == 6 and rates["cer"] < 10
    for record in lists:
        found = parse_nbest(record)
        scores = [candidate.scores["score"] for candidate in found.candidates]
        assert (
            scores == sorted(scores, reverse=True) and found.reference is not None and record["file"].endswith(".wav")
        )
    (folder / "nbest.jsonl").write_text("".join(json.dumps(record) + "\n" for record in lists))
    model = str(folder / "runs" / "lm")
    assert main(["rescore", str(folder / "nbest.jsonl"), "-m", model, "--weight", "0.1", *DEVICE]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 6


def tiny_lm(folder: Path) -> dict[str, object]:
    """Return settings of a language model over the transcripts, with the recognizer's tokenizer."""
    source = {"kind": "text", "path": str(folder / "sounds"), "pattern": "*.txt"}
    return {
        "name": "lm",
        "data": {"sources": [source], "split": {"kind": "hash", "fraction": 0.2}, "unique": False},
        "tokenizer": {"kind": "pretrained", "path": str(folder / "runs" / "transcribe_ctc")},
        "rows": {"kind": "packed", "length": 12},
        "model": {"kind": "preset", "name": "lstm_lm", "layers": 1, "width": 16},
        "training.steps": 3,
        "training.batch": 4,
        "every.sample": 100_000,
        "hardware.device": "cpu",
    }


def test_a_model_with_a_decoder_searches_jointly_and_takes_a_language_model(folder: Path) -> None:
    lm = heddle.load(folder / "runs" / "transcribe")
    files = [folder / "new" / "0.wav", folder / "new" / "1.wav"]
    samples = (folder / "runs" / "transcribe" / "samples.txt").read_text()
    assert samples.count("source  ") == samples.count("model   ") == 3 and ".wav" in samples
    each = [lm.transcribe(file, max_tokens=6) for file in files]
    assert lm.transcribe(files, max_tokens=6) == each and all(len(one) <= 6 for one in each)
    assert lm.transcribe(files[0], ctc_weight=0.0, beams=2, max_tokens=3) is not None
    other = heddle.load(folder / "runs" / "lm")
    assert isinstance(lm.transcribe(files[0], lm=other, lm_weight=0.2, length_bonus=0.5, max_tokens=6), str)
    with pytest.raises(UsageError, match="lm_weight: want a language model"):
        lm.transcribe(files[0], lm_weight=0.2)
    with pytest.raises(UsageError, match="lm: want a language model, got an encoder-decoder"):
        lm.transcribe(files[0], lm=lm)
    with pytest.raises(ConfigError, match="beams: want at least 1"):
        lm.transcribe(files[0], beams=0)
    only_ctc = heddle.load(folder / "runs" / "transcribe_ctc")
    with pytest.raises(UsageError, match="ctc_weight: only used by a model with a decoder"):
        only_ctc.transcribe(files[0], ctc_weight=0.5)


def test_sounds_that_cannot_be_used_are_told_each_in_a_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, bad = str(folder / "runs" / "transcribe_ctc"), folder / "bad"
    bad.mkdir()
    (bad / "empty.wav").write_bytes(b"")
    (bad / "cut.wav").write_bytes((folder / "new" / "0.wav").read_bytes()[:300])
    write_wav(bad / "short.wav", tones("a")[:20])
    assert main(["transcribe", str(bad), "-m", run, "--json", *DEVICE]) == 1
    told = capsys.readouterr()
    lines = {Path(line["file"]).name: line for line in map(json.loads, told.out.splitlines())}
    assert "bad media" in lines["cut.wav"]["error"] and lines["empty.wav"]["error"] == "empty"
    assert len(lines["short.wav"]["text"]) <= 1 and "error" not in lines["short.wav"]  # one frame
    assert len([line for line in told.err.splitlines() if "wav: " in line]) == 2
    for words_, match in (
        (["transcribe", "none.wav", "-m", run], "none.wav: no such file"),
        (["transcribe", str(bad), "-m", run, "--n-best", "2"], "requires --json"),
        (["translate", str(folder / "sounds" / "000.txt"), "-m", str(folder / "runs" / "transcribe")], "reads no text"),
        (["generate", "x", "-m", str(folder / "runs" / "transcribe")], "reads no text"),
        (["evaluate", "-m", run], "--task transcribe"),
        (["evaluate", "-m", str(folder / "runs" / "transcribe"), "--data", str(bad)], "--task transcribe"),
        (["explain", "x", "-m", run], "want a model of texts, got one of frames"),
        (["transcribe", str(bad), "-m", str(folder / "runs" / "lm")], "want a model that reads sounds"),
    ):
        assert main([*words_, *DEVICE]) in (1, 2)
        told = capsys.readouterr()
        assert match in told.err and "Traceback" not in told.err, told.err


def test_a_server_of_text_refuses_a_model_of_sounds(folder: Path) -> None:
    lm = heddle.load(folder / "runs" / "transcribe")
    with pytest.raises(UsageError, match="want a model that reads text, got one that reads frames"):
        Engine(lm.autoregressive_model)


def test_the_task_grades_as_jiwer_does(folder: Path) -> None:
    jiwer = pytest.importorskip("jiwer")
    texts, references = ["a b c", "", "x  y"], ["a c c d", "b", "x y"]
    found = error_rates(texts, references)
    assert found.wer == pytest.approx(100 * jiwer.wer(references, texts))
    assert found.cer == pytest.approx(100 * jiwer.cer(references, ["a b c", "", "x y"]))
    lm = heddle.load(folder / "runs" / "transcribe_ctc")
    graded = GradedModel(lm.model, lm.tokenizer, lm.origin.settings)
    result = run_task(task_named("transcribe"), graded, str(folder / "new"))
    assert result.examples == 6 and result.metrics["cer"] < 10 and set(result.intervals) == {"wer", "cer"}


def test_the_task_reads_sounds_as_the_run_and_tells_those_it_cannot(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(folder / "runs" / "transcribe_ctc")
    words_ = ["evaluate", "-m", run, "--task", "transcribe", "--data", str(tmp_path), "--json", *DEVICE]
    write_wav(tmp_path / "long.wav", tones("ab" * 300), RATE)  # over the half minute of training data
    (tmp_path / "long.txt").write_text("ab" * 300)
    assert main(words_) == 0 and json.loads(capsys.readouterr().out)["examples"] == 1
    (tmp_path / "cut.wav").write_bytes((folder / "new" / "0.wav").read_bytes()[:300])
    assert main(words_) in (1, 2, 3)
    error = capsys.readouterr().err
    assert "want a text for each sound, found none for" in error and error.count("\n") == 1, error
    (tmp_path / "cut.txt").write_text("a")
    assert main(words_) in (1, 2, 3)
    error = capsys.readouterr().err
    assert "cut.wav: want a sound that can be read, found bad media" in error and error.count("\n") == 1, error


def test_references_are_as_many_as_the_sounds(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verb = ["transcribe", str(folder / "new"), "-m", str(folder / "runs" / "transcribe_ctc"), *DEVICE]
    lines = tmp_path / "lines.txt"
    for count in (5, 6, 7):
        lines.write_text("".join(f"{text}\n" for text in (*words(6, seed=99), "more")[:count]))
        assert main([*verb, "--reference", str(lines)]) == (0 if count == 6 else 2)
        told = capsys.readouterr()
        if count == 6:
            assert "in 6 sounds" in told.out + told.err
        else:
            assert f"lines.txt: want a line for each of 6 sounds, got {count}" in told.err and not told.out


def test_what_does_not_fit_sounds_is_refused_before_the_data_are_read(folder: Path) -> None:
    for recipe, more, match in (
        (
            "transcribe",
            {"rows.features.mels": 8, "model.dials": {"features": 9}},
            r"features: want 8, as rows\.features",
        ),
        ("transcribe", {"objective": {"kind": "next_token"}}, r"objective\.kind: want sequence, ctc or ctc_attention"),
        ("transcribe_ctc", {"objective": {"kind": "sequence"}}, "want an encoder-decoder for sequence"),
        ("translate", {"rows": {"kind": "media", "batch": 256}}, "want frames, because the rows are media"),
        ("transcribe_ctc", {"rows": {"kind": "packed"}}, r"rows\.kind: want media"),
    ):
        overrides = {"hardware.device": "cpu", "name": "no"} | more
        with pytest.raises(ConfigError, match=match):
            heddle.train(recipe, data=folder / "sounds", overrides=overrides, runs=folder / "no")

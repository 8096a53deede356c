"""From folders of pictures, video and speech in video to text: training, the verbs, Python, and what cannot be read."""

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data.drawn_pictures import SIDE, drawn, write_clips_with_sound, write_images, write_videos

import heddle
from heddle.cli.main import main
from heddle.core import DataError, UsageError
from heddle.data.media import (
    AudioVisualConfig,
    ClipConfig,
    LogMelConfig,
    PictureSize,
    PixelsConfig,
    audio_visual_media,
    sound_media,
    video_media,
)
from heddle.data.pictures import AudioVisualSource, ImageClassSource, ImageSource, VideoSource
from heddle.data.rows import MediaExampleRows, MediaRows
from heddle.data.shards import open_split, prepare
from heddle.data.sources import CorpusConfig, HashSplit, Split
from heddle.tasks.generation import grade_captions
from heddle.text.tokenizers import CharacterTokenizer

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
SIZE = [SIDE, SIDE]
SMALL: dict[str, Any] = {
    "training.steps": 3, "training.batch": 8, "rows.batch": 8, "training.schedule.warmup": 1, "every.validate": 3,
    "every.save": 3, "every.sample": 100, "tokenizer": "word", "hardware.device": "cpu", "hardware.workers": 0,
}  # fmt: skip
TINY = {"model.layers": 1, "model.width": 16, "model.heads": 2, "model.patch": 1}
PICTURES = {"rows.features.size": SIZE, "data.sources.0.size": SIZE}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Train one small model of each kind."""
    folder = tmp_path_factory.mktemp("pictures")
    with contextlib.chdir(folder):
        write_images(Path("images"))
        write_images(Path("shapes"), classes=True)
        write_videos(Path("videos"))
        write_clips_with_sound(Path("speech"))
        for recipe, own in RUNS.items():
            heddle.train(recipe, overrides=SMALL | own, progress=False)
        yield folder


RUNS: dict[str, dict[str, Any]] = {
    "caption": TINY | PICTURES,
    "caption_lstm": {"model.width": 16} | PICTURES,
    "caption_video": TINY | PICTURES,
    "classify_images": {"tokenizer": "character", "data.sources.0.path": "shapes", "model.layers": 1, "model.width": 12}
    | PICTURES,
    "transcribe_audio_visual": {
        "tokenizer": "character", "data.sources.0.path": "speech", "model.layers": 1, "model.width": 16,
        "model.heads": 2, "data.split.fraction": 0.4,
    },
}  # fmt: skip


def heard(*words: str, code: int = 0) -> list[dict[str, Any]]:
    """Run a command; return the JSON lines that it writes."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(list(words)) == code, words
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("name", ["caption", "caption_lstm", "caption_video"])
def test_captions_are_written_and_graded(work: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(work)
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    folder = "videos" if name == "caption_video" else "images"
    *lines, grades = heard("caption", folder, "-m", name, "--max-tokens", "6", "--reference", folder)
    assert len(lines) == grades["graded"] == (24 if name == "caption_video" else 60)
    assert {"bleu", "cider", "exact_match", "signature"} <= grades.keys()
    lm = heddle.load(f"runs/{name}")
    paths = [line["path"] for line in lines[:3]]
    assert lm.caption(paths, max_tokens=6) == [line["text"] for line in lines[:3]]  # alone or among others
    assert lm.caption(paths[1], max_tokens=6) == lines[1]["text"]
    nbest = heard("caption", paths[0], "-m", name, "--n-best", "2", "--max-tokens", "6")[0]
    assert len(nbest["candidates"]) == 2
    assert nbest["candidates"][0]["text"] == nbest["text"] == lines[0]["text"]


def test_classes_of_images_are_told(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    *lines, grades = heard("classify", "shapes", "-m", "classify_images", "--reference", "shapes")
    assert len(lines) == grades["graded"] == 60
    assert all(line["label"] in ("ring", "square") and sum(line["probabilities"].values()) > 0.99 for line in lines)
    right = sum(line["label"] == Path(line["path"]).parent.name for line in lines)
    assert grades["accuracy"] == pytest.approx(right / 60)
    lm = heddle.load("runs/classify_images")
    assert lm.classify(lines[0]["path"]).plain()["label"] == lines[0]["label"]


def test_a_manifest_grades_by_its_labels_and_lacks_none(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(work)
    lines = heard("classify", "shapes", "-m", "classify_images")
    rows = [json.dumps({"path": line["path"], "text": line["label"]}) for line in lines]
    Path("right.jsonl").write_text("\n".join(rows))
    assert heard("classify", "shapes", "-m", "classify_images", "--reference", "right.jsonl")[-1]["accuracy"] == 1
    Path("right.jsonl").write_text("\n".join(rows[1:]))
    for reference in ("right.jsonl", "shapes/ring"):
        assert main(["classify", "shapes", "-m", "classify_images", "--reference", reference]) != 0
        told = capsys.readouterr().err.strip().splitlines()[-1]
        assert f"{reference}: want a label for each file that was read, found none for " in told


def test_speech_in_video_is_transcribed(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    lines = heard(
        "transcribe", "speech", "-m", "transcribe_audio_visual", "--json", "--beams", "2", "--max-tokens", "4"
    )
    assert len(lines) == 12
    assert all("error" not in line for line in lines)


def test_explain_names_the_places_that_the_decoder_looks_at(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    files = {"caption": "images/000.png", "caption_lstm": "images/000.png", "caption_video": "videos/001.npy"}
    for name, file in files.items():
        heard("explain", file, "-m", name, "--what", "attention", "--html", f"{name}.html", "--json", f"{name}.json")
        found = json.loads(Path(f"{name}.json").read_text())
        source, cross = found["sequences"][0], [one for one in found["attention"] if one["kind"] == "cross"]
        frames, rows, columns = source["picture"]["grid"]
        assert len(source["tokens"]) == 1 + frames * rows * columns
        assert source["tokens"][0] == "class"
        assert name != "caption" or (frames, rows, columns) == (1, 2, 2)
        assert source["tokens"][-1].endswith(f"row {rows - 1} column {columns - 1}")
        assert all(one["shape"][2] == len(source["tokens"]) for one in cross)
        assert "showPictures" in Path(f"{name}.html").read_text()


def test_attention_is_that_of_the_model_itself(work: Path) -> None:
    lm = heddle.load(work / "runs" / "caption")
    found = lm.explain(str(work / "images" / "000.png"), what="attention", output="a red square")
    weights = next(one.weights for one in found["attention"].maps if one.kind == "cross")  # type: ignore[attr-defined]
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))


def test_a_file_that_cannot_be_read_is_told_and_the_others_are_captioned(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(work)
    Path("bad.png").write_text("no picture")
    lines = heard("caption", "images/000.png", "bad.png", "images/001.png", "-m", "caption", code=1)
    assert [line["path"] for line in lines] == ["images/000.png", "images/001.png"]
    assert "bad.png: bad media: cannot identify image file" in capsys.readouterr().err
    lm = heddle.load("runs/caption")
    with pytest.raises(DataError, match=r"bad\.png: bad media"):
        lm.caption("bad.png")
    with pytest.raises(UsageError, match="want a model that was trained on images, video"):
        heddle.LM(heddle.build("first", layers=1, width=8, heads=2, vocab=60), lm.tokenizer).caption("bad.png")


def test_bad_pictures_are_counted_and_left_out_of_training(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", 20)
    (folder / "000.png").write_bytes(b"\x89PNG")
    (folder / "001.txt").unlink()
    (folder / "002.png").write_bytes(b"")
    split = HashSplit(fraction=0.4)
    corpus = CorpusConfig(sources=(ImageSource(path=str(folder), size=(SIDE, SIDE)),), split=split)
    prepared = prepare(corpus, CharacterTokenizer().train(["abc"]), tmp_path / "data")
    skipped = {str(reason): count for reason, count in prepared.counter.skipped.items() if reason != "duplicate"}
    assert skipped == {"bad_media": 2, "no_text": 1, "empty": 2}  # of two captions each
    assert prepared.counter.balanced


def test_captions_of_one_picture_stay_on_one_side(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", 40)
    corpus = CorpusConfig(sources=(ImageSource(path=str(folder)),))
    from heddle.data.sources import DocumentCounter

    sides: dict[str, set[str]] = {}
    for side, document in corpus.split_documents(DocumentCounter()):
        sides.setdefault(document.origin, set()).add(str(side))
    assert {len(one) for one in sides.values()} == {1}
    assert {side for one in sides.values() for side in one} == {"train", "valid"}


def test_rows_of_classes_resume_and_every_image_comes_once_in_an_epoch(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "shapes", 30, classes=True)
    corpus = CorpusConfig(sources=(ImageClassSource(path=str(folder), size=(SIDE, SIDE)),), unique=False)
    prepared = prepare(corpus, CharacterTokenizer().train(["abc"]), tmp_path / "data")
    shards, _ = open_split(prepared, Split.TRAIN)
    config = MediaExampleRows(batch=4, features=PixelsConfig(size=(SIDE, SIDE)))
    plan, again = config.build(shards, 3), config.build(shards, 3)
    rows = [plan.row(number) for number in range(plan.rows_per_epoch)]
    assert sorted(row.example for row in rows if row.example >= 0) == list(range(shards.count))
    for number in (0, 7, plan.rows_per_epoch + 2):  # any row by itself, in any order
        np.testing.assert_array_equal(plan.row(number).source, again.row(number).source)
    found = plan.build_batch(range(4))
    assert found.source.shape == (4, 3, SIDE, SIDE)
    assert found.source_lengths is None
    names = shards.examples.label_set.names
    for row in rows[:8]:
        if row.example >= 0:
            picture = shards.media.array(row.example)
            ring = (picture.reshape(-1, 3) == 255).all(1).sum() > SIDE * SIDE - 60
            assert names[int(row.labels[0])] == ("ring" if ring else "square")


def test_rows_of_video_are_padded_and_tell_their_lengths(tmp_path: Path) -> None:
    folder = write_videos(tmp_path / "videos", 24)
    corpus = CorpusConfig(sources=(VideoSource(path=str(folder), size=(SIDE, SIDE)),), unique=False)
    prepared = prepare(corpus, CharacterTokenizer().train(["a red green blue square moves"]), tmp_path / "data")
    assert (prepared.counter.seen, prepared.counter.kept) == (24, 24)  # GIF, arrays and folders of frames
    shards, _ = open_split(prepared, Split.TRAIN)
    rows = MediaRows(length=64, batch=4, source_length=8, multiple=1, features=ClipConfig(size=(SIDE, SIDE)))
    plan = rows.build(shards, 0)
    for first in range(0, plan.rows_per_epoch, 4):
        batch = plan.build_batch(range(first, first + 4))
        assert batch.source.shape[1] == batch.source_lengths.max()
        for source, length in zip(batch.source, batch.source_lengths, strict=True):
            assert not source[length:].any()


def test_sound_and_video_share_rows_of_one_time(tmp_path: Path) -> None:
    folder = write_clips_with_sound(tmp_path / "speech", 2)
    features = AudioVisualConfig(size=(32, 64), channels=1, sound=LogMelConfig(mels=10))
    size = PictureSize(32, 64, 1)
    video = video_media(folder / "000.npy", size, (0, None), 1, 64)
    media = audio_visual_media(video, sound_media(folder / "000.wav", 16_000), 25.0)
    array = media.decode()
    found = features.compute(array)
    assert features.count(array.shape) == len(found) == len(np.load(folder / "000.npy"))
    assert found.shape[1:] == features.shape == (32 * 64 + 4 * 10,)
    frames = ClipConfig(size=(32, 64), channels=1).compute(video.decode())
    np.testing.assert_array_equal(found[:, : 32 * 64], frames.reshape(len(found), -1))
    heard_alone = features.sound.compute(sound_media(folder / "000.wav", 16_000).decode())
    np.testing.assert_allclose(found[:, 32 * 64 :].reshape(-1, 10)[: len(heard_alone)], heard_alone, atol=1e-6)
    corpus = CorpusConfig(sources=(AudioVisualSource(path=str(folder), size=(32, 64)),))
    assert corpus.medium == "audio_visual"


def test_grades_of_captions_agree_with_hand_counts() -> None:
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    references = [["a red dog runs fast", "the dog runs"], ["two cats sleep on a mat"]]
    found = grade_captions(["A red dog runs fast.", "two dogs sleep on a mat"], references)
    assert found.exact_match == 50.0
    assert 0 < found.bleu < 100
    same = grade_captions([several[0] for several in references], references)
    assert (same.bleu, same.exact_match) == (pytest.approx(100), 100.0)


def test_a_picture_is_drawn_as_it_is_named() -> None:
    assert (drawn("red", "ring", (0, 0))[3, 3] == 255).all()
    assert tuple(drawn("red", "square", (0, 0))[3, 3]) == (220, 30, 30)


def test_a_run_that_was_stopped_goes_on_to_the_same_weights(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    own = SMALL | TINY | PICTURES | {"training.steps": 4, "every.save": 1, "every.validate": 4}
    whole = heddle.train("caption", overrides=own | {"name": "whole"}, progress=False)
    part = heddle.train("caption", overrides=own | {"name": "parts", "stop.minutes": 0.0}, progress=False)
    stops = 0
    while part.step < 4:
        stops += 1
        part = heddle.train("runs/parts", overrides={"stop.minutes": 0.0}, progress=False)
    assert stops >= 1
    ours, theirs = part.lm.model.weights(), whole.lm.model.weights()
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())


def test_a_vision_transformer_of_hugging_face_classifies_files_as_it_does_there(tmp_path: Path) -> None:
    hf = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = hf.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, image_size=8, patch_size=4,
        id2label={0: "cat", 1: "dog", 2: "owl"}, label2id={"cat": 0, "dog": 1, "owl": 2},
    )  # fmt: skip
    theirs = hf.ViTForImageClassification(config).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight += 0.3 * torch.randn(weight.shape)
    theirs.save_pretrained(tmp_path / "vit")
    picture = drawn("red", "ring", (0, 0))[:8, :8]
    Image.fromarray(picture).save(tmp_path / "a.png")
    (found,) = heard("classify", str(tmp_path / "a.png"), "-m", str(tmp_path / "vit"))
    pixels = (torch.from_numpy(picture.copy()).permute(2, 0, 1)[None] / 255 - 0.5) / 0.5
    with torch.no_grad():
        wanted = theirs(pixel_values=pixels).logits.softmax(-1)[0].tolist()
    assert [found["probabilities"][name] for name in ("cat", "dog", "owl")] == pytest.approx(wanted, abs=2e-5)


def test_samples_are_captions_while_a_run_trains(work: Path) -> None:
    told = (work / "runs" / "caption" / "samples.txt").read_text()
    assert told.count("source  ") == told.count("target  ") == told.count("model   ") == 3


def test_what_reads_text_refuses_a_model_of_images_in_a_line(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(work)
    Path("text.txt").write_text("a\n")
    wanted = {
        "evaluate": "heddle caption or classify --reference FOLDER, because the model reads images",
        "generate a": "because the model reads no text, got ids of tokens",
        "translate text.txt": "because the model reads no text, got ids of tokens",
    }
    for words, want in wanted.items():
        assert main([*words.split(), "-m", "caption"]) != 0, words
        told = capsys.readouterr().err
        assert want in told, told
        assert told.startswith("heddle: ") or "text.txt:1" in told
        assert "Traceback" not in told

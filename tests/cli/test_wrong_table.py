"""120 wrong inputs and more over all verbs: one line that names what was typed, no traceback, no run left behind."""

import json
import os
from pathlib import Path

import pytest
from cli.runs import save_run

from heddle.cli.main import main

TEXT = "".join(f"{i} green bottles hanging on the wall, and if one should fall\n" for i in range(400))
SMALL = [
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "rows.length=32",
    "training.steps=2",
    "training.batch=2",
    "tokenizer={kind: byte}",
    "hardware.device=cpu",
]
FILES = {
    "corpus.txt": TEXT,
    "empty.txt": "",
    "empty.yaml": "",
    "two.txt": "a\nb\n",
    "three.txt": "a\nb\nc\n",
    "open.yaml": "model:\n  width: [1,\n  heads: }\n",
    "tab.yaml": "name: x\n\tseed: 2\n",
    "list.yaml": "- 1\n",
    "key.yaml": "modle: 1\n",
    "twice.yaml": "seed: 1\nseed: 2\n",
    "bad.json": "{",
    "array.json": "[1]",
    "lists.jsonl": json.dumps({"candidates": ["a b", "a c"]}) + "\n",
    "pairs.txt": "right: wrigt rihgt\n" * 3,
    "long.txt": "word " * 100,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    save_run(folder / "run")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "folder").mkdir()
    (folder / "folder" / "kept").write_text("")
    return folder


def train(words: str) -> list[str]:
    given = {word.partition("=")[0] for word in words.split("&")}
    small = [word for word in SMALL if word.partition("=")[0] not in given]
    return ["train", "first", "data=corpus.txt", *small, *words.split("&")]


# Each case: the words (of `train`: what is added to a small run, parted by &), and what the message must have.
TRAIN = {
    "model.width=0": "model.width: want at least 1, got 0",
    "model.layers=0": "model.layers: want at least 1, got 0",
    "model.heads=0": "model.heads: want at least 1, got 0",
    "model.heads=3": "model.heads: want a divisor of the width 16, got 3",
    "model.width=-16": "model.width: want at least 1, got -16",
    "model.context=0": "model.context: want at least 1, got 0",
    "model.vocab=10": "model.vocab: want at least the tokenizer's 257, got 10",
    "model.width=[1]": "model.width: want a whole number, got [1]",
    "model.widht=32": "model.widht: want one of",
    "model.dropout=2": "dropout",
    "model=mamba": "model: want the name of a preset (heddle list), got 'mamba'",
    "model.name=gpt-2": "'gpt2'",
    "tokenizer={kind: bpe, least: -1}": "least: want at least 1, got -1",
    "tokenizer={kind: word, least: 0}": "least: want at least 1, got 0",
    "tokenizer={kind: bep}": "'bpe'",
    "tokenizer={kind: bpe, vocab: 100}": "vocab: want at least 257, got 100",
    "tokenizer={kind: bpe, vocab: 300}&model.vocab=280": "model.vocab: want at least the tokenizer's 300, got 280",
    "training.micro_batch=3&training.batch=8": "training.micro_batch: want a divisor of training.batch, 8, got 3",
    "training.micro_batch=100": "training.micro_batch: want at most training.batch, 2, got 100",
    "training.schedule.warmup=1000000": "training.schedule.warmup: want less than training.steps, 2, got 1000000",
    "training.schedule.warmup=-1": "training.schedule.warmup: want 0 or more steps, got -1",
    "training.batch=0": "training.batch: want at least 1, got 0",
    "training.steps=0": "training.steps: want at least 1, got 0",
    "training.steps=many": "training.steps: want a whole number, got 'many'",
    "training.setps=3": "'steps'",
    "training.clip=-1": "training.clip: want above 0",
    "training.optimizer=adam": "'adamw'",
    "training.optimizer.learning_rate=-1": "training.optimizer.learning_rate: want 0 or more, got -1",
    "training.optimizer.learning_rate=fast": "training.optimizer.learning_rate: want a number, got 'fast'",
    "training=3": "training: want a",
    "objective=masked_token": "objective: want an encoder for masked_token",
    "objective={kind: next_tokn}": "'next_token'",
    "rows={kind: pairs}": "for pairs of source and target",
    "rows={kind: streams}": "rows.kind: want packed, because attention carries no state",
    "rows.length=0": "rows.length",
    "rows.length=100000": "100000",
    "seed=x": "seed: want a whole number, got 'x'",
    "nosuch=1": "nosuch: want one of format",
    "data.split.fraction=2": "data.split.fraction: want above 0 and below 1, got 2",
    "every.save=0": "every.save: want at least 1, got 0",
    "keep.last=0": "keep.last: want at least 1, got 0",
    "stop.patience=0": "stop.patience: want at least 1, got 0",
    "hardware.device=gpu": "hardware.device: want one of auto, cpu",
    "hardware.device=cuda:99": "hardware.device: want one of auto, cpu",
    "hardware.dtype=float7": "hardware.dtype: want auto or one of",
    "hardware.dtype=float16": "hardware.dtype: want bfloat16",
    "hardware.compile=maybe": "hardware.compile: want one of auto, on, graphs, off, got 'maybe'",
    "hardware.workers=-1": "hardware.workers: want at least 0, got -1",
    "name=../x": "name: want a plain folder name, got '../x'",
    "name=a/b": "name: want a plain folder name, got 'a/b'",
    "frozen=[nosuch]": "nosuch",
    "width": "want key=value, got 'width'",
    "=3": "want key=value, got '=3'",
    "format=7": "format",
}
GENERATE = "generate a -m run "
VERBS = {
    "train mamba": "no recipe, config file or run is called 'mamba'; recipes: ",
    "train frist": "did you mean 'first'?",
    "train nosuch.yaml": "nosuch.yaml: no such file",
    "train corpus.txt": "heddle train data=corpus.txt",
    "train empty.yaml": "empty.yaml: want a table of settings, as heddle train --print writes it, found an empty file",
    "train list.yaml": "list.yaml: want a table of settings",
    "train open.yaml": "in line 3, column 10",
    "train tab.yaml": "in line 2, column 1",
    "train key.yaml": "'model'",
    "train twice.yaml": "seed",
    "train first data=nosuch.txt": "nosuch.txt: no such file",
    "train first data=empty.txt training.steps=1": "empty",
    "train --prnt": "no such option: --prnt; did you mean '--print'?",
    "train translate data=corpus.txt tokenizer.vocab=300": "data: want pairs of source and target",
    "train folder": "folder",
    GENERATE + "--device gpu": "--device: want one of auto, cpu",
    GENERATE + "--weights int3": "--weights: want one of auto, float32, bfloat16, int8, int4, got 'int3'",
    GENERATE + "--max-tokens 0": "--max-tokens: want at least 1, got 0",
    GENERATE + "--max-tokens x": "--max-tokens: want a whole number, got 'x'",
    GENERATE + "--max-tokens=1.5": "--max-tokens: want a whole number, got '1.5'",
    GENERATE + "--min-tokens 200": "--min-tokens: want at most --max-tokens, 128, got 200",
    GENERATE + "--temperature -1": "--temperature: want 0 or more, got -1.0",
    GENERATE + "--temperature hot": "--temperature: want a number, got 'hot'",
    GENERATE + "--top-p 2": "--top-p: want more than 0 and at most 1, got 2.0",
    GENERATE + "--top-k 0": "--top-k: want at least 1, got 0",
    GENERATE + "--min-p 3": "--min-p: want 0 to 1, got 3.0",
    GENERATE + "--beams 0": "--beams: want at least 1, got 0",
    GENERATE + "--beams 2 --temperature 1": "--temperature: want 0 with beam search, which samples nothing, got 1.0",
    GENERATE + "--samples 0": "--samples: want at least 1, got 0",
    GENERATE + "--samples 2": "--samples: want 1 unless tokens are sampled; set --temperature to 1, got 2",
    GENERATE + "--samples 1000000 --temperature 1": "--samples: want at most 1,024, got 1000000",
    GENERATE + "--groups 3": "--groups: only used by beam search; set --beams to 2 or more",
    GENERATE + "--regex (": "--regex: want a pattern that can be followed (unclosed group), got '('",
    GENERATE + "--schema {": "--schema: want valid JSON",
    GENERATE + "--schema nosuch.json": "nosuch.json: no such file",
    GENERATE + "--grammar nosuch.lark": "nosuch.lark: no such file",
    GENERATE + "--bias x": "--bias: want a token and a number, such as ' word=-5', got 'x'",
    GENERATE + "--logprobs 2": "--logprobs requires --json",
    GENERATE + "--cache big": "--cache: want full or quantised, got 'big'",
    GENERATE + "--compile yes": "--compile: want one of auto, on, off, got 'yes'",
    GENERATE + "--draft nosuch": "'nosuch'",
    GENERATE + "--batch 0": "--batch: want at least 1, got '0'",
    GENERATE + "--seconds 0": "--seconds: want above 0, got 0.0",
    GENERATE + "--repetition 0": "--repetition: want above 0",
    GENERATE + "--file two.txt": "--file: give prompts as arguments or in a file, not both",
    GENERATE + "--modle x": "no such option: --modle; did you mean '--model'?",
    "generate -m run --file nosuch.txt": "nosuch.txt: no such file",
    "generate -m run --file empty.txt": "empty.txt: an empty file; want one line or more",
    "generate -m run --file folder": "folder: want a file, found a folder",
    "generate -m nosuch": "no run is called 'nosuch'",
    "generate -m corpus.txt": "corpus.txt: not a model",
    "generate -m owner/name": "models are not downloaded from a hub",
    "generate --records": "--records requires --file",
    "score empty.txt -m run": "empty.txt: an empty file; want one line or more",
    "score nosuch.txt -m run": "nosuch.txt: no such file",
    "score folder -m run": "folder: want a file, found a folder",
    "score two.txt -m run --window 0": "--window: want at least 1, got 0",
    "score two.txt -m run --by sentance": "sentence, got 'sentance'; did you mean 'sentence'?",
    "score two.txt -m run --source two.txt": "--source two.txt: want another file than that of the texts",
    "score two.txt -m run --source three.txt": "--source three.txt: the model is no encoder-decoder",
    "score two.txt -m run --spaces after": "--spaces after requires --by word",
    "rescore nosuch.jsonl": "nosuch.jsonl: no such file",
    "rescore empty.txt --no-model": "empty.txt: an empty file",
    "rescore lists.jsonl --weight x --no-model": "--weight: want a number or NAME=NUMBER, got 'x'",
    "rescore lists.jsonl --no-model -m run": "--model has no effect with --no-model",
    "rescore lists.jsonl --no-model --normal case=loud": "--normal case: want one of lower, upper, keep, got 'loud'",
    "rescore lists.jsonl --no-model --metric ter": "--metric: want one of wer, bleu, got 'ter'",
    "rescore lists.jsonl --no-model --scored two.txt": "two.txt: exists, and heddle did not write it",
    "rescore lists.jsonl --no-model --bonus nan": "--bonus: want a number below a million, got nan",
    "correct two.txt --no-model --rate 2": "--rate: want above 0 and below 1, got 2.0",
    "correct two.txt --no-model --threshold -1": "--threshold: want odds above 0, got -1.0",
    "correct nosuch.txt --no-model": "nosuch.txt: no such file",
    "correct --learn x.json": "--learn requires --pairs",
    "correct --pairs pairs.txt --learn two.txt": "two.txt: exists, and heddle did not write it",
    "correct two.txt --no-model --words nosuch": "nosuch: no such file",
    "correct two.txt --no-model --words empty.txt": "empty.txt: want one word or more",
    "correct two.txt --no-model --weights int8": "--weights has no effect with --no-model",
    "evaluate -m run": "--data: want a path",
    "evaluate -m run --data nosuch.txt": "nosuch.txt: no such file",
    "evaluate -m run --data empty.txt": "empty.txt: no text to measure",
    "evaluate -m run --data two.txt --window 0": "--window: want at least 1, got 0",
    "evaluate -m run --data two.txt --stride 999": "--stride: want 1 to the window of 48, got 999",
    "evaluate -m run --data two.txt --carry": "carry",
    "translate two.txt -m run": "this model is a language model",
    "translate two.txt --n-best 0": "--n-best: want 1 to the 4 beams, got 0",
    "translate two.txt --beams 0": "--beams: want at least 1, got 0",
    "translate two.txt --choose mbr --samples 0": "--samples: want at least 1, got 0",
    "translate two.txt --reference nosuch": "nosuch: no such file",
    "translate two.txt --reference three.txt": "three.txt: want 2 lines, one for each of two.txt, found 3",
    "translate two.txt --lowercase": "--lowercase requires --reference",
    "translate two.txt --utility x": "--utility is only used with --choose mbr",
    "chat -m run --once a": "has no chat_template.jinja; choose one, such as --template plain",
    "chat -m run --once a --template nosuch": "--template: want a file or one of chatml",
    "chat -m run --once a --template plain --top-p 3": "--top-p: want more than 0 and at most 1, got 3.0",
    "show nosuch": "no preset, config file or run is called 'nosuch'; presets: ",
    "show gpt-2": "did you mean 'gpt2'?",
    "show bad.json": "bad.json: want valid JSON",
    "show array.json": "array.json: want a table of settings",
    "show open.yaml": "in line 3, column 10",
    "show": "Missing argument 'MODEL|PRESET'",
    "show gpt2 --jsn": "no such option: --jsn; did you mean '--json'?",
    "tokenizer train nosuch.txt": "nosuch.txt: no such file",
    "tokenizer train corpus.txt --kind bep": "--kind: want one of",
    "tokenizer train corpus.txt vocab=x -o t.json": "vocab: want a whole number, got 'x'",
    "tokenizer train corpus.txt vocab=-5 -o t.json": "vocab: want at least 257, got -5",
    "tokenizer train corpus.txt vcoab=5 -o t.json": "vcoab: want one of",
    "tokenizer train corpus.txt --kind word least=-1 -o t.json": "least: want at least 1, got -1",
    "tokenizer train corpus.txt -o corpus.txt": "corpus.txt: exists, and heddle did not write it",
    "tokenizer train empty.txt -o t.json": "empty.txt",
    "tokenizer trian": "'train'",
    "data prepare nosuch.txt": "nosuch.txt: no such file",
    "data prepare corpus.txt --tokenizer nosuch.json": "nosuch.json: no such file",
    "data prepare corpus.txt --tokenizer nosuch": "'nosuch'",
    "data prepare corpus.txt --tokenizer two.txt": "two.txt",
    "data prepare corpus.txt split.fraction=3": "split.fraction: want above 0 and below 1, got 3.0",
    "data prepare corpus.txt -o folder": "folder: exists and is not prepared data",
    "convert nosuch out": "'nosuch'",
    "convert run": "Missing argument 'DST'",
    "convert run out --to onnx": "--to: want one of hf, heddle, peft, got 'onnx'",
    "convert run out --dtype float7": "--dtype: want auto or one of",
    "convert run folder": "folder: exists already",
    "convert corpus.txt out": "corpus.txt: not a model",
    "bench train nosuch": "'nosuch'",
    "bench train first --steps 0": "--steps: want at least 1, got '0'",
    "bench trian": "'train'",
    "list x": "list: no section and no preset begins with 'x'",
    "frobnicate": "'frobnicate'",
    "gnerate": "'generate'",
}
CASES = {f"train & {words}": (train(words), want) for words, want in TRAIN.items()}
CASES |= {words: (words.split(), want) for words, want in VERBS.items()}


def test_the_table_is_long_enough() -> None:
    assert len(CASES) >= 120


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_input_is_one_line(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, want = CASES[name]
    if "--regex" in words or "--reference" in words:
        pytest.importorskip("llguidance" if "--regex" in words else "sacrebleu")
    monkeypatch.chdir(place)
    before = set(os.listdir())
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.err.startswith("heddle: ") and said.err.count("\n") == 1, said.err
    assert want in said.err and "Traceback" not in said.err
    assert "mamba" not in name or "did you mean" not in said.err
    assert {file for file in Path("runs").glob("*") if file.name != ".data"} == set()
    assert set(os.listdir()) - before <= {"runs"}


@pytest.mark.parametrize(
    ("name", "wish"),
    [("mamba", None), ("gpu", None), ("data", None), ("frist", "first"), ("oen", None), ("gpt-2", "gpt2")],
)
def test_only_close_words_are_suggested(name: str, wish: str | None) -> None:
    from heddle.core import nearest

    assert nearest(name, ["llama", "cpu", "auto", ".data", "first", "gpt2", "marian"]) == wish
    assert nearest("gpu", ["auto", "cpu", "cuda:0", "cuda:1"]) == "cuda:0"

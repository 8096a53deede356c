"""Wrong inputs of all commands: one line that names what was typed, the right code, nothing left behind."""

import errno
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cli import wrong_labels
from cli.runs import save_run

from heddle.cli.main import command, main

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
    "data=corpus.txt",
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
    "plain.py": "x = 1\n",
    "broken.py": "def f(:\n",
    "raises.py": "1 / 0\n",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    save_run(folder / "run")
    wrong_labels.save_encoders(folder)
    for name, text in (FILES | wrong_labels.FILES).items():
        (folder / name).write_text(text)
    (folder / "run" / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 2.0}) + "\n")
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 40)
    (folder / "folder").mkdir()
    (folder / "folder" / "kept").write_text("")
    return folder


def train(words: str) -> list[str]:
    given = {word.partition("=")[0] for word in words.split("&")}
    small = [word for word in SMALL if word.partition("=")[0] not in given]
    return ["train", "first", *small, *words.split("&")]


# Each case: the words (of `train`: what is added to a small run, parted by &), and what the message must have.
TRAIN = {
    "model.width=0": "model.width: want at least 1, got 0",
    "model.layers=0": "model.layers: want at least 1, got 0",
    "model.layers=1000000000": "model.layers: want 1 to 10,000, got 1000000000",
    "model.heads=0": "model.heads: want at least 1, got 0",
    "model.heads=3": "model.heads: want a divisor of the width 16, got 3",
    "model.width=-16": "model.width: want at least 1, got -16",
    "model.context=0": "model.context: want at least 1, got 0",
    "model.vocab=10": "model.vocab: want at least the tokenizer's 257, got 10",
    "model.width=[1]": "model.width: want a whole number, got [1]",
    "model.widht=32": "did you mean 'width'?",
    "model.dropout=2": "dropout",
    "model=mamba": "model: want the name of a preset (heddle list), got 'mamba'",
    "model.name=gpt-2": "did you mean 'gpt2'?",
    "tokenizer={kind: bpe, least: -1}": "least: want at least 1, got -1",
    "tokenizer={kind: word, least: 0}": "least: want at least 1, got 0",
    "tokenizer={kind: bep}": "did you mean 'bpe'?",
    "tokenizer={kind: bpe, vocab: 100}": "vocab: want at least 257, got 100",
    "tokenizer={kind: bpe, vocab: 300}&model.vocab=280": "model.vocab: want at least the tokenizer's 300, got 280",
    "training.micro_batch=3&training.batch=8": "training.micro_batch: want a divisor of training.batch, 8, got 3",
    "training.micro_batch=100": "training.micro_batch: want at most training.batch, 2, got 100",
    "training.schedule.warmup=1000000": "training.schedule.warmup: want less than training.steps, 2, got 1000000",
    "training.schedule.warmup=-1": "training.schedule.warmup: want 0 or more steps, got -1",
    "training.batch=0": "training.batch: want at least 1, got 0",
    "training.steps=0": "training.steps: want at least 1, got 0",
    "training.steps=many": "training.steps: want a whole number, got 'many'",
    "training.setps=3": "did you mean 'steps'?",
    "training.clip=-1": "training.clip: want above 0",
    "training.optimizer=adam": "did you mean 'adamw'?",
    "training.optimizer.learning_rate=-1": "training.optimizer.learning_rate: want 0 or more, got -1",
    "training.optimizer.learning_rate=fast": "training.optimizer.learning_rate: want a number, got 'fast'",
    "training=3": "training: want a",
    "objective=masked_token": "objective: want an encoder for masked_token",
    "objective={kind: next_tokn}": "did you mean 'next_token'?",
    "rows={kind: pairs}": "want encoder_decoder, because rows are pairs of source and target",
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
    "hardware.dtype=flaot32": "did you mean 'float32'?",
    "hardware.dtype=float16": "hardware.dtype: float16 needs loss scaling, which is not supported; use bfloat16",
    "hardware.compile=maybe": "hardware.compile: want one of auto, on, graphs, off, got 'maybe'",
    "hardware.workers=-1": "hardware.workers: want at least 0, got -1",
    "name=../x": "name: want a plain folder name, got '../x'",
    "name=a/b": "name: want a plain folder name, got 'a/b'",
    "frozen=[nosuch]": "nosuch",
    "width": "want key=value, got 'width'",
    "=3": "want key=value, got '=3'",
    "format=7": "format",
    "training.batch=8&training.batch=9": "training.batch: given twice",
    "training.steps=1.5": "training.steps: want a whole number, got 1.5",
    "training.steps=-1": "training.steps: want at least 1, got -1",
    "training.schedule=nosuch": "training.schedule.kind: want one of constant, cosine",
    "training.schedule.floor=2": "training.schedule.floor: want 0 to 1, of the peak rate, got 2.0",
    "training.average=nosuch": "training.average.kind: want one of",
    "objective.smoothing=2": "objective.smoothing: want at least 0 and below 1, got 2.0",
    "keep.best=-1": "keep.best: want at least 0, got -1",
    "validation_rows=0": "validation_rows: want at least 1, got 0",
    "stop.minutes=-1": "stop.minutes: want at least 0, got -1.0",
    "tensorboard=maybe": "tensorboard: want true or false, got 'maybe'",
    "hardware.threads=0": "hardware.threads: want at least 1, got 0",
    "hardware.threads=99999": "hardware.threads: want at most 1,024, got 99999",
    "hardware.workers=99999": "hardware.workers: want at most 1,024, got 99999",
    "callbacks=[nosuch]": "callbacks.0: want a kind that your own code defines (--use FILE.py), got 'nosuch'",
    "callbacks=3": "callbacks: want a list, got 3",
    "adapters=nosuch": "adapters.kind: want one of lora, got 'nosuch'",
    "use=[nosuch.py]": "nosuch.py: no such file",
    "use=raises.py": "raises.py, line 1: ZeroDivisionError",
    "data=": "data: want a file, a folder or a pattern such as '*.txt', got ''",
    "data=binary.txt": "1 binary, the first at",
    "data={sources: []}": "data.sources: want at least one",
    "data={sources: [{kind: nosuch, path: x}]}": "data.sources.0.kind: want one of",
    "data={sources: [{kind: text}]}": "data.sources.0.path: want a value",
    "data.template=nosuch": "data.template: want null, because no source is of the kind chat, got 'nosuch'",
    "tokenizer={kind: bpe, vocab: -1}": "tokenizer.vocab: want at least 257, got -1",
    "tokenizer={kind": "tokenizer: want valid YAML",
    "model=": "model: want the name of a preset",
    "model.kind=nosuch": "model.kind: want one of encoder, encoder_decoder, language_model, preset, got 'nosuch'",
}
GENERATE = "generate a -m run "
VERBS = {
    "train mamba": "no recipe, config file or run is called 'mamba'; recipes: ",
    "train frist": "did you mean 'first'?",
    "train nosuch.yaml": "nosuch.yaml: no such file",
    "train corpus.txt": "heddle train data=corpus.txt",
    "train empty.yaml": "empty.yaml: want a mapping of settings, as heddle train --print writes it, found",
    "train list.yaml": "list.yaml: want a mapping of settings",
    "train open.yaml": "in line 3, column 10",
    "train tab.yaml": "in line 2, column 1",
    "train key.yaml": "did you mean 'model'?",
    "train twice.yaml": "seed",
    "train first data=nosuch.txt": "nosuch.txt: no such file",
    "train first data=empty.txt training.steps=1": "empty",
    "train --prnt": "no such option: --prnt; did you mean '--print'?",
    "train translate data=corpus.txt tokenizer.vocab=300": "data: want pairs of source and target",
    "train folder": "folder",
    "train data=corpus.txt init=nosuch": "no run is called 'nosuch'",
    "train data=corpus.txt init=corpus.txt": "corpus.txt: not a model",
    "train data=corpus.txt init=run model.width=8": "model.width: cannot be set together with init",
    GENERATE + "--device gpu": "--device: want one of auto, cpu",
    GENERATE + "--weights int3": "--weights: want one of auto, float32, bfloat16, int8, int4, got 'int3'; did you mean",
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
    GENERATE + "--beams 2 --temperature 1": "--temperature: not used by beam search, which does not sample",
    GENERATE + "--samples 0": "--samples: want at least 1, got 0",
    GENERATE + "--samples 2": "--samples: greedy decoding gives one text; set --temperature to 1 to sample",
    GENERATE + "--samples 1000000 --temperature 1": "--samples: want at most 1,024, got 1000000",
    GENERATE + "--groups 3": "--groups: only used by beam search; set --beams to 2 or more",
    GENERATE + "--regex (": "--regex: want a pattern that can be followed (unclosed group), got '('",
    GENERATE + "--schema {": "--schema: want valid JSON",
    GENERATE + "--schema nosuch.json": "nosuch.json: no such file",
    GENERATE + "--grammar nosuch.lark": "nosuch.lark: no such file",
    GENERATE + "--bias x": "--bias: want a token and a number, such as ' word=-5', got 'x'",
    GENERATE + "--logprobs 2": "--logprobs requires --json",
    GENERATE + "--cache big": "--cache: want one of full, int8, got 'big'",
    GENERATE + "--compile yes": "--compile: want one of auto, on, off, got 'yes'",
    GENERATE + "--draft nosuch": "'nosuch'",
    GENERATE + "--batch 0": "--batch: want at least 1, got '0'",
    GENERATE + "--seconds 0": "--seconds: want above 0, got 0.0",
    GENERATE + "--repetition 0": "--repetition: want from 0.001 to 1000",
    GENERATE + "--file two.txt": "--file: give prompts as arguments or in a file, not both",
    GENERATE + "--modle x": "no such option: --modle; did you mean '--model'?",
    "generate -m run --file nosuch.txt": "nosuch.txt: no such file",
    "generate -m run --file empty.txt": "empty.txt: an empty file; want one line or more",
    "generate -m run --file folder": "folder: want a file, found a folder",
    "generate -m nosuch": "no run is called 'nosuch'",
    "generate -m corpus.txt": "corpus.txt: not a model",
    "generate -m owner/name": "models are not downloaded from a hub",
    "generate --records": "--records requires --file",
    "memory build two.txt -m run -o new --precision int8": "precision: want float16 or float32, got 'int8'",
    "memory build two.txt -m run -o new --limit 0": "most: want at least 1, got 0",
    "memory build nosuch.txt -m run -o new": "nosuch.txt",
    "memory build -m run -o new": "data: want a path",
    "memory build two.txt -m run -o run": "run: want a free path for the datastore",
    "memory build two.txt -m run -o new --window 1000": "window: want at most the model's context of 48",
    "memory tune nosuch two.txt -m run": "nosuch: want the folder of a datastore",
    "memory index run": "run: want the folder of a datastore",
    "memory index run --probes 0": "probes: want at least 1, got 0",
    "memory bulid": "no such command: 'bulid'; did you mean 'build'?",
    "evaluate -m run --data two.txt --memory nosuch": "nosuch: want the folder of a datastore",
    "evaluate -m run --data two.txt --memory-k 3": "--memory-k requires --memory",
    "score two.txt -m run --memory run": "run: want the folder of a datastore",
    "generate x -m run --memory-weight 0.5": "--memory-weight requires --memory",
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
    "transcribe nosuch.wav -m run": "nosuch.wav: no such file",
    "transcribe two.txt -m run": "transcribe: want a model that reads sounds, got one that reads ids",
    "transcribe two.txt --n-best 2 -m run": "--n-best above 1 requires --json",
    "transcribe two.txt --n-best 0 -m run": "--n-best: want at least 1",
    "transcribe two.txt --batch 0 -m run": "--batch: want at least 1, got 0",
    "transcribe two.txt --reference nosuch -m run": "nosuch: no such file",
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
    "compare nosuch": "no suite is called 'nosuch'; suites: narang, pocket",
    "compare pocket nosuch": "suite pocket: no variant is called 'nosuch'",
    "compare pocket seeds=0": "seeds: want at least 1, got 0",
    "compare pocket budget.steps=0": "budget.steps: want at least 1, got 0",
    "compare pocket arms=nosuch": "arms.0: want one of tokens, rate, time, got 'nosuch'",
    "compare first norm:nosuch": "want one of layer_norm, none, ",
    "compare pocket --processes 0": "--processes: want at least 1, got '0'",
    "compare pocket --executor nosuch": "--executor: want one of local, ray, got 'nosuch'",
    "compare nosuch.yaml": "nosuch.yaml: no such file",
    "scale nosuch": "no recipe or config file is called 'nosuch'; recipes: first, ",
    "scale nosuch.yaml": "nosuch.yaml: no such file",
    "scale first budgets=1e9,2e9": "budgets: want at least 3, each once, got '1e+09, 2e+09'",
    "scale first seeds=0": "seeds: want at least 1, got 0",
    "scale first warmup=0.5": "warmup: want 0 to 0.05, of the steps, got 0.5",
    "scale first model:nosuch": "model:nosuch: no preset is called 'nosuch'",
    "scale first --processes 0": "--processes: want at least 1, got '0'",
    "scale first --report": "holds no runs of a study of scaling yet",
    "explain": "missing argument: TEXT",
    "explain a -m nosuch": "no run is called 'nosuch'",
    "explain a -m run --what gats": "patching, beams, trace, got 'gats'; did you mean",
    "explain a -m run --what gates": "gates: want a recurrent model, got one without cells",
    "explain a -m run --beams 0": "beams: want at least 1, got 0",
    "explain a -m run --html folder": "folder: want a file, found a folder",
    "explain a -m run --json nosuch/out.json": "nosuch: no such folder",
    "explain a -m run --html two.txt": "two.txt: exists, and heddle did not write it",
    "explain a -m run --instead b": "want it with attribution or patching",
    "explain a -m run --output b": "want none, because only an encoder-decoder writes an output",
    "show nosuch": "no preset, config file or run is called 'nosuch'; presets: ",
    "show gpt-2": "did you mean 'gpt2'?",
    "show bad.json": "bad.json: want valid JSON",
    "show array.json": "array.json: want a mapping of settings",
    "show open.yaml": "in line 3, column 10",
    "show": "missing argument: MODEL|PRESET",
    "show gpt2 --jsn": "no such option: --jsn; did you mean '--json'?",
    "tokenizer train nosuch.txt": "nosuch.txt: no such file",
    "tokenizer train corpus.txt --kind bep": "did you mean 'bpe'?",
    "tokenizer train corpus.txt vocab=x -o t.json": "vocab: want a whole number, got 'x'",
    "tokenizer train corpus.txt vocab=-5 -o t.json": "vocab: want at least 257, got -5",
    "tokenizer train corpus.txt vcoab=5 -o t.json": "did you mean 'vocab'?",
    "tokenizer train corpus.txt --kind word least=-1 -o t.json": "least: want at least 1, got -1",
    "tokenizer train corpus.txt -o corpus.txt": "corpus.txt: exists, and heddle did not write it",
    "tokenizer train empty.txt -o t.json": "empty.txt",
    "tokenizer trian": "did you mean 'train'?",
    "data prepare nosuch.txt": "nosuch.txt: no such file",
    "data prepare corpus.txt --tokenizer nosuch.json": "nosuch.json: no such file",
    "data prepare corpus.txt --tokenizer nosuch": "'nosuch'",
    "data prepare corpus.txt --tokenizer two.txt": "two.txt",
    "data prepare corpus.txt split.fraction=3": "split.fraction: want above 0 and below 1, got 3.0",
    "data prepare corpus.txt -o folder": "folder: exists and is not prepared data",
    "convert nosuch out": "'nosuch'",
    "convert run": "missing argument: DST",
    "convert run out --to onnx": "--to: want one of hf, heddle, peft, got 'onnx'",
    "convert run out --dtype flaot32": "did you mean 'float32'?",
    "convert run folder": "folder: exists already",
    "convert corpus.txt out": "corpus.txt: not a model",
    "bench train nosuch": "'nosuch'",
    "bench train first --steps 0": "--steps: want at least 1, got '0'",
    "bench trian": "did you mean 'train'?",
    "list x": "list: no section and no preset begins with 'x'",
    GENERATE + "--use nosuch.py": "nosuch.py: no such file",
    GENERATE + "--use broken.py": "broken.py, line 1: SyntaxError",
    GENERATE + "--seed x": "--seed: want a whole number, got 'x'",
    GENERATE + "--typical 0": "--typical: want more than 0 and at most 1, got 0.0",
    GENERATE + "--contrast 2": "--contrast: want 0 to 1, got 2.0",
    GENERATE + "--frequency nan": "--frequency: want a number, such as 0.5, got nan",
    GENERATE + "--stop ''": "--stop: want a text or a list of texts, none of them empty",
    GENERATE + "--regex a --schema {}": "--schema: cannot be combined with --regex",
    GENERATE + "--require ''": "--require: want phrases of one character or more",
    GENERATE + "--beams 2 --draft lookup": "--draft: want sampling or greedy decoding, got beams",
    GENERATE + "--min-tokens -1": "--min-tokens: want at least 0, got -1",
    GENERATE + "--length-penalty 99 --beams 2": "--length-penalty: want a number from -10 to 10, such as 1, got 99.0",
    GENERATE + "--no-repeat-ngram -1": "--no-repeat-ngram: want at least 0, got -1",
    GENERATE + "--beams 2 --early-stopping soon": "--early-stopping: want one of never, heuristic, full, got 'soon'",
    GENERATE + "--groups 3 --beams 4 --diversity 1": "--groups: want a number that divides the 4 beams, got 3",
    GENERATE + "--logprobs -1 --json": "--logprobs: want at least 0, got -1",
    GENERATE + "--beams": "--beams: want a value, got none",
    GENERATE + "--nope": "no such option: --nope",
    GENERATE + "--json=3": "--json: takes no value",
    "generate a -m": "-m: want a value, got none",
    "chat -m nosuch": "no run is called 'nosuch'",
    "chat -m run --once": "--once: want a value, got none",
    "chat -m run --once a --template plain --max-tokens 0": "--max-tokens: want at least 1, got 0",
    "chat -m run --tempature 3": "no such option: --tempature; did you mean '--temperature'?",
    "score two.txt -m run --stride 0": "--stride: want 1 to the window of 48, got 0",
    "score two.txt -m run --hide x": "--hide: want one of token, rest, word, got 'x'",
    "score two.txt -m run --window x": "--window: want a whole number, got 'x'",
    "rescore": "missing argument: NBEST.jsonl",
    "rescore folder --no-model": "folder: want a file, found a folder",
    "rescore lists.jsonl --no-model --tune nosuch": "nosuch: no such file",
    "rescore lists.jsonl --no-model --weight 0.3": "--weight has no effect with --no-model",
    "rescore lists.jsonl --no-model --ending nosuch": "--ending: want one of document, line, none, got 'nosuch'",
    "correct two.txt --words two.txt -m nosuch": "no run is called 'nosuch'",
    "correct two.txt --no-model --words folder": "folder: want a file, found a folder",
    "correct two.txt --no-model --words two.txt --normal case=x": "--normal has no effect with --no-model",
    "correct --learn x.json --pairs pairs.txt --json": "--json has no effect with --learn",
    "evaluate -m run --data two.txt --stride 0": "--stride: want 1 to the window of 48, got 0",
    "evaluate -m run --data two.txt --carry --window 3": "--carry: cannot be combined with --window or --stride",
    "evaluate -m run --task x": "--task: want one of answer, blimp, classify, dialogue, masked_words",
    "evaluate -m run --task blmip --data two.txt": "did you mean 'blimp'?",
    "evaluate -m run --task blimp": "--data: want a file for the task blimp",
    "evaluate -m run --task blimp --data nosuch.txt": "nosuch.txt: no such file",
    "evaluate -m run --task blimp --data lists.jsonl": "lists.jsonl:1: want a sentence in each of sentence_good and",
    "evaluate -m run --task blimp --data empty.txt": "empty.txt: want one example or more, found none",
    "evaluate -m run --task blimp --data two.txt --window 3": "--window has no effect with --task",
    "evaluate -m run --task tag --data tags.jsonl": "tags.jsonl:1: want a tag for each of 2 words, found 1",
    "evaluate -m run extra": "unexpected argument: extra",
    "translate nosuch.txt": "nosuch.txt: no such file",
    "translate two.txt --choose nosuch": "--choose: want one of beams, mbr, got 'nosuch'",
    "translate two.txt --batch 0": "--batch: want at least 1, got 0",
    "translate two.txt --n-best 3 --beams 2 --json": "--n-best: want 1 to the 2 beams, got 3",
    "translate two.txt --n-best 2": "--n-best above 1 requires --json",
    "translate two.txt --choose mbr --utility nosuch": "--utility: want one of bleu, chrf, words, got 'nosuch'",
    "translate two.txt --choose mbr --temperature -1": "--temperature: want above 0, got -1.0",
    "show folder": "folder: not a run",
    "show corpus.txt": "corpus.txt: not a model",
    "show empty.yaml": "empty.yaml: want a mapping of settings",
    "show gpt2 extra": "unexpected argument: extra",
    "check": "missing argument: FILE.py|MODULE",
    "check nosuch.py": "nosuch.py: no such file",
    "check nosuchmodule": "no module of Python code is called 'nosuchmodule'",
    "check plain.py": "plain.py: defines no part",
    "check broken.py": "broken.py, line 1: SyntaxError",
    "check raises.py": "raises.py, line 1: ZeroDivisionError",
    "check corpus.txt": "'corpus.txt'",
    "tokenizer train corpus.txt vocab": "want key=value, got 'vocab'",
    "tokenizer train corpus.txt -o nosuch/t.json": "nosuch: no such folder",
    "tokenizer train corpus.txt --kind word vocab=1 -o t.json": "vocab: want at least 3, got 1",
    "tokenizer train corpus.txt vocab=9999 -o t.json": "vocab: want at most 323, all that this text allows, got 9999",
    "data prepare": "missing argument: DATA",
    "data prepar": "no such command: 'prepar'; did you mean 'prepare'?",
    "data prepare corpus.txt split=nosuch": "split.kind: want one of auto, file, hash, tail, got 'nosuch'",
    "data prepare corpus.txt nosuch=1": "nosuch: want one of sources, split",
    "data prepare empty.txt": "1 empty, the first at empty.txt:1",
    "convert run out --family nosuch": "--family: want one of gpt2",
    "convert run out --family lama": "did you mean 'llama'?",
    "convert run out --family mamba": "got 'mamba'",
    "convert run out --unpickle --to hf": "--unpickle keeps the format; leave out --to",
    "convert run out --unpickle": "run: want pytorch_model.bin",
    "bench train first training.setps=2": "did you mean 'steps'?",
    "bench train first model.width=0": "model.width: want at least 1, got 0",
    "bench train first --warm 0": "--warm: want at least 1, got '0'",
    "list presest": "did you mean 'presets'?",
    "list runs extra": "unexpected argument: extra",
    "list --use nosuch.py": "nosuch.py: no such file",
    "plot": "runs: holds no run yet; type: heddle train",
    "plot nosuch": "plot: no run with a metrics.jsonl is called 'nosuch'",
    "plot folder": "plot: no run with a metrics.jsonl is called 'folder'",
    "plot run --metric nosuch": "nosuch",
    "plot run --svg corpus.txt": "corpus.txt: exists, and heddle did not write it",
    "plot run --svg folder": "folder: ",
    "plot run --svg nosuch/x.svg": "nosuch",
    "help nosuchkey": "help: no key is called 'nosuchkey'",
    "help training.setps": "did you mean 'training.steps'?",
    "help model.widht": "did you mean 'model.width'?",
    "help --all": "no such option: --all",
    "--versoin": "no such option: --versoin; did you mean '--version'?",
    "frobnicate": "no such command: 'frobnicate'",
    "gnerate": "did you mean 'generate'?",
}
CASES = {f"train & {words}": (train(words), want) for words, want in TRAIN.items()}
CASES |= {words: (shlex.split(words), want) for words, want in (VERBS | wrong_labels.VERBS).items()}


def test_the_table_has_every_command() -> None:
    assert len(CASES) >= 120
    for verb in command().commands:
        assert sum(words[0] == verb for words, _ in CASES.values()) >= 3, verb


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
    assert ("did you mean" in said.err) == ("did you mean" in want), said.err
    check_nothing_is_left(before)


def check_nothing_is_left(before: set[str]) -> None:
    """No file, no folder and no run; an empty folder for runs and a cache of tokens are none."""
    assert {file for file in Path("runs").glob("*") if file.name != ".data"} == set()
    assert set(os.listdir()) - before <= {"runs"}


def without(*modules: str) -> "Patch":
    return lambda patch: [patch.setitem(sys.modules, module, None) for module in modules]


def failing(place: str, error: BaseException) -> "Patch":
    def fail(*_: object, **__: object) -> None:
        raise error

    return lambda patch: patch.setattr(place, fail)


Patch = Callable[[pytest.MonkeyPatch], object]
FULL = OSError(errno.ENOSPC, "No space left on device")
MACHINE: dict[str, tuple[list[str], Patch, str]] = {  # what the machine lacks
    "no llguidance": (["generate", "a", "-m", "run", "--regex", "a"], without("llguidance"), "heddle[grammar]"),
    "no sacrebleu": (
        ["translate", "two.txt", "--reference", "two.txt"],
        without("sacrebleu.metrics.bleu"),
        "heddle[eval]",
    ),
    "no words": (["correct", "two.txt", "--no-model"], without("wordfreq", "symspellpy"), "heddle[spell]"),
    "no tensorboard": (train("tensorboard=true"), without("torch.utils.tensorboard", "tensorboard"), "heddle[track]"),
    "no memory": (train("seed=1"), failing("heddle.training.run.set_up", MemoryError()), "out of memory"),
    "no GPU memory": (
        train("seed=1"),
        failing("heddle.training.run.set_up", torch.OutOfMemoryError("x")),
        "out of memory",
    ),
    "a full disk": (
        ["tokenizer", "train", "corpus.txt", "-o", "t.json"],
        failing("os.fsync", FULL),
        "t.json: no space left on the device",
    ),
    "a full disk for a model": (
        ["convert", "run", "deep/out"],
        failing("os.fsync", FULL),
        "no space left on the device",
    ),
}


@pytest.mark.parametrize("name", MACHINE)
def test_a_fault_of_the_machine_is_one_line(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, patch, want = MACHINE[name]
    monkeypatch.chdir(place)
    before = set(os.listdir())
    patch(monkeypatch)
    assert main(words) == 3
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("heddle: ")]
    assert len(said) == 1 and want in said[0], said
    check_nothing_is_left(before)


@pytest.mark.parametrize(
    ("name", "wish"),
    [
        ("mamba", None),
        ("gpu", None),
        ("data", None),
        ("frist", "first"),
        ("oen", "one"),
        ("ter", None),
        ("gpt-2", "gpt2"),
    ],
)
def test_only_close_words_are_suggested(name: str, wish: str | None) -> None:
    from heddle.core import nearest

    assert nearest(name, ["llama", "cpu", "auto", ".data", "first", "gpt2", "marian", "one", "wer"]) == wish
    assert nearest("gpu", ["auto", "cpu", "cuda:0", "cuda:1"]) == "cuda:0"

"""Wrong inputs of labelled data and of the commands that read labels: rows of the table in test_wrong_table.py."""

import json
from pathlib import Path

from cli.runs import config, save_run

OUTPUTS = {
    "classifier": {"kind": "sequence_class", "classes": 2, "labels": ["a", "b"]},
    "tagger": {"kind": "token_class", "classes": 2, "labels": ["B-X", "O"]},
    "reader": {"kind": "span"},
}
ASKED = {"id": "q", "question": "who?", "answers": [{"text": "Ann", "answer_start": 2}]}
FILES = {
    "columns.csv": "text,stars,when\nfine,1,2\nbad,2,2\n",
    "hole.csv": "text,label\nfine,a\nbad,\n",
    "no_text.csv": "text,label\nfine,a\n,b\n",
    "one_class.csv": "text,label\n" + "".join(f"text {i},a\n" for i in range(30)),
    "header.csv": "text,label\n",
    "nothing.csv": "",
    "classes.csv": "text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(40)),
    "unknown.csv": "text,label\nfine,c\n",
    "numbers.csv": "text,pair,score\na,b,high\n",
    "lists.csv": "tokens,tags\na b,O O\n",
    "ragged.conll": "Ann I-PER\nis\n\n",
    "words.conll": "Ann\nis\n\n",
    "one.conll": "a B-X\n\n",
    "tags.jsonl": json.dumps({"tokens": ["Ann", "is"], "tags": ["O"]}) + "\n",
    "moved.json": json.dumps({"data": [{"paragraphs": [{"context": "It was Ann.", "qas": [ASKED]}]}]}),
    "qa.jsonl": "".join(json.dumps({"text": f"{who}?", "target": "out", "from": who}) + "\n" for who in ("Ann", "Bob")),
    "unedited.jsonl": json.dumps({"text": "a", "target": "b"}) + "\n",
    "articles.json": json.dumps({"data": [{"title": "t"}], "paragraphs": 1}),
}
SMALL = "tokenizer='{kind: byte}' model.layers=1 model.width=16 model.heads=2 training.steps=2 hardware.device=cpu"
HELD_OUT = "data.split='{kind: file, source: {kind: csv, path: unknown.csv}}'"
TRAIN = {
    "classify data=columns.csv": "columns.csv: which column holds the label? It has text, stars, when; name it: ",
    "classify data=hole.csv": "hole.csv:3: want a label in column 'label', found an empty field",
    "classify data=no_text.csv": "no_text.csv:3: want text in column 'text', found an empty field",
    "classify data=one_class.csv": "one_class.csv:2: want texts of two classes or more, found only 'a'",
    "classify data=header.csv": "no documents to learn from: 0 seen, 0 kept",
    "classify data=nothing.csv": "nothing.csv: which column holds the text? It has none",
    "classify data=corpus.txt": "data.sources.0: want one with classes: CSV, TSV or JSON lines",
    f"classify data=classes.csv {HELD_OUT}": "unknown.csv:2: label 'c' is not among those of the training split: a, b",
    "classify data=classes.csv objective.class_weights='{c: 1}'": "objective.class_weights: want a number for each of",
    "classify data=classes.csv data.sources.0.label=nosuch": "classes.csv: no column 'nosuch'; the header has text",
    "classify data=classes.csv rows.length=2": "rows.length: want at least 3, because a row has special tokens, got 2",
    "classify data=classes.csv rows.kind=packed": "rows.kind: want examples, because the objective is classify",
    "classify data=classes.csv training.smoothing=1": "training.smoothing",
    "tag data=ragged.conll": "ragged.conll:2: want 2 columns, as in the lines before, found 1",
    "tag data=words.conll": "words.conll:1: want a word and a tag, in columns 0 and -1, found 1",
    "tag data=tags.jsonl": "tags.jsonl:1: want a tag for each of 2 words, found 1",
    "tag data=lists.csv": "lists.csv: csv has no lists, so no tags; want JSON lines or CoNLL",
    "answer data=moved.json": "moved.json:q: answer 'Ann' is not at 2 of its context, where ' wa' is",
    "answer data=articles.json": "articles.json: want data, each with paragraphs, each with a context and qas",
    "answer data=array.json": "array.json:1: want a JSON object, found '1'",
    "similarity data=numbers.csv": "numbers.csv:2: want a number in column 'score', found 'high'",
    "similarity data=classes.csv": "classes.csv: which column holds the pair? It has text, label",
    "summarize data=columns.csv": "columns.csv: which column holds the target? It has text, stars, when",
    "retrieve_and_edit data=columns.csv": "columns.csv: which column holds the target? It has text, stars, when",
    "retrieve_and_edit data=qa.jsonl model.head=adaptive": "model.head",
    "retrieve_and_edit data.sources.0.path=unedited.jsonl": "unedited.jsonl:1: want text in column 'prototype', found",
    "first data=corpus.txt model.head=pointer_generator": "head: want one that does not copy, because there",
    "embed data=corpus.txt training.micro_batch=8": "training.micro_batch: want null on one process, because",
    "embed data=corpus.txt model.dropout=0": "model.dropout: want above 0, because two passes must differ, got 0.0",
}
VERBS = {f"train {words} {SMALL}": want for words, want in TRAIN.items()} | {
    "classify nosuch.txt -m classifier": "nosuch.txt: no such file",
    "classify empty.txt -m classifier": "empty.txt: an empty file; want one line or more",
    "classify header.csv -m classifier": "header.csv: want one row or more, found none",
    "classify two.txt -m run": "got a language model; to prompt it: give labels (--labels good,bad)",
    "classify two.txt -m tagger": "want an encoder with an output of the kind sequence_class",
    "classify two.txt -m classifier --reference nosuch.txt": "nosuch.txt: no such file",
    "classify two.txt -m classifier --reference unknown.csv": "unknown.csv: want a label for each line that was read",
    "classify two.txt -m classifier --reference empty.txt": "empty.txt: want a label in each line, found none",
    "tag nosuch.txt -m tagger": "nosuch.txt: no such file",
    "tag two.txt -m classifier": "want an encoder with an output of the kind token_class; it has: sequence_class",
    "tag ragged.conll -m tagger": "ragged.conll:2: want 2 columns, as in the lines before, found 1",
    "tag two.txt -m tagger --reference ragged.conll": "ragged.conll:2: want 2 columns",
    "tag two.txt -m tagger --reference one.conll": "one.conll: want a label for each line that was read",
    "answer two.txt -m reader": "two.txt: want JSON lines with question and context, a SQuAD file, or --question",
    "answer moved.json -m reader": "moved.json:q: answer 'Ann' is not at 2 of its context",
    "answer two.txt -q who? -m tagger": "want an encoder with an output of the kind span; it has: token_class",
    "answer empty.txt -q who? -m reader": "empty.txt: want a text that may answer the question, found none",
    "answer two.txt -q '' -m reader": "--question: want a question, got ''",
    "summarize nosuch.txt": "nosuch.txt: no such file",
    "summarize two.txt -m run": "summarize: want an encoder-decoder, trained on pairs; this model is a language model",
    "summarize empty.txt --whole -m run": "empty.txt: want a text to summarize, found none",
    "summarize two.txt --batch 0": "--batch: want at least 1, got 0",
    "serve --host 0.0.0.0 -m run": "host: 0.0.0.0 can be reached by others; want --api-key, or a loopback address",
    "serve --cors-origin * -m run": "cors-origin: want origins such as https://example.org, got *",
    "serve --invariant maybe -m run": "invariant: want one of auto, on, off, got 'maybe'",
    "serve --waiting 0": "--waiting: want at least 1, got '0'",
    "serve --host 0.0.0.0 --api-key= -m run": "api-key: want ASCII characters without spaces, got an empty key",
    "serve --slots 0": "--slots: want at least 1, got '0'",
    "embed nosuch.txt -m classifier": "nosuch.txt: no such file",
    "embed folder -m classifier": "folder: want a file, found a folder",
    "embed two.txt -m nosuch": "no run is called 'nosuch'",
    "fill nosuch.txt -m run": "nosuch.txt: no such file",
    "fill two.txt -m classifier": "want an encoder that predicts masked tokens",
    "fill two.txt -m classifier --top 0": "--top: want at least 1, got 0",
    "retrieve": "missing argument: PAIRS|INDEX",
    "retrieve nosuch.jsonl": "nosuch.jsonl: no such file",
    "retrieve two.txt": "two.txt: want pairs as JSON lines, CSV or TSV, got text",
    "retrieve folder": "folder: want the folder of an index, found no index.json",
    "retrieve columns.csv": "columns.csv: which column holds the target? It has text, stars, when",
    "retrieve qa.jsonl --group frm": "qa.jsonl:1: want the name of a group in column 'frm', found no such field",
    "retrieve qa.jsonl --group score": "--group: want another name than score",
    "retrieve qa.jsonl -k 0": "-k: want at least 1, got 0",
    "retrieve qa.jsonl -k 2 --edit run": "-k: want 1, or --json, so that replies of one text can be told apart, got 2",
    "retrieve qa.jsonl --by nosuch": "no run is called 'nosuch'",
    "retrieve qa.jsonl --edit run": "--edit: want an encoder-decoder, trained on prototypes, got 'a language model'",
    "retrieve qa.jsonl nosuch.txt": "nosuch.txt: no such file",
    "retrieve qa.jsonl empty.txt": "empty.txt: an empty file; want one line or more",
    "retrieve qa.jsonl -o corpus.txt": "corpus.txt: exists, and heddle did not write it",
    "retrieve qa.jsonl --index folder": "folder: want a free path for the index, found something there",
    "fill two.txt -m run": "fill: want an encoder, such as BERT, got a language model",
}


def save_encoders(folder: Path) -> None:
    """Save small encoders with outputs for labels."""
    for name, output in OUTPUTS.items():
        save_run(folder / name, config("bert-base", edits={"outputs": [output]}))

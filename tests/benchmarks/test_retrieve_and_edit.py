"""Retrieve-and-edit's benchmark: nothing of a held-out dialogue or first turn is indexed; BLEU is sacrebleu's."""

import json
import lzma
import random
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripts import script

from heddle.tasks.retrieval import Entry, open_index

bench = script("retrieve_and_edit")
DATA = Path(__file__).parents[3] / "shared" / "data"


def made_up(count: int) -> list[dict[str, Any]]:
    """Return contexts of which some share a first turn, and some a dialogue."""
    draw = random.Random(0)
    turns = [f"how is {a} {b}?" for a in ("your", "the", "my") for b in ("cat", "dog", "hat", "day", "job")]
    return [
        {
            "text": bench.TURN.join((first := draw.choice(turns) + "!" * draw.randint(0, 3), draw.choice(turns))),
            "replies": [f"reply {n} of {number}" for n in range(bench.REPLIES)],
            "dialogue": str(number - draw.randint(0, 1)),
            "first": first,
        }
        for number in range(count)
    ]


def leaks(entries: list[Entry], held_out: list[dict[str, Any]]) -> list[str]:
    """Return the ids of what is in an index and must not be."""
    dialogues, firsts = ({row[name] for row in held_out} for name in ("dialogue", "first"))
    pairs = {f"{row['dialogue']}:{n}" for row in held_out for n in range(len(row["replies"]))}
    return [
        one.origin for one in entries if one.origin in pairs or one.groups[0] in dialogues or one.groups[1] in firsts
    ]


def test_nothing_held_out_is_in_the_index_of_dailydialog() -> None:
    if not (DATA / bench.FILE).is_file():
        pytest.skip("no DailyDialog++ beside the repository")
    rows = bench.contexts(DATA)
    parts = bench.split(rows)
    assert (len(parts["test"]), len(parts["valid"]), len(rows)) == (800, 400, 7641)
    assert sorted(row["dialogue"] for part in parts.values() for row in part) == sorted(r["dialogue"] for r in rows)
    entries = bench.entries_of(parts["train"])
    assert len(entries) == 5 * len(parts["train"]) == len({one.origin for one in entries})
    assert leaks(entries, parts["test"]) == leaks(entries, parts["valid"]) == []
    assert leaks(bench.entries_of(parts["valid"]), parts["test"]) == []
    planted = [*entries, *bench.entries_of(parts["test"][:1])]
    assert len(leaks(planted, parts["test"])) == 5
    careless = random.Random(0).sample(rows, len(rows))  # split by context alone, first turns are on both sides
    assert leaks(bench.entries_of(careless[800:]), careless[:800])


def test_the_index_and_every_prototype_come_from_training_dialogues_alone(tmp_path: Path) -> None:
    parts = bench.split(made_up(200), test=20, valid=10)
    bench.prototypes(parts, tmp_path)
    index = open_index(tmp_path / "index", lambda name: pytest.fail(name))
    assert leaks(list(index.entries), [*parts["test"], *parts["valid"]]) == []
    owner = {entry.target: entry.groups for entry in index.entries}
    for part, rows in parts.items():
        for arm in ("neighbours", "random"):
            lines = [json.loads(line) for line in (tmp_path / f"{part}.{arm}.jsonl").read_text().splitlines()]
            assert len(lines) == 5 * len(rows)
            for line in lines:
                assert not set(owner[line["prototype"]]) & {line["dialogue"], line["text"].split(bench.TURN)[0]}
    assert bench.test_rows(tmp_path, "none")[0]["prototype"] == ""


def test_bleu_and_its_interval_are_those_of_sacrebleu() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    draw, words = random.Random(0), ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "my", "dog"]
    texts = [[" ".join(draw.choices(words, k=draw.randint(2, 9))) for _ in range(8)] for _ in range(60)]
    left, right = ([row[n] for row in texts] for n in (0, 1))
    references = [row[2:7] for row in texts]
    own = [bench.counts(side, references) for side in (left, right)]
    bleu = sacrebleu.BLEU(lowercase=True)
    wanted = [bleu.corpus_score(side, list(map(list, zip(*references, strict=True)))).score for side in (left, right)]
    assert [bench.score(one) for one in own] == pytest.approx(wanted)
    middle, low, high = bench.interval([own[0], own[0]], [own[1]])
    assert middle == pytest.approx(wanted[0] - wanted[1]) and low < middle < high
    assert bench.interval([own[0]], [own[0]]) == (0.0, 0.0, 0.0)
    assert np.ndim(own[0]) == 2 and statistics.mean(wanted) > 0


def test_the_file_is_read_with_ids_of_dialogues_and_first_turns(tmp_path: Path) -> None:
    (tmp_path / bench.FILE).parent.mkdir()
    rows = [
        {"dialog_id": 3, "context": ["Hello?", "Yes?"], "positive_responses": list("abcde")},
        {"dialog_id": 4, "context": [" hello? "], "positive_responses": list("fghij")},
    ]
    with lzma.open(tmp_path / bench.FILE, "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    one, two = bench.contexts(tmp_path)
    assert one["first"] == two["first"] and (one["dialogue"], two["dialogue"]) == ("3", "4")
    assert len(bench.joined([one, two])) == 1

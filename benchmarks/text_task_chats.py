"""Summaries and replies by a language model: SAMSum as conversations, DailyDialog as lines that follow their context.

`write_chats` makes OUT/samsum_chat and OUT/dialogue_chat of OUT/samsum and of OUT/edit, which retrieve_and_edit.py
split by dialogue. Summaries are graded by ROUGE; replies by recall@1 of ten, over the first human reply to each
context that is held out, and by BLEU with five.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from retrieve_and_edit import counts, rank_replies, score, test_rows
from text_task_data import read_rows, write_rows

from heddle.lm import LM
from heddle.tasks.metrics import rouge_each
from heddle.text.chat import Chat

ASK = "Summarize this conversation.\n\n{text}"
SUMMARY, REPLY, BATCH = 96, 40, 128  # tokens of a summary and of a reply, prompts at once
SETTINGS: dict[str, dict[str, Any]] = {
    "samsum_chat": {"source": {"kind": "chat"}, "rows.length": 1024, "training.batch": 16, "training.steps": 600},
    "dialogue_chat": {
        "source": {"kind": "jsonl", "text": "text"},
        "rows.length": 512,
        "training.batch": 32,
        "training.steps": 500,
    },
}
Line = dict[str, Any]


def asked(text: str) -> list[dict[str, str]]:
    """Return the question for a summary."""
    return [{"role": "user", "content": ASK.format(text=text)}]


def write_chats(out: Path, task: str) -> None:
    """Write the rows of a task, where they are not yet."""
    if (out / task / "valid.jsonl.xz").exists():
        return
    for part in ("train", "valid"):
        rows: list[Line]
        if task == "samsum_chat":
            rows = [
                {"messages": [*asked(row["text"]), {"role": "assistant", "content": row["summary"]}]}
                for row in read_rows(out / "samsum" / f"{part}.jsonl.xz")
            ]
        else:
            lines = (out / "edit" / f"{part}.none.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
            rows = [{"text": f"{row['text']}\n{row['target']}"} for row in map(json.loads, lines)]
        write_rows(out / task / f"{part}.jsonl.xz", rows, preset=0)


def chat_settings(task: str, out: Path) -> Line:
    """Return the settings of a run: all weights are trained."""
    own = dict(SETTINGS[task])
    source = own.pop("source")
    sources = {part: source | {"path": str(out / task / f"{part}.jsonl.xz")} for part in ("train", "valid")}
    return own | {
        "adapters": None,
        "data.sources": [sources["train"]],
        "data.split": {"kind": "file", "source": sources["valid"]},
    }


def grade_chats(task: str, out: Path, lm: LM) -> tuple[Line, dict[str, list[float]]]:
    """Return the metrics of the test rows, and their intervals."""
    return grade_summaries(out, lm) if task == "samsum_chat" else grade_replies(out, lm)


def generate(lm: LM, prompts: Sequence[Sequence[int]], ends: Sequence[int], most: int) -> list[str]:
    """Continue prompts greedily, those of similar length together, up to an end."""
    order, found = sorted(range(len(prompts)), key=lambda number: len(prompts[number])), [""] * len(prompts)
    for first in range(0, len(order), BATCH):
        chosen = order[first : first + BATCH]
        for number, ids in zip(chosen, lm.generate_ids([prompts[n] for n in chosen], max_tokens=most), strict=True):
            stop = next((place for place, id in enumerate(ids) if id in ends), len(ids))
            found[number] = lm.tokenizer.decode(ids[:stop])
    return found


def grade_summaries(out: Path, lm: LM) -> tuple[Line, dict[str, list[float]]]:
    """Write a summary of each test dialogue, and grade it."""
    rows = read_rows(out / "samsum" / "test.jsonl.xz")
    chat = Chat(lm.origin.template or "", lm.tokenizer)
    written = generate(lm, [chat.ids(asked(row["text"])) for row in rows], chat.stops.ids, SUMMARY)
    each = rouge_each([text.strip() for text in written], [row["summary"] for row in rows])
    draw, metrics, intervals = np.random.default_rng(0), {}, {}
    for name in each[0]:
        scores = np.array([one[name] for one in each])
        means = [scores[draw.integers(0, len(scores), len(scores))].mean() for _ in range(1000)]
        metrics[name] = float(scores.mean())
        intervals[name] = [round(float(end), 5) for end in np.percentile(means, (2.5, 97.5))]
    return metrics, intervals


def grade_replies(out: Path, lm: LM) -> tuple[Line, dict[str, list[float]]]:
    """Rank the first reply to each held-out context among ten; write one of its own, the line after the context."""
    metrics, intervals = rank_replies(out / "edit", "none", lm)
    rows = test_rows(out / "edit", "none")
    written = lm.generate([f"{row['text']}\n" for row in rows], stop=["\n"], max_tokens=REPLY)
    bleu = score(counts([text.strip() for text in written], [row["references"] for row in rows]))
    return metrics | {"bleu": bleu / 100}, intervals

"""Correct misspellings, alone and in context, beside SymSpell; print a table and one JSON line.

    python benchmarks/spelling.py measure DATA [-m MODEL] [--sets bea322 bea4660] [--lines N] [--errors FILE]
    python benchmarks/spelling.py tune DATA -m MODEL [--lines 400]

DATA is the folder of the spelling sets. The error model learns from the lists birkbeck, aspell and wikipedia, less
every pair of testset1, every pair with the same right word, and every pair of the sets in context. `tune` finds the
weights of the noisy channel: held-out pairs of the lists are written into lines of the development sets' right side at
the rate of errors that the weights assume; no test set is read.

Alone: a word counts as right where the first answer is the right word. In context, words are what single spaces part,
and a word is changed where the answer differs from what was written: fixed, where it became right; made, where it was
right before; missed otherwise. Precision is fixed / changed, recall fixed / wrong, F0.5 their weighted mean.
"""

import argparse
import gzip
import json
import lzma
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from entry_point import run_main
from results import record

import heddle
from heddle.core import replace
from heddle.tasks.correcting import (
    CorrectedText,
    Corrector,
    CorrectorConfig,
    ErrorModel,
    NoisyChannelWeights,
    context_scorer,
    english_lexicon,
    exclude_test_pairs,
    parse_error_pairs,
)
from heddle.tasks.correcting.lexicon import plain
from heddle.tasks.correcting.word_layout import begins_sentence, find_words, match_case
from heddle.text.normalize import NormalizerConfig

LISTS = ("birkbeck", "aspell", "wikipedia")
SETS = {
    "bea322": "test.neuspell.bea322",
    "bea4660": "test.neuspell.bea4660",
    "dev.bookcorpus": "dev.bookcorpus.realistic",
    "dev.wikidump": "dev.wikidump.realistic",
    "test.bookcorpus": "test.bookcorpus.realistic",
    "test.wikidump": "test.wikidump.realistic",
}
BATCH = 64
Pairs = list[tuple[str, str]]  # right, wrong
Lines = list[tuple[str, str]]  # as written, as it should be
Correct = Callable[[Sequence[str]], list[list[str]]]


# --- data -------------------------------------------------------------------------------------------------------------


def read(path: Path) -> str:
    """Read a compressed text."""
    with (lzma.open if path.suffix == ".xz" else gzip.open)(path, "rt", encoding="utf-8") as file:
        return str(file.read())


def listed(data: Path, name: str) -> Pairs:
    """Return the pairs of a list."""
    return parse_error_pairs(read(data / f"{name}.txt.gz"), name)


def in_context(data: Path, name: str, most: int | None) -> Lines:
    """Return lines as they were written and as they should be."""
    sides = []
    for side in ("corrupt", "correct"):
        (path,) = (data / "in-context").glob(f"{SETS[name]}.{side}.txt.*")
        sides.append(read(path).splitlines())
    return list(zip(*sides, strict=True))[:most]


def pairs_in(lines: Lines) -> Pairs:
    """Return the pairs of words that differ."""
    words = [(r, w) for written, right in lines for r, w in zip(right.split(" "), written.split(" "), strict=True)]
    bare = [
        ("".join(c for c in r if c.isalpha() or c in "'-"), "".join(c for c in w if c.isalpha() or c in "'-"))
        for r, w in words
    ]
    return [(r, w) for r, w in bare if r != w]


def learnt(data: Path) -> tuple[ErrorModel, dict[str, int]]:
    """Learn errors from the lists, less what is tested."""
    pairs = [pair for name in LISTS for pair in listed(data, name)]
    kept, same_pair, same_right = exclude_test_pairs(pairs, listed(data, "spell-testset1"))
    tested = {
        (r.lower(), w.lower()) for name in ("bea322", "bea4660") for r, w in pairs_in(in_context(data, name, None))
    }
    clean = [(r, w) for r, w in kept if (r.lower(), w.lower()) not in tested]
    counts = {
        "pairs": len(pairs),
        "removed_test_pairs": same_pair,
        "removed_same_right_word": same_right,
        "removed_bea_pairs": len(kept) - len(clean),
        "learnt_from": len(clean),
    }
    return ErrorModel.learn(clean), counts


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What became of the words of a set."""

    words: int = 0
    wrong: int = 0
    changed: int = 0
    fixed: int = 0
    made: int = 0

    def add(self, written: str, right: str, answer: str) -> None:
        """Count one word."""
        self.words += 1
        self.wrong += written != right
        self.changed += answer != written
        self.fixed += written != right == answer
        self.made += written == right != answer

    def numbers(self) -> dict[str, float]:
        """Return counts and rates."""
        precision, recall = self.fixed / max(1, self.changed), self.fixed / max(1, self.wrong)
        mean = 1.25 * precision * recall / max(1e-9, 0.25 * precision + recall)
        rates = {"precision": precision, "recall": recall, "f0.5": mean}
        return vars(self) | {name: round(value, 4) for name, value in rates.items()}


def answers(text: str, corrected: CorrectedText) -> list[str]:
    """Return what became of each word that single spaces part; one that went into its neighbour is empty."""
    found, at, changes = [], 0, list(corrected.changes)
    for word in text.split(" "):
        made, start, end = "", at, at + len(word)
        while changes and changes[0].start < end:
            change = changes[0]
            made += text[start : max(start, change.start)] + (change.after if change.start >= at else "")
            start = min(end, change.end)
            if change.end > end:
                break
            changes.pop(0)
        found.append(made + text[start:end])
        at = end + 1
    return found


def ours(corrector: Corrector) -> Correct:
    """Correct lines with Heddle."""

    def correct(lines: Sequence[str]) -> list[list[str]]:
        return [answers(text, found) for text, found in zip(lines, corrector.run(lines), strict=True)]

    return correct


def symspell(edits: int = 2) -> Correct:
    """Correct lines with SymSpell and its own dictionary: the words that we look at, one by one; known ones stay."""
    import importlib.resources

    from symspellpy import SymSpell, Verbosity

    speller = SymSpell(max_dictionary_edit_distance=edits)
    name = "frequency_dictionary_en_82_765.txt"
    speller.load_dictionary(str(importlib.resources.files("symspellpy") / name), 0, 1, encoding="utf-8-sig")

    def word(written: str) -> str:
        found = speller.lookup(plain(written), Verbosity.TOP, max_edit_distance=edits)
        return match_case(found[0].term, written) if found and found[0].distance else written

    def correct(lines: Sequence[str]) -> list[list[str]]:
        made = []
        for line in lines:
            text, at = "", 0
            for span in find_words(line):
                text += line[at : span.start] + word(span.text)
                at = span.end
            made.append((text + line[at:]).split(" "))
        return made

    return correct


def measured(correct: Correct, lines: Lines) -> dict[str, float]:
    """Correct lines in batches; return the counts and the words a second."""
    tally, start = Tally(), time.perf_counter()
    for first in range(0, len(lines), BATCH):
        batch = lines[first : first + BATCH]
        for (written, right), found in zip(batch, correct([written for written, _ in batch]), strict=True):
            for each in zip(written.split(" "), right.split(" "), found, strict=True):
                tally.add(*each)
    seconds = time.perf_counter() - start
    return tally.numbers() | {"words_per_second": round(tally.words / seconds, 1)}


def isolated(correct: Correct, pairs: Pairs) -> dict[str, float]:
    """Correct words one by one; count how many become right."""
    right = sum(found == [want] for (want, _), found in zip(pairs, correct([wrong for _, wrong in pairs]), strict=True))
    return {"words": len(pairs), "right": right, "share": round(right / len(pairs), 4)}


def row(name: str, system: str, numbers: dict[str, float]) -> str:
    """Return a line of the table."""
    keys = ("words", "wrong", "changed", "fixed", "made", "precision", "recall", "f0.5", "words_per_second")
    return f"{name:16} {system:9} " + " ".join(f"{numbers[key]:>9}" for key in keys)


def measure(given: argparse.Namespace) -> None:
    """Measure on testset1 and on sets in context."""
    words = english_lexicon()
    errors, counts = learnt(given.data) if given.errors is None else (ErrorModel.load(given.errors), {})
    print(json.dumps(counts))
    if given.save is not None:
        errors.save(given.save)
    found: dict[str, Any] = {"learning": counts, "config": str(CorrectorConfig())}
    tested = listed(given.data, "spell-testset1")
    alone = {"heddle": ours(Corrector(words, errors)), "prior": ours(Corrector(words)), "symspell": symspell()}
    for system, correct in alone.items():
        found[f"testset1 {system}"] = isolated(correct, tested)
        print(f"testset1 {system}: {found[f'testset1 {system}']}", flush=True)
    if given.model is not None:
        lm = heddle.load(given.model, device=given.device, dtype=given.dtype)
        found["parameters"] = sum(p.numel() for p in lm.model.parameters())
        config = replace(CorrectorConfig(), normal=NormalizerConfig() if given.normal else None)
        corrector = Corrector(words, errors, config, lm.model, lm.tokenizer)
        keys = "words wrong changed fixed made precision recall f0.5 words/s"
        print(f"{'set':16} {'system':9} " + " ".join(f"{key:>9}" for key in keys.split()))
        for name in given.sets:
            lines = in_context(given.data, name, given.lines)
            for system, correct in {"heddle": ours(corrector), "symspell": symspell()}.items():
                found[f"{name} {system}"] = measured(correct, lines)
                print(row(name, system, found[f"{name} {system}"]), flush=True)
    print(json.dumps(found))
    if given.record:
        record("spelling", threads=torch.get_num_threads(), **found)


# --- tuning -----------------------------------------------------------------------------------------------------------


def development(data: Path, most: int, rate: float, seed: int = 0) -> tuple[ErrorModel, Lines]:
    """Return an error model without every sixth right word, and lines into which errors of these were written.

    Every other line is in small letters.
    """
    pairs = exclude_test_pairs([p for name in LISTS for p in listed(data, name)], listed(data, "spell-testset1"))[0]
    draw = random.Random(seed)
    rights = sorted({right.lower() for right, _ in pairs})
    held = set(draw.sample(rights, len(rights) // 6))
    wrongs: dict[str, list[str]] = {}
    for right, wrong in pairs:
        if right.lower() in held and wrong.isalpha():
            wrongs.setdefault(right.lower(), []).append(wrong.lower())
    sources = [in_context(data, name, most) for name in ("dev.bookcorpus", "dev.wikidump")]
    clean = [right for lines in zip(*sources, strict=True) for _, right in lines][:most]
    clean = [line if number % 2 else line.lower() for number, line in enumerate(clean)]
    places = [[s for s in find_words(line) if s.text.lower() in wrongs] for line in clean]
    share = rate * sum(len(line.split(" ")) for line in clean) / max(1, sum(map(len, places)))
    print(f"{len(held)} right words held out, errors in {min(1.0, share):.0%} of their {sum(map(len, places))} places")
    made = []
    for line, spans in zip(clean, places, strict=True):
        text = line
        for span in reversed(spans):
            if draw.random() < share:
                wrong = match_case(draw.choice(wrongs[span.text.lower()]), span.text)
                text = text[: span.start] + wrong + text[span.end :]
        made.append((text, line))
    return ErrorModel.learn(p for p in pairs if p[0].lower() not in held), made


def witnesses(corrector: Corrector, lines: Lines) -> Iterator[tuple[torch.Tensor, int]]:
    """Yield for each unknown word that was weighed what speaks for each option, and which is right."""
    for first in range(0, len(lines), BATCH):
        batch = lines[first : first + BATCH]
        for piece in corrector.score_segments([written for written, _ in batch]):
            truth = aligned(*batch[piece.text_index])
            for slot in piece.slots:
                places = [(piece.offset + o.start, piece.offset + o.end) for o in slot.options]
                matches = [truth(*place) == o.text for place, o in zip(places, slot.options, strict=True)]
                if slot.known or slot.context is None or not any(matches):
                    continue
                stay = slot.options[0]
                name = stay.text[:1].isupper() and not begins_sentence(piece.text, stay.start)
                rows = [
                    [c, o.frequency, o.errors, 1.0 * (i == 0), 1.0 * (i == 0 and name)]
                    for i, (o, c) in enumerate(zip(slot.options, slot.context, strict=True))
                ]
                yield torch.tensor(rows), matches.index(True)


def aligned(written: str, right: str) -> Callable[[int, int], str | None]:
    """Return a function from a stretch of what was written to what should stand there."""
    starts, at = {}, 0
    for wrong, good in zip(written.split(" "), right.split(" "), strict=True):
        starts[at] = (wrong, good)
        at += len(wrong) + 1

    def truth(start: int, end: int) -> str | None:
        at = max(s for s in starts if s <= start)
        wrong, good = starts[at]
        before, after = wrong[: start - at], wrong[end - at :]
        if end > at + len(wrong) or not good.startswith(before) or not good.endswith(after):
            return None
        return good[len(before) : len(good) - len(after)]

    return truth


def fitted(rows: list[tuple[torch.Tensor, int]], start: NoisyChannelWeights) -> NoisyChannelWeights:
    """Return the weights under which what is right is most probable among the options of unknown words."""
    usual = math.log(1 / start.rate - 1)  # what speaks for a word before anything is known of it
    first = [start.context, start.frequency, start.errors, usual - start.unknown, start.name]
    weights = torch.tensor(first, requires_grad=True)
    descent = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        descent.zero_grad()
        total = torch.stack([-(x @ weights).log_softmax(0)[y] for x, y in rows]).mean() + 1e-4 * weights.square().sum()
        total.backward()
        return total

    descent.step(loss)
    print(f"{len(rows)} unknown words weighed, loss {loss().item():.4f}")
    context, frequency, errors, stay, name = (round(weight, 2) for weight in weights.tolist())
    found = {"context": context, "frequency": max(0.0, frequency), "errors": errors, "name": name}
    return replace(start, **found, unknown=round(usual - stay, 2))


def cached(score: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Cache the model's answers: most requests are the same under other weights."""
    known: dict[str, Any] = {}

    def answer(model: Any, questions: Sequence[Any]) -> list[Any]:
        new = [question for question in questions if str(question) not in known]
        known.update(zip(map(str, new), score(model, new), strict=True))
        return [known[str(question)] for question in questions]

    return answer


def tune(given: argparse.Namespace) -> None:
    """Fit the weights on one half of the lines; try on the other what known words are worth, then thresholds."""
    for name in ("score_continuations", "score_tokens"):
        setattr(context_scorer, name, cached(getattr(context_scorer, name)))
    words, start = english_lexicon(), NoisyChannelWeights()
    form = NormalizerConfig() if given.normal else None
    errors, lines = development(given.data, given.lines or 400, start.rate)
    lm = heddle.load(given.model, device=given.device, dtype=given.dtype)
    half = len(lines) // 2
    config = CorrectorConfig(
        most=8, weights=replace(start, known=20.0), normal=form
    )  # known words are not weighed here
    rows = list(witnesses(Corrector(words, errors, config, lm.model, lm.tokenizer), lines[:half]))
    fit = fitted(rows, start)
    print(fit, flush=True)

    def tried(config: CorrectorConfig) -> tuple[float, CorrectorConfig]:
        numbers = measured(ours(Corrector(words, errors, config, lm.model, lm.tokenizer)), lines[half:])
        print(row(f"known {config.weights.known}", f"odds {config.threshold}", numbers), flush=True)
        return numbers["f0.5"], config

    tries = [CorrectorConfig(weights=replace(fit, known=k), normal=form) for k in (0.0, 1.0, 2.0, 4.0, 6.0, 20.0)]
    best = max(map(tried, tries), key=lambda pair: pair[0])[1]
    best = max((tried(replace(best, threshold=t)) for t in (0.5, 1.0, 2.0, 4.0)), key=lambda pair: pair[0])[1]
    print(best)


def main() -> None:
    """Measure or tune."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=["measure", "tune"])
    parser.add_argument("data", type=Path)
    parser.add_argument("-m", "--model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=["bea322", "bea4660"])
    parser.add_argument("--lines", type=int, default=None)
    parser.add_argument("--normal", action="store_true", help="the model learnt from normal text, without marks")
    parser.add_argument("--errors", type=Path, help="an error model learnt before")
    parser.add_argument("--save", type=Path, help="where to keep the error model")
    parser.add_argument("--record", action="store_true", help="append to results.jsonl")
    given = parser.parse_args()
    measure(given) if given.task == "measure" else tune(given)


if __name__ == "__main__":
    run_main(main)

"""Made-up files for docs/tasks.md: reviews, tagged sentences, questions, scores and texts with summaries."""

import json
import random
from pathlib import Path

GOOD = ("fine", "lovely", "bright", "warm", "clever", "honest", "gentle", "splendid")
BAD = ("dull", "bitter", "clumsy", "cold", "noisy", "weak", "dreary", "broken")
THINGS = ("film", "book", "meal", "hotel", "song", "phone", "chair", "garden")
FIRST, LAST = ("Ann", "Bob", "Eve", "Max", "Ida"), ("Berg", "Lund", "Holm", "Strand")
PLACES = ("Rome", "Oslo", "Paris", "Bergen", "Lima")


def review(draw: random.Random) -> tuple[str, str]:
    """Return a review and its label; one form has a word of the other label as well."""
    good, thing = draw.random() < 0.5, draw.choice(THINGS)
    (one, two), other = draw.sample(GOOD if good else BAD, 2), draw.choice(BAD if good else GOOD)
    forms = (
        f"The {thing} was {one} and rather {two}.",
        f"What a {one} {thing}; my friends found it {two} too.",
        f"I expected a {other} {thing}, but it is {one}.",
    )
    return draw.choice(forms), "good" if good else "bad"


def trip(draw: random.Random) -> list[tuple[str, str]]:
    """Return the words of a sentence with their tags."""
    who = [(draw.choice(FIRST), "B-PER"), *([(draw.choice(LAST), "I-PER")] if draw.random() < 0.5 else [])]
    start, end = draw.sample(PLACES, 2)
    verb = draw.choice(("flew", "drove", "walked"))
    return [*who, (verb, "O"), ("from", "O"), (start, "B-LOC"), ("to", "O"), (end, "B-LOC"), (".", "O")]


def table(rows: list[tuple[str, ...]], *names: str) -> str:
    """Return rows as CSV."""
    quoted = (",".join(f'"{cell}"' for cell in row) for row in rows)
    return "\n".join((",".join(names), *quoted)) + "\n"


def conll(sentences: list[list[tuple[str, str]]]) -> str:
    """Return tagged sentences as CoNLL."""
    return "".join("".join(f"{word} {tag}\n" for word, tag in words) + "\n" for words in sentences)


def questions(draw: random.Random, sentences: list[list[tuple[str, str]]]) -> str:
    """Return a SQuAD file: who went where; one in five cannot be answered."""
    asked = []
    for number, words in enumerate(sentences):
        context = " ".join(word for word, _ in words)
        who = " ".join(word for word, tag in words if tag.endswith("PER"))
        known = number % 5 > 0
        place = [word for word, tag in words if tag == "B-LOC"][1] if known else "Nowhere"
        found = [{"text": who, "answer_start": 0}] if known else []
        qas = [{"id": str(number), "question": f"Who went to {place}?", "answers": found}]
        asked.append({"context": context, "qas": qas})
    return json.dumps({"data": [{"title": f"trip {n}", "paragraphs": [one]} for n, one in enumerate(asked)]})


def story(draw: random.Random, words: list[tuple[str, str]]) -> tuple[str, str]:
    """Return a story with a trip in it, and its summary."""
    who = " ".join(word for word, tag in words if tag.endswith("PER"))
    end = [word for word, tag in words if tag == "B-LOC"][1]
    line, (before, after) = " ".join(word for word, _ in words), [review(draw)[0] for _ in range(2)]
    return f"{before} {line} {after}", f"{who} went to {end}."


def write_files(folder: Path) -> None:
    """Write all files of the page."""
    draw = random.Random(0)
    reviews, trips = [review(draw) for _ in range(900)], [trip(draw) for _ in range(500)]
    lines = [" ".join(word for word, _ in words) for words in trips]
    pairs = [(draw.choice(lines), draw.choice(lines)) for _ in range(200)]
    scored = [(a, b, str(len(set(a.split()) & set(b.split())))) for a, b in pairs]
    stories = [story(draw, words) for words in trips]
    made = {
        "reviews.csv": table(reviews[:800], "text", "label"),
        "test.csv": table(reviews[800:], "text", "label"),
        "new.txt": "".join(f"{text}\n" for text, _ in reviews[800:820]),
        "people.conll": conll(trips[:400]),
        "test.conll": conll(trips[400:]),
        "trips.txt": "".join(f"{line}\n" for line in lines),
        "story.txt": " ".join(lines[:3]),
        "questions.json": questions(draw, trips[:100]),
        "trivia.json": json.dumps(
            [{"question": f"Who lives in {place}?", "answers": ["Ann", "Eve"]} for place in PLACES]
        ),
        "likeness.csv": table(scored, "text", "pair", "score"),
        "stories.csv": table(stories[:400], "text", "summary"),
        "test_stories.csv": table(stories[400:430], "text", "summary"),
        "long.txt": " ".join(text for text, _ in stories[400:440]),
        "pairs.jsonl": json.dumps({"sentence_good": "Ann flew .", "sentence_bad": "Ann flewed .", "UID": "x"}) + "\n",
        "masks.txt": "Ann flew from [MASK] to Oslo .\n",
    }
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")

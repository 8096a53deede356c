"""A tiny language for the lessons: sentences whose verbs agree with their subjects, their translations, their classes.

`python benchmarks/lesson_texts.py FOLDER` writes my.txt, train.en, train.de, val.en, val.de and train.csv.
"""

import random
import sys
from pathlib import Path

NOUNS = {  # English singular and plural; German articles of nominative and accusative, singular, plural
    "cat": ("cats", "die", "die", "Katze", "Katzen"),
    "dog": ("dogs", "der", "den", "Hund", "Hunde"),
    "bird": ("birds", "der", "den", "Vogel", "Vögel"),
    "horse": ("horses", "das", "das", "Pferd", "Pferde"),
    "dragon": ("dragons", "der", "den", "Drache", "Drachen"),
}
VERBS = {
    "see": ("sieht", "sehen"),
    "hear": ("hört", "hören"),
    "find": ("findet", "finden"),
    "know": ("kennt", "kennen"),
}
PLACES = {"tree": "Baum", "house": "Haus", "lake": "See"}
TIMES = {"today": "heute", "often": "oft"}
SENTENCES, HELD_OUT = 1200, 100


def noun(draw: random.Random, accusative: bool) -> tuple[str, str, bool]:
    """Return a noun with its article in English and German, and whether it is plural."""
    one, (many, nominative, other, german, germans) = draw.choice(list(NOUNS.items()))
    if draw.random() < 0.5:
        return f"the {many}", f"die {germans}", True
    name = "Drachen" if accusative and one == "dragon" else german
    return f"the {one}", f"{other if accusative else nominative} {name}", False


def sentence(draw: random.Random) -> tuple[str, str, bool]:
    """Return a sentence, its translation, and whether its subject is plural.

    Between a subject and its verb may stand a place, and German puts the verb second, whatever comes first.
    """
    (subject, german, plural), (seen, german_seen, _) = noun(draw, False), noun(draw, True)
    verb, forms = draw.choice(list(VERBS.items()))
    verb, form = (verb, forms[1]) if plural else (f"{verb}s", forms[0])
    if draw.random() < 0.5:
        place, german_place = draw.choice(list(PLACES.items()))
        german += f" bei dem {german_place}"
        subject += f" near the {place}"
    if draw.random() < 0.5:
        time, german_time = draw.choice(list(TIMES.items()))
        return f"{time} {subject} {verb} {seen} .", f"{german_time} {form} {german} {german_seen} .", plural
    return f"{subject} {verb} {seen} .", f"{german} {form} {german_seen} .", plural


def write_texts(folder: Path) -> None:
    """Write all files of the lessons, the same ones each time."""
    draw = random.Random(0)
    made = [sentence(draw) for _ in range(SENTENCES)]
    folder.mkdir(parents=True, exist_ok=True)
    files = {"my.txt": [english for english, _, _ in made]}
    for name, part in (("train", made[HELD_OUT:]), ("val", made[:HELD_OUT])):
        files |= {f"{name}.en": [one[0] for one in part], f"{name}.de": [one[1] for one in part]}
    files["train.csv"] = ["text,label", *(f"{english},{'many' if plural else 'one'}" for english, _, plural in made)]
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_texts(Path(sys.argv[1] if sys.argv[1:] else "."))

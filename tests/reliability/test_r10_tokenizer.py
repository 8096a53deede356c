"""R10: tokenizers on random strings and long runs: round trip, serial = parallel, linear time, no panic."""

import random
import time
from collections.abc import Iterator

import pytest

from heddle.text.tokenizers import (
    BpeTokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    TokenizerConfig,
    UnigramTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
)

FLOOR = 0.01  # seconds; below it fresh memory is timed, not the tokenizer
BYTE_LEVEL = ("byte", "bpe", "unigram")
CONFIGS: dict[str, TokenizerConfig] = {
    "byte": ByteTokenizer(),
    "character": CharacterTokenizer(),
    "word": WordTokenizer(),
    "bpe": BpeTokenizer(vocab=500),
    "wordpiece": WordPieceTokenizer(vocab=200),
    "unigram": UnigramTokenizer(vocab=300),
}
TRAINING = [f"aaa ^^^ some {i} words of {i * i} many, a^a  b" for i in range(500)]


@pytest.fixture(scope="module")
def made() -> dict[str, Tokenizer]:
    """Return one tokenizer of each kind."""
    return {kind: config.train(TRAINING) for kind, config in CONFIGS.items()}


def random_texts(count: int) -> Iterator[str]:
    """Yield strings of every plane of Unicode, of few letters, and of random bytes read in three ways."""
    draw = random.Random(10)
    for number in range(count):
        size = draw.randrange(40)
        match number % 5:
            case 0:
                yield "".join(
                    chr(draw.choice([draw.randrange(0xD800), draw.randrange(0xE000, 0x110000)])) for _ in range(size)
                )
            case 1:
                yield "".join(draw.choice("a ^\n\t'<|>end0é日🙂\0\u0301") for _ in range(size))
            case 2:
                yield draw.randbytes(size).decode("utf-8", "replace")
            case 3:
                yield draw.randbytes(size).decode("latin-1")
            case _:
                yield draw.randbytes(size).decode("utf-8", "backslashreplace")


def check_strings(made: dict[str, Tokenizer], count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check round trips, each text alone and all in parallel."""
    texts = list(random_texts(count))
    right = equal = 0
    for kind, tokenizer in made.items():
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
        together = tokenizer.encode_many(texts)
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
        for text, ids in zip(texts, together, strict=True):
            equal += tokenizer.encode(text) == ids
            normal = tokenizer.decode(ids)
            if kind in BYTE_LEVEL:
                right += normal == text
            else:  # what it gives back is its normal form, and comes back unchanged; BERT's cleaning drops the unknown
                if kind == "wordpiece":
                    normal = " ".join(normal.replace("\ufffd", " ").split())
                right += tokenizer.decode(tokenizer.encode(normal)) == normal
    total = count * len(made)
    print(f"R10: {right}/{total} round trips, {equal}/{total} serial = parallel, 0 panics")
    assert (right, equal) == (total, total)


def runs(size: int) -> dict[str, str]:
    """Return long texts of one letter, of carets, of spaces, and of random letters without a space."""
    draw = random.Random(11)
    return {"a": "a" * size, "^": "^" * size, "space": " " * size, "random": "".join(draw.choices("abcdefgh", k=size))}


def seconds(tokenizer: Tokenizer, text: str) -> float:
    """Return the processor time of one call, which other work on the machine does not lengthen."""
    start = time.process_time()
    tokenizer.encode(text)
    return time.process_time() - start


def check_runs(made: dict[str, Tokenizer], size: int) -> None:
    """Check that each run is quick, and that ten times the text costs less than fifteen times the time."""
    slowest = steepest = 0.0
    small, large = runs(size), runs(10 * size)
    for tokenizer in made.values():
        for name, text in small.items():
            once = min(seconds(tokenizer, text) for _ in range(3))
            ten = seconds(tokenizer, large[name])
            slowest = max(slowest, once)
            steepest = max(steepest, ten / max(once, FLOOR))
    print(f"R10: runs of {size:,} in at most {slowest:.2f} s, ten times the text in at most {steepest:.1f} x the time")
    assert slowest < 5
    assert steepest < 15


def test_random_strings_come_back(made: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    check_strings(made, 1500, monkeypatch)


def test_long_runs_take_linear_time(made: dict[str, Tokenizer]) -> None:
    check_runs(made, 40_000)


@pytest.mark.full
def test_a_hundred_thousand_strings_come_back(made: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    check_strings(made, 100_000, monkeypatch)


@pytest.mark.full
def test_runs_of_a_million_take_linear_time(made: dict[str, Tokenizer]) -> None:
    check_runs(made, 1_000_000)

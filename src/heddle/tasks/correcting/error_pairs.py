"""Lists of misspellings: right words and how people wrote them, to train the error model."""

from collections.abc import Iterable
from pathlib import Path

from heddle.core import DataError, brief
from heddle.core.system import read_text
from heddle.tasks.correcting.error_model import ErrorPair

MAX_BYTES = 1 << 26  # bytes of a list


def read_error_pairs(path: Path) -> list[ErrorPair]:
    """Read pairs of a right and a wrong word from a file: lines of `right: wrong wrong`, or of `right<tab>wrong`.

    A `_` stands for a space. Pairs with one are left out, and so are pairs of equal words.
    """
    return parse_error_pairs(read_text(path, MAX_BYTES), str(path))


def parse_error_pairs(text: str, name: str = "pairs") -> list[ErrorPair]:
    """Read pairs from a text; see `read_error_pairs`."""
    found: list[ErrorPair] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        right, mark, wrongs = line.partition("\t" if "\t" in line else ":")
        if not mark or not right.strip() or not wrongs.strip():
            want = "`right: wrong wrong` or `right<tab>wrong`"
            raise DataError(f"{name}:{number}: want {want}, got {brief(line.strip())}")
        found += [(right.strip(), wrong) for wrong in wrongs.split()]
    return [pair for pair in found if "_" not in "".join(pair) and pair[0].lower() != pair[1].lower()]


def exclude_test_pairs(pairs: Iterable[ErrorPair], tested: Iterable[ErrorPair]) -> tuple[list[ErrorPair], int, int]:
    """Return the pairs that share neither pair nor right word with a test set, and how many were dropped for each."""
    held = {(right.lower(), wrong.lower()) for right, wrong in tested}
    rights = {right for right, _ in held}
    kept, same_pair, same_right = list[ErrorPair](), 0, 0
    for right, wrong in pairs:
        if (right.lower(), wrong.lower()) in held:
            same_pair += 1
        elif right.lower() in rights:
            same_right += 1
        else:
            kept.append((right, wrong))
    return kept, same_pair, same_right

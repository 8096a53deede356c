"""Letters that are adjacent on a QWERTY keyboard, and letters that sound alike."""

from functools import cache

LETTERS = "abcdefghijklmnopqrstuvwxyz'"
ROWS = ("qwertyuiop", "asdfghjkl'", "zxcvbnm")
ALIKE = (
    "aeiouy",
    "ckqsxz",
    "gj",
    "fv",
    "td",
    "bp",
    "mn",
    "sz",
    "uw",
    "iy",
)  # groups of letters that are often confused by ear


@cache
def key_neighbours(letter: str) -> frozenset[str]:
    """Return the letters adjacent to one on the keyboard; each row is half a key further right than the one above."""
    for number, row in enumerate(ROWS):
        at = row.find(letter)
        if at >= 0:
            near = {row[i] for i in (at - 1, at + 1) if 0 <= i < len(row)}
            for other, shift in ((number - 1, (0, 1)), (number + 1, (-1, 0))):
                if 0 <= other < len(ROWS):
                    near |= {ROWS[other][at + s] for s in shift if 0 <= at + s < len(ROWS[other])}
            return frozenset(near)
    return frozenset()


@cache
def similar_sounding(letter: str) -> frozenset[str]:
    """Return the letters that sound like one."""
    return frozenset(c for group in ALIKE if letter in group for c in group) - {letter}

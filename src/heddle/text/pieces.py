"""Pieces: a text in bounded stretches, cut where no token would have crossed, so that time is linear in length."""

from collections.abc import Iterator

LONGEST = 1 << 13  # characters; long runs cost more than linear time inside a word, and pieces run in parallel


def pieces(text: str, longest: int = LONGEST) -> Iterator[str]:
    """Cut a text before the whitespace that follows a word; a run with no such place is cut where it must be.

    Every path (one text, many texts, training, preparing a corpus) cuts in this way, so they agree to the token.
    """
    start = 0
    while len(text) - start > longest:
        stop = _cut(text, start, start + longest)
        yield text[start:stop]
        start = stop
    if start < len(text):
        yield text[start:] if start else text


def _cut(text: str, start: int, stop: int) -> int:
    low = start + (stop - start) // 2
    gap = max(text.rfind(" ", low, stop), text.rfind("\n", low, stop))
    if gap < 0:
        return stop
    edge = low + len(text[low:gap].rstrip())  # the end of the last word before the gap
    return edge if edge > low else stop

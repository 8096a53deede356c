"""A vocabulary of a few words, and what a constraint allows of it: for the tests of constraints."""

from collections.abc import Sequence

from heddle.decoding.constraints import Constraint, Vocabulary

WORDS = (b"", b"a", b"b", b"ab", b"ba", b"c", b"abc", b"", b"\xe2\x82", b"\xac")  # 0 ends a row, 7 is a control token
VOCABULARY = Vocabulary(WORDS, WORDS, silent=frozenset([0, 7]), stop=frozenset([0]))


def ids_of(constraint: Constraint, vocab: int) -> set[int]:
    """Return what a constraint allows."""
    mask = constraint.allowed()
    return set(range(vocab)) if mask is None else set(mask.nonzero().flatten().tolist())


def written(ids: Sequence[int], vocabulary: Vocabulary, fresh: bool = True) -> bytes:
    """Return the bytes of ids."""
    text = b""
    for id in ids:
        text += (vocabulary.first if fresh else vocabulary.inside)[id]
        fresh = vocabulary.next_fresh(id, fresh)
    return text

"""Edit distance (Levenshtein 1966), by bits of whole numbers (Myers 1999)."""

from collections.abc import Sequence


def edit_distance(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the Levenshtein distance: the fewest insertions, deletions and substitutions between two sequences.

    A column of the distance table is kept as two integers, whose bits say where it rises and falls (Myers 1999).
    """
    if len(left) > len(right):
        left, right = right, left
    if not left:
        return len(right)
    places: dict[str, int] = {}
    for i, item in enumerate(left):
        places[item] = places.get(item, 0) | 1 << i
    all_, last = (1 << len(left)) - 1, 1 << len(left) - 1
    rises, falls, distance = all_, 0, len(left)
    for item in right:
        same = places.get(item, 0)
        still = same | falls
        across = (((same & rises) + rises) ^ rises) | same
        up, down = falls | all_ & ~(across | rises), rises & across
        distance += bool(up & last) - bool(down & last)
        up, down = up << 1 | 1, down << 1
        rises, falls = (down | ~(still | up)) & all_, up & still & all_
    return distance

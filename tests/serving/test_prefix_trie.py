"""Prefix trie: the longest prefix of whole chunks is found; beyond the budget the leaves used longest ago go first."""

import torch

from heddle.nn.state import StatePiece
from heddle.serving import PrefixTrie

CHUNK = 4
SIZE = 40  # bytes of a piece


def piece(stop: int) -> StatePiece:
    return StatePiece(stop - CHUNK, stop, {"a": (torch.zeros(SIZE, dtype=torch.uint8),)})


def store(trie: PrefixTrie, ids: list[int]) -> None:
    for stop in range(CHUNK, len(ids) + 1, CHUNK):
        trie.store(ids[:stop], piece(stop))


def test_longest_prefix_of_whole_chunks_is_found() -> None:
    trie = PrefixTrie(1000, CHUNK)
    store(trie, [1, 2, 3, 4, 5, 6, 7, 8])
    store(trie, [1, 2, 3, 4, 9, 9, 9, 9])
    assert len(trie) == 3 and trie.used_bytes == 3 * SIZE  # the first chunk is shared
    assert [one.stop for one in trie.find([1, 2, 3, 4, 9, 9, 9, 9, 1])] == [4, 8]
    assert [one.stop for one in trie.find([1, 2, 3, 4, 5, 6, 7])] == [4]
    assert trie.find([1, 2, 3]) == trie.find([2, 2, 3, 4]) == []


def test_leaves_used_longest_ago_are_dropped_first() -> None:
    trie = PrefixTrie(3 * SIZE, CHUNK)
    store(trie, [1, 1, 1, 1, 2, 2, 2, 2])
    store(trie, [3, 3, 3, 3])
    trie.find([1, 1, 1, 1, 2, 2, 2, 2])
    store(trie, [4, 4, 4, 4])
    assert not trie.find([3, 3, 3, 3]) and len(trie.find([1, 1, 1, 1, 2, 2, 2, 2])) == 2
    store(trie, [5, 5, 5, 5])
    store(trie, [6, 6, 6, 6])
    assert trie.used_bytes <= 3 * SIZE and len(trie.find([1, 1, 1, 1])) == 1  # a leaf goes before what it hangs on


def test_chunk_without_those_before_it_is_not_kept() -> None:
    trie = PrefixTrie(1000, CHUNK)
    trie.store([1, 1, 1, 1, 2, 2, 2, 2], piece(8))
    assert len(trie) == 0
    trie.store([1, 1, 1, 1], StatePiece(0, 4, {"a": (torch.zeros(2000, dtype=torch.uint8),)}))
    assert len(trie) == 0

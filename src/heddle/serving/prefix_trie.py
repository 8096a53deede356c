"""Prefix cache as a trie (radix tree; SGLang, Zheng et al. 2024): what states hold of the chunks of earlier prompts.

A node is one chunk of a prompt, below the chunks before it. It holds the chunk's keys and values once, however many
prompts share it, and a snapshot of recurrent states at its end. Beyond a budget of bytes, the leaves that were used
longest ago are dropped.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

from heddle.core import ConfigError
from heddle.nn.state import StatePiece

Chunk = tuple[int, ...]


@dataclass
class _Node:
    """A chunk: what the state holds of it, the chunks that follow, and when it was used last."""

    piece: StatePiece | None
    parent: "_Node | None" = None
    chunk: Chunk = ()
    children: "dict[Chunk, _Node]" = field(default_factory=dict)
    used: int = 0


@final
class PrefixTrie:
    """Pieces of states by the prompt up to them. Used by one thread."""

    def __init__(self, budget: int, chunk: int) -> None:
        if budget < 0:
            raise ConfigError("prefix_bytes", want="0 or more", got=budget)
        self.budget, self.chunk = budget, chunk
        self.used_bytes = 0
        self._roots: dict[str, _Node] = {}  # by salt: prompts with another one share nothing
        self._clock = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, ids: Sequence[int], salt: str = "") -> list[StatePiece]:
        """Return the pieces of the longest cached prefix of whole chunks, stored with the same salt."""
        self._clock += 1
        node, found = self._roots.get(salt), list[StatePiece]()
        for chunk in self._chunks(ids):
            following = None if node is None else node.children.get(chunk)
            if following is None or following.piece is None:
                break
            following.used, node = self._clock, following
            found.append(following.piece)
        return found

    def store(self, ids: Sequence[int], piece: StatePiece, salt: str = "") -> None:
        """Store the piece of the last chunk of some ids; without the chunks before it, it is not kept."""
        if piece.nbytes > self.budget:
            return
        *before, last = self._chunks(ids)
        node = self._roots.setdefault(salt, _Node(None))
        for chunk in before:
            if chunk not in node.children:
                return
            node = node.children[chunk]
        if last in node.children:
            return
        self._clock += 1
        node.children[last] = _Node(piece, node, last, used=self._clock)
        self.used_bytes += piece.nbytes
        self._count += 1
        self._shrink()

    def clear(self) -> None:
        """Drop everything, as after a change of the weights."""
        self._roots.clear()
        self.used_bytes = self._count = 0

    def _chunks(self, ids: Sequence[int]) -> Iterator[Chunk]:
        for start in range(0, len(ids) - self.chunk + 1, self.chunk):
            yield tuple(ids[start : start + self.chunk])

    def _shrink(self) -> None:
        """Drop leaves, those used longest ago first, until the budget holds."""
        if self.used_bytes <= self.budget:
            return
        leaves = [(node.used, id(node), node) for node in self._leaves()]
        heapq.heapify(leaves)
        while self.used_bytes > self.budget and leaves:
            _, _, node = heapq.heappop(leaves)
            parent = node.parent
            if parent is None or node.piece is None:
                continue
            del parent.children[node.chunk]
            self.used_bytes -= node.piece.nbytes
            self._count -= 1
            if not parent.children and parent.piece is not None:
                heapq.heappush(leaves, (parent.used, id(parent), parent))
        self._roots = {salt: root for salt, root in self._roots.items() if root.children}

    def _leaves(self) -> Iterator[_Node]:
        waiting = list(self._roots.values())
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            if not node.children and node.piece is not None:
                yield node

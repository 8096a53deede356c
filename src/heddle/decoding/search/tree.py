"""Beam search as a tree: all sequences that were ever live, and the best of those that ended."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heddle.core import UsageError
from heddle.decoding.generation import GenerationJob
from heddle.decoding.search.beam import BeamSearch, PromptSearch, run_search


@dataclass(frozen=True)
class BeamTreeNode:
    """One token of a sequence.

    parent: the number of the node before it; None: it follows the prompt.
    total: log-probability of the sequence up to here, in nats.
    score: the score by which a finished sequence is ranked; None: it did not finish among the best.
    reason: why it finished.
    """

    id: int
    parent: int | None
    logprob: float
    total: float
    score: float | None = None
    reason: str | None = None


def search_tree(job: GenerationJob, search: BeamSearch) -> tuple[BeamTreeNode, ...]:
    """Return the tree of the beam search of one prompt, parents before children; the search itself is as always."""
    if len(job.requests) != 1 or search.groups > 1:
        raise UsageError("beams: want one prompt and one group of beams")
    nodes: list[BeamTreeNode] = []
    places: dict[tuple[int, ...], int] = {}

    def watch(searches: Sequence[PromptSearch]) -> None:
        for node in (node for group in searches[0].live for node in group):
            before = () if node.before is None else tuple(node.before.ids())
            places[(*before, node.id)] = len(nodes)
            total = 0.0 if node.before is None else node.before.logprob
            nodes.append(BeamTreeNode(node.id, places.get(before), node.logprob - total, node.logprob))

    (found,) = run_search(job, search, watch)
    for completion in found:
        ids = tuple(completion.ids)
        if ids in places:  # it was live, and is finished as it stands
            nodes[places[ids]] = replace(nodes[places[ids]], score=completion.score, reason=str(completion.reason))
        elif ids and completion.logprob is not None:
            parent = places.get(ids[:-1])
            step = completion.logprob - (0.0 if parent is None else nodes[parent].total)
            last = BeamTreeNode(ids[-1], parent, step, completion.logprob)
            nodes.append(replace(last, score=completion.score, reason=str(completion.reason)))
    return tuple(nodes)

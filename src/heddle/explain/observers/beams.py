"""Beam search as a tree of tokens: the sequences that finished, and the branches that were given up."""

from dataclasses import dataclass
from typing import Any

from heddle.core import UsageError
from heddle.decoding.generation import GenerationConfig, GenerationJob
from heddle.decoding.runtime import make_requests
from heddle.decoding.search import BeamSearch, BeamTreeNode, search_tree
from heddle.explain.inputs import EncoderReading, ExplainOptions, PairReading, Reading, Section
from heddle.models.networks import AutoregressiveModel, require


@dataclass(frozen=True)
class BeamTree(Section):
    """The tree; a node knows its parent, and its text."""

    beams: int
    nodes: tuple[BeamTreeNode, ...]
    texts: tuple[str, ...]

    @property
    def finished(self) -> list[int]:
        """Return the nodes at which a sequence finished, best first: the leaves that beam search returns."""
        ends = [(-node.score, at) for at, node in enumerate(self.nodes) if node.score is not None]
        return [at for _, at in sorted(ends)]

    def path(self, at: int | None) -> list[int]:
        """Return the nodes from the root to this one."""
        found: list[int] = []
        while at is not None:
            found.append(at)
            at = self.nodes[at].parent
        return found[::-1]

    def kept(self) -> set[int]:
        """Return the nodes that lie on the way to a finished sequence."""
        return {at for end in self.finished for at in self.path(end)}

    def plain(self) -> dict[str, Any]:
        kept, found = self.kept(), []
        for at, (node, text) in enumerate(zip(self.nodes, self.texts, strict=True)):
            numbers = {"logprob": node.logprob, "total": node.total, "score": node.score, "reason": node.reason}
            found.append({"id": node.id, "text": text, "parent": node.parent, **numbers, "kept": at in kept})
        return {"beams": self.beams, "nodes": found, "finished": self.finished}


def beam_tree(reading: Reading, options: ExplainOptions) -> BeamTree:
    """Return the tree of a beam search that continues the text, or writes the output to it."""
    refusal = UsageError("beams: want a model that writes text, got an encoder")
    if isinstance(reading, EncoderReading):
        raise refusal
    model = require(reading.model, AutoregressiveModel, refusal)
    search = BeamSearch(beams=options.beams)
    config = GenerationConfig(max_tokens=options.max_tokens, samples=options.beams, strategy=search)
    prompt, sources = list(reading.main.ids), None
    if isinstance(reading, PairReading):
        start = 1 if reading.tokenizer is None else len(reading.tokenizer.for_target.special_tokens.decoder_start)
        prompt, sources = prompt[:start], [reading.source]
    if reading.tokenizer is not None:
        tokenizer = reading.tokenizer.for_target if sources else reading.tokenizer
        special = tokenizer.special_tokens
        config = config.with_special_tokens(special.begin, special.ends, special.never)
    nodes = search_tree(GenerationJob(model, make_requests([prompt], sources), config), search)
    return BeamTree(options.beams, nodes, tuple(reading.token(node.id) for node in nodes))

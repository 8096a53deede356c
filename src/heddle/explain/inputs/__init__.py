"""Inputs of `explain`: its options, a text as each kind of model reads it, and hooks that watch the forward pass."""

from heddle.explain.inputs.encode import Given, read
from heddle.explain.inputs.forward import (
    CHUNK,
    DecoderReading,
    EncoderReading,
    PairReading,
    Reading,
    TokenSequence,
    replaced_embeddings,
)
from heddle.explain.inputs.options import DEFAULT, WHATS, ExplainFields, ExplainOptions, explain_options
from heddle.explain.inputs.pictures import SourcePicture
from heddle.explain.inputs.watch import (
    Observer,
    PartCall,
    Section,
    modules_of,
    observe,
    part_calls,
    parts_of,
    watch_blocks,
    watch_parts,
)

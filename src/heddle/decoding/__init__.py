"""Decoding: ids -> ids and ids -> odds. Generation with state, filters, keyed draws, beams, scoring by windows."""

from heddle.decoding.beam import Hypothesis, search
from heddle.decoding.carrying import nll_carried
from heddle.decoding.choices import BeamsConfig, ChoiceConfig, ContrastiveConfig, DrawConfig, GreedyConfig
from heddle.decoding.drafts import Draft, LookupDraft, ModelDraft
from heddle.decoding.forking import Fork, Glance, forked, glanced
from heddle.decoding.generation import Completion, Halt, Step, complete, follow, generate, room_for, stream
from heddle.decoding.grammar import Grammar, GrammarBook, GrammarConfig, LarkGrammar, RegexGrammar, SchemaGrammar
from heddle.decoding.guide import Both, Ending, Guide, allowed_many
from heddle.decoding.how import How, Wishes, how_of
from heddle.decoding.masked import Hiding, masked_output, nll_masked, readable_whole
from heddle.decoding.opening import Reason, Request, requests_of
from heddle.decoding.penalties import PenaltyConfig
from heddle.decoding.phrases import PhraseBook
from heddle.decoding.prefix import Prefixes
from heddle.decoding.reach import at_rest, caches, fits, padded, readable, readable_source
from heddle.decoding.recorded import forget
from heddle.decoding.risk import overlap, utilities
from heddle.decoding.scoring import (
    Continuation,
    Document,
    Losses,
    Measure,
    Windows,
    any_of,
    by_length,
    nll_given,
    nll_of,
    windows_for,
)
from heddle.decoding.speculative import speculate
from heddle.decoding.vocabulary import Vocabulary

__all__ = [
    "BeamsConfig",
    "Both",
    "ChoiceConfig",
    "Completion",
    "Continuation",
    "ContrastiveConfig",
    "Document",
    "Draft",
    "DrawConfig",
    "Ending",
    "Fork",
    "Glance",
    "Grammar",
    "GrammarBook",
    "GrammarConfig",
    "GreedyConfig",
    "Guide",
    "Halt",
    "Hiding",
    "How",
    "Hypothesis",
    "LarkGrammar",
    "LookupDraft",
    "Losses",
    "Measure",
    "ModelDraft",
    "PenaltyConfig",
    "PhraseBook",
    "Prefixes",
    "Reason",
    "RegexGrammar",
    "Request",
    "SchemaGrammar",
    "Step",
    "Vocabulary",
    "Windows",
    "Wishes",
    "allowed_many",
    "any_of",
    "at_rest",
    "by_length",
    "caches",
    "complete",
    "fits",
    "follow",
    "forget",
    "forked",
    "generate",
    "glanced",
    "how_of",
    "masked_output",
    "nll_carried",
    "nll_given",
    "nll_masked",
    "nll_of",
    "overlap",
    "padded",
    "readable",
    "readable_source",
    "readable_whole",
    "requests_of",
    "room_for",
    "search",
    "speculate",
    "stream",
    "utilities",
    "windows_for",
]

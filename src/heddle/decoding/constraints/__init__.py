"""Constrained decoding: regular expressions, JSON schemas, grammars, required and forbidden phrases."""

from heddle.decoding.constraints.constraint import Both, Ending, Guide, allowed_many, obeyed
from heddle.decoding.constraints.grammar import (
    Grammar,
    GrammarBook,
    GrammarConfig,
    LarkGrammar,
    RegexGrammar,
    SchemaGrammar,
)
from heddle.decoding.constraints.phrases import PhraseBook
from heddle.decoding.constraints.vocabulary import Vocabulary

__all__ = [
    "Both",
    "Ending",
    "Grammar",
    "GrammarBook",
    "GrammarConfig",
    "Guide",
    "LarkGrammar",
    "PhraseBook",
    "RegexGrammar",
    "SchemaGrammar",
    "Vocabulary",
    "allowed_many",
    "obeyed",
]

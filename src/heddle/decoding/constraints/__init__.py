"""Constrained decoding: regular expressions, JSON schemas, grammars, required and forbidden phrases."""

from heddle.decoding.constraints.constraint import (
    Conjunction,
    Constraint,
    EndingConstraint,
    allowed_tokens,
    apply_constraints,
)
from heddle.decoding.constraints.grammar import (
    CompiledGrammar,
    GrammarCompiler,
    GrammarConfig,
    LarkGrammar,
    RegexGrammar,
    SchemaGrammar,
)
from heddle.decoding.constraints.phrases import CompiledPhrases
from heddle.decoding.constraints.vocabulary import Vocabulary

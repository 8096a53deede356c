"""Constrained decoding of text: a regular expression, a JSON schema or a grammar, required and forbidden phrases."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from heddle.core import Config, ConfigError, replace, settings
from heddle.decoding.constraints import (
    CompiledGrammar,
    CompiledPhrases,
    Conjunction,
    EndingConstraint,
    GrammarCompiler,
    GrammarConfig,
    LarkGrammar,
    RegexGrammar,
    SchemaGrammar,
    Vocabulary,
)
from heddle.text.tokenizers import Tokenizer, token_bytes_of


@settings
class TextConstraints(Config):
    """Constraints on the new text: a grammar for the whole of it, phrases it must contain, phrases it must not contain.

    Phrases match anywhere, inside words too. With a regular expression all constraints are met exactly; with another
    grammar, generation can reach a dead end where grammar and phrases contradict each other.
    """

    grammar: GrammarConfig | None = None
    require: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()


def make_constraints(
    regex: str | None = None,
    schema: str | Mapping[str, Any] | None = None,
    grammar: str | None = None,
    require: str | Sequence[str] = (),
    forbid: str | Sequence[str] = (),
) -> TextConstraints:
    """Return constraints for `LM.generate(constraints=...)`: at most one of regex, schema and grammar, and phrases.

    regex is a regular expression in Rust's syntax, schema a JSON schema as text or as a dict, grammar the text of a
    Lark grammar; require and forbid are one phrase or several.
    """
    given = {"regex": regex, "schema": schema, "grammar": grammar}
    for name, value in given.items():
        if value is not None and not isinstance(value, str) and not (name == "schema" and isinstance(value, Mapping)):
            raise ConfigError(name, want="a text" if name != "schema" else "a text or a dict", got=value)
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ConfigError(named[1], f"cannot be combined with `{named[0]}`")
    chosen: GrammarConfig | None = None
    if regex is not None:
        chosen = RegexGrammar(pattern=regex)
    elif schema is not None:
        chosen = SchemaGrammar(schema=schema if isinstance(schema, str) else _json(schema))
    elif grammar is not None:
        chosen = LarkGrammar(text=grammar)
    return TextConstraints(grammar=chosen, require=_phrases("require", require), forbid=_phrases("forbid", forbid))


def _json(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(schema))
    except (TypeError, ValueError):
        raise ConfigError("schema", want="a dict that can be written as JSON", got=schema) from None


def _phrases(name: str, given: object) -> tuple[str, ...]:
    """Return one phrase or several as a tuple."""
    found = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (None,)
    texts = tuple(phrase for phrase in found if isinstance(phrase, str))
    if len(texts) < len(found):
        raise ConfigError(name, want="a phrase or a list of phrases", got=given)
    return texts


@final
class ConstraintCompiler:
    """Compiles constraints for one tokenizer; a row ends at the ids in `stop`, by default at the tokenizer's own."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[int] = ()) -> None:
        token_bytes = token_bytes_of(tokenizer)
        ends = frozenset(stop) or frozenset(tokenizer.special_tokens.ends)
        self._vocabulary = Vocabulary(
            token_bytes.inside,
            token_bytes.first,
            token_bytes.fresh,
            token_bytes.silent,
            ends,
            unknown=tokenizer.unknown,
        )

    @cached_property
    def _grammars(self) -> GrammarCompiler:
        return GrammarCompiler(self._vocabulary)

    def compile(self, constraints: TextConstraints) -> "CompiledConstraints":
        """Compile constraints, for any number of rows."""
        _check_phrases(constraints)
        if isinstance(constraints.grammar, RegexGrammar):
            constraints = _merged(constraints, constraints.grammar)
        grammar = None if constraints.grammar is None else self._grammars.compile(constraints.grammar)
        if not constraints.require and not constraints.forbid:
            return CompiledConstraints(self._vocabulary, grammar, None)
        require, forbid = ([phrase.encode() for phrase in each] for each in (constraints.require, constraints.forbid))
        return CompiledConstraints(self._vocabulary, grammar, CompiledPhrases(self._vocabulary, require, forbid))


@dataclass(frozen=True)
class CompiledConstraints:
    """Compiled constraints: `begin` returns the constraint of each row."""

    words: Vocabulary
    grammar: CompiledGrammar | None
    phrases: CompiledPhrases | None

    def begin(self, after: Sequence[int] = (), limit: int | None = None) -> EndingConstraint | None:
        """Return the constraint of a row that continues the ids `after`; None: unconstrained.

        limit: the maximum of new tokens, so that required phrases come in time.
        """
        fresh = not after or after[-1] in self.words.fresh or after[-1] in self.words.silent
        grammar = None if self.grammar is None else self.grammar.begin(fresh)
        phrases = None if self.phrases is None else self.phrases.begin(fresh, limit)
        if grammar is None or phrases is None:
            return phrases if grammar is None else grammar
        return Conjunction(grammar, phrases)


def _check_phrases(constraints: TextConstraints) -> None:
    """Refuse empty phrases and invalid Unicode."""
    for name, phrases in (("require", constraints.require), ("forbid", constraints.forbid)):
        for phrase in phrases:
            if not phrase:
                raise ConfigError(name, want="phrases of one character or more", got=phrase)
            try:
                phrase.encode()
            except UnicodeEncodeError:
                raise ConfigError(name, want="Unicode text", got=phrase) from None


def _merged(constraints: TextConstraints, regex: RegexGrammar) -> TextConstraints:
    """Merge the phrases into the regular expression, so that no row reaches a dead end."""
    around = "(?s:.*){}(?s:.*)"
    all_of = tuple(around.format(_escaped(phrase)) for phrase in constraints.require)
    none_of = tuple(around.format(_escaped(phrase)) for phrase in constraints.forbid)
    merged = replace(regex, all_of=regex.all_of + all_of, none_of=regex.none_of + none_of)
    return TextConstraints(grammar=merged)


def _escaped(phrase: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else f"\\x{{{ord(c):X}}}" for c in phrase)

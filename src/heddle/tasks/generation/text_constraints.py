"""Constraining: what a text that is written must be, must hold and must not hold, as guides for decoding."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from heddle.core import Config, ConfigError, replace, settings
from heddle.decoding.constraints import (
    Both,
    CompiledPhrases,
    Ending,
    Grammar,
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
    """What a new text must obey: the whole of it a grammar, phrases that it must hold, phrases that it must not.

    Phrases are found anywhere, inside words too. With a regular expression they are followed exactly; with another
    grammar a row can come to where the grammar wants what the phrases do not.
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
    """Compose rules from the words of the command line; at most one of them says what the whole text is.

    regex is an expression in Rust's dialect, schema a JSON schema as text or as a table, grammar the text of a Lark
    grammar; require and forbid are phrases, one or several.
    """
    given = {"regex": regex, "schema": schema, "grammar": grammar}
    for name, value in given.items():
        if value is not None and not isinstance(value, str) and not (name == "schema" and isinstance(value, Mapping)):
            raise ConfigError(name, want="a text" if name != "schema" else "a text or a table", got=value)
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ConfigError(named[1], want=f"no other grammar beside {named[0]}", got=given[named[1]])
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
        raise ConfigError("schema", want="a table that JSON can hold", got=schema) from None


def _phrases(name: str, given: object) -> tuple[str, ...]:
    """Return phrases, one or several."""
    found = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (None,)
    texts = tuple(phrase for phrase in found if isinstance(phrase, str))
    if len(texts) < len(found):
        raise ConfigError(name, want="a phrase or a list of phrases", got=given)
    return texts


@final
class ConstraintCompiler:
    """A tokenizer made ready to write by rules; a row ends at the ids in `stop`, at the tokenizer's own if none."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[int] = ()) -> None:
        spelling = token_bytes_of(tokenizer)
        ends = frozenset(stop) or frozenset(tokenizer.special_tokens.ends)
        self._words = Vocabulary(
            spelling.inside, spelling.first, spelling.fresh, spelling.silent, ends, unknown=tokenizer.unknown
        )

    @cached_property
    def _book(self) -> GrammarCompiler:
        return GrammarCompiler(self._words)

    def read(self, rules: TextConstraints) -> "CompiledConstraints":
        """Compile rules, for as many rows as there may be."""
        _check(rules)
        if isinstance(rules.grammar, RegexGrammar):
            rules = _merged(rules, rules.grammar)
        grammar = None if rules.grammar is None else self._book.read(rules.grammar)
        if not rules.require and not rules.forbid:
            return CompiledConstraints(self._words, grammar, None)
        require, forbid = ([phrase.encode() for phrase in phrases] for phrases in (rules.require, rules.forbid))
        return CompiledConstraints(self._words, grammar, CompiledPhrases(self._words, require, forbid))


@dataclass(frozen=True)
class CompiledConstraints:
    """Rules that were read: `begin` gives each row a guide."""

    words: Vocabulary
    grammar: Grammar | None
    phrases: CompiledPhrases | None

    def begin(self, after: Sequence[int] = (), room: int | None = None) -> Ending | None:
        """Return the guide of a row that goes on from the ids `after`; None: it may write anything.

        room: the new tokens that it may have, so that what is required is said in time.
        """
        fresh = not after or after[-1] in self.words.fresh or after[-1] in self.words.silent
        grammar = None if self.grammar is None else self.grammar.begin(fresh)
        phrases = None if self.phrases is None else self.phrases.begin(fresh, room)
        if grammar is None or phrases is None:
            return phrases if grammar is None else grammar
        return Both(grammar, phrases)


def _check(rules: TextConstraints) -> None:
    """Refuse phrases that are none."""
    for name, phrases in (("require", rules.require), ("forbid", rules.forbid)):
        for phrase in phrases:
            if not phrase:
                raise ConfigError(name, want="phrases of one character or more", got=phrase)
            try:
                phrase.encode()
            except UnicodeEncodeError:
                raise ConfigError(name, want="Unicode text", got=phrase) from None


def _merged(rules: TextConstraints, regex: RegexGrammar) -> TextConstraints:
    """Put phrases into the expression itself, so that no row comes to where the two disagree."""
    around = "(?s:.*){}(?s:.*)"
    all_of = tuple(around.format(_escaped(phrase)) for phrase in rules.require)
    none_of = tuple(around.format(_escaped(phrase)) for phrase in rules.forbid)
    merged = replace(regex, all_of=regex.all_of + all_of, none_of=regex.none_of + none_of)
    return TextConstraints(grammar=merged)


def _escaped(phrase: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else f"\\x{{{ord(c):X}}}" for c in phrase)

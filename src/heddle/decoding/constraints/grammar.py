"""Constrained decoding by a regular expression, a JSON schema or a Lark grammar, followed by `llguidance`.

It matches bytes with derivatives of regular expressions under an Earley parser, so a row may take every tokenization of
an allowed text, and no id is allowed after which no bytes could finish the text. A vocabulary without a token for each
byte can still reach a state where none of its tokens fits; nothing is allowed there.
"""

import json
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from numpy.typing import NDArray

from heddle.core import Config, ConfigError, MissingExtra, UsageError, part, settings
from heddle.core.system import parse_json
from heddle.decoding.constraints.ambiguity import splits_explode
from heddle.decoding.constraints.constraint import BatchedConstraint, Mask, Masks
from heddle.decoding.constraints.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

# By default the library allows only one tokenization of text that must come next; the model may choose its own.
OPTIONS = '\n%llguidance {"no_forcing": true}\n'
GAP = "( |\n {0,16})?"  # whitespace inside JSON; with more, a small model spends all its tokens on it
LOCATION = re.compile(r'at \d+\(\d+\): (failed to compile JSON schema: |invalid regex ".*" \(in regex\): )?')
VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")
STUCK = "NoExtensionBias"  # how the library reports that no token fits
NOT_ALLOWED = "doesn't satisfy the grammar"  # how it refuses a token that is not among those that fit
WORD = 32  # ids in each integer of a native mask
FUEL = 10_000_000  # limit on the work for one grammar, some 50,000 steps a millisecond, so that nothing hangs
LONGEST = 100_000  # characters of a pattern or a grammar
MAX_PROPERTIES = 500  # of a schema
SEVERAL = 4  # rows from which on threads pay


@settings
class GrammarConfig(Config):
    """Family of grammars that the whole text of a row must match."""

    @abstractmethod
    def rules(self) -> str:
        """Return the grammar in the library's own dialect of Lark."""

    @abstractmethod
    def error(self, reason: str) -> ConfigError:
        """Return the error that this grammar cannot be followed, with the reason."""


@part("regex")
class RegexGrammar(GrammarConfig):
    r"""The whole text matches a regular expression, in Rust's dialect: no look-around, no back-references.

    `\d` means 0 to 9, since versions of Unicode differ in what else is a digit.
    all_of, none_of: further expressions that the whole text must match, or must not.
    """

    pattern: str
    all_of: tuple[str, ...] = ()
    none_of: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.pattern) > LONGEST:
            raise ConfigError("regex", want=f"at most {LONGEST:,} characters", got=f"{len(self.pattern):,}")

    def rules(self) -> str:
        """Return one terminal: the patterns' intersection."""
        from llguidance import regex_to_lark

        signed = [("", self.pattern), *(("", p) for p in self.all_of), *(("~", p) for p in self.none_of)]
        for _, pattern in signed:
            if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
                raise self.error("it ends in the middle of an escape")
            if "\n" in pattern and VERBOSE.search(pattern):  # the library would read the rest as a comment
                raise self.error("an expression in verbose mode stands on one line")
        return "start: TEXT\nTEXT: " + " & ".join(f"{sign}/(?:){regex_to_lark(p, 'd')}/" for sign, p in signed)

    def error(self, reason: str) -> ConfigError:
        """Name the pattern."""
        want = f"a pattern that can be followed ({without_location(reason)})"
        return ConfigError("regex", want=want, got=self.pattern)


@part("schema")
class SchemaGrammar(GrammarConfig):
    """The text is JSON that a schema allows; unsupported keywords are refused, not ignored."""

    schema: str  # as JSON itself

    def __post_init__(self) -> None:
        try:
            count = _properties(parse_json(self.schema, "schema"))
        except ConfigError:  # what is no JSON is refused when it is compiled
            return
        if count > MAX_PROPERTIES:
            raise ConfigError("schema", want=f"at most {MAX_PROPERTIES} properties", got=f"{count:,}")

    def rules(self) -> str:
        """Return the schema, with whitespace kept short unless it says otherwise under `x-guidance`."""
        schema = parse_json(self.schema, "schema")
        if isinstance(schema, dict):
            schema = {"x-guidance": {"whitespace_pattern": GAP}} | schema
        return f"start: %json {json.dumps(schema)}"

    def error(self, reason: str) -> ConfigError:
        """Name the schema."""
        want = f"a JSON schema that can be followed ({without_location(reason)})"
        return ConfigError("schema", want=want, got=self.schema)


@part("lark")
class LarkGrammar(GrammarConfig):
    """The text is what the rule `start` of a context-free grammar derives, in Lark's notation."""

    text: str

    def __post_init__(self) -> None:
        if len(self.text) > LONGEST:
            raise ConfigError("grammar", want=f"at most {LONGEST:,} characters", got=f"{len(self.text):,}")
        if (rule := splits_explode(self.text)) is not None:
            raise ConfigError(
                "grammar", want="no rule that splits a text in countless ways (use + to repeat)", got=rule
            )

    def rules(self) -> str:
        """Return the grammar as it stands."""
        return self.text

    def error(self, reason: str) -> ConfigError:
        """Name the grammar."""
        return ConfigError("grammar", want=f"a Lark grammar that can be followed ({reason})", got=self.text)


@final
class GrammarCompiler:
    """Compiles grammars for a vocabulary: `compiler.compile(grammar).begin()` constrains a row."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ImportError:
            raise MissingExtra("llguidance", "grammar", "writing by a grammar") from None
        self.vocabulary = vocabulary
        self.span = -(-len(vocabulary) // WORD) * WORD
        tables = [vocabulary.inside] if vocabulary.uniform_spelling else [vocabulary.inside, vocabulary.first]
        empty = vocabulary.silent | vocabulary.stop | {vocabulary.unknown}
        words = [b"" if i in empty else word for table in tables for i, word in enumerate([*table, *self._holes()])]
        # a stop id with text of its own would add to the text; with no stop id, use one that no model can generate
        stops = sorted(vocabulary.stop & vocabulary.silent) or [len(words)]
        words += [b""] * WORD
        for stop in stops:
            words[stop] = b"<stop>"
        self.words = len(words) // WORD
        self.has_all_bytes = {bytes([byte]) for byte in range(256)} <= set(words)
        spec, slices = TokenizerWrapper(_TokenizerSpec(words, stops)), LLTokenizer.json_slices()
        self.native = LLTokenizer(spec, len(words), stops, slices=slices)
        self._threads: LLExecutor | None = None

    def _holes(self) -> list[bytes]:
        return [b""] * (self.span - len(self.vocabulary))

    def compile(self, grammar: GrammarConfig) -> "CompiledGrammar":
        """Compile a grammar; refuse one that cannot be followed or that matches no text."""
        from llguidance import LLMatcher, LLParserLimits

        try:
            rules = grammar.rules() + OPTIONS
            rules.encode()
        except UnicodeEncodeError:
            raise grammar.error("it is not Unicode text") from None
        limits = LLParserLimits(initial_lexer_fuel=FUEL, step_lexer_fuel=FUEL // 5, verbose_errors=False)
        matcher = LLMatcher(self.native, rules, log_level=0, limits=limits)
        trial = matcher.deep_copy()
        if not trial.is_error():  # finds grammars that match no text, or are too large for one token
            allowed = np.unpackbits(np.frombuffer(trial.compute_bitmask(), np.uint8), bitorder="little")
            if not trial.is_error():
                trial.consume_token(int(allowed.argmax()))
        if trial.is_error():
            raise grammar.error(error_line(trial.get_error()))
        return CompiledGrammar(self, matcher)

    def masks(self, matchers: Sequence["LLMatcher"]) -> NDArray[np.uint8]:
        """Return a row of bits for each matcher, one for each id."""
        if not self.has_all_bytes:  # a matcher that allows nothing cannot be used again
            matchers = [matcher.deep_copy() for matcher in matchers]
        bits = np.zeros((len(matchers), self.words), np.int32)
        size = self.words * bits.itemsize
        threads = torch.get_num_threads()
        if len(matchers) < SEVERAL or threads == 1:
            for row, matcher in zip(bits, matchers, strict=True):
                matcher.unsafe_compute_mask_ptr(row.ctypes.data, size)
        else:
            if self._threads is None:
                from llguidance import LLExecutor

                self._threads = LLExecutor(threads)
            rows = [(matcher, row) for row, matcher in enumerate(matchers)]
            self._threads.unsafe_compute_mask_ptr(rows, bits.ctypes.data, size, len(bits))
        for row, matcher in zip(bits, matchers, strict=True):
            if matcher.is_error():
                if not matcher.get_error().startswith(STUCK):
                    raise UsageError(f"grammar: too complex to follow further: {error_line(matcher.get_error())}")
                row.fill(0)
        return np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")


@dataclass(frozen=True)
class CompiledGrammar:
    """A compiled grammar, from which the constraint of each row begins."""

    compiler: GrammarCompiler
    matcher: "LLMatcher"

    def begin(self, fresh: bool = True) -> "GrammarConstraint":
        """Return the constraint of one row; `fresh`: no text comes before it."""
        return GrammarConstraint(self.compiler, _MatcherState(self.matcher.deep_copy(), 0), 0, fresh)


@dataclass
class _MatcherState:
    """A matcher that follows one text; the constraints of that text share it."""

    matcher: "LLMatcher"
    consumed: int  # ids that it has consumed


@final
class GrammarConstraint(BatchedConstraint):
    """The state of a row in a grammar. The matcher moves on with the row; an earlier state rewinds a copy of it."""

    def __init__(self, compiler: GrammarCompiler, shared: _MatcherState, at: int, fresh: bool) -> None:
        self._compiler, self._shared, self._at, self._fresh = compiler, shared, at, fresh

    def _matcher(self) -> "LLMatcher":
        """Return a matcher in this state: the shared one, or a rewound copy."""
        beyond = self._shared.consumed - self._at
        if beyond:
            copy = self._shared.matcher.deep_copy()
            copy.rollback(beyond)
            self._shared = _MatcherState(copy, self._at)
        return self._shared.matcher

    def allowed(self) -> Mask:
        """Return which ids may come next."""
        return self.allowed_batch([self])[0]

    @property
    def batch_key(self) -> object:
        """Return the compiler: all of its rows form one batch."""
        return self._compiler

    def allowed_batch(self, constraints: Sequence["GrammarConstraint"]) -> Masks:
        """Compute the masks of all rows at once."""
        compiler = self._compiler
        bits = compiler.masks([constraint._matcher() for constraint in constraints])
        masks = bits[:, : len(compiler.vocabulary)]
        if not compiler.vocabulary.uniform_spelling:
            stops = sorted(compiler.vocabulary.stop)
            for row, constraint in enumerate(constraints):
                if constraint._fresh:
                    ends = masks[row, stops]
                    masks[row] = bits[row, compiler.span : compiler.span + len(compiler.vocabulary)]
                    masks[row, stops] = ends
        return torch.from_numpy(masks).view(torch.bool)

    def advance(self, id: int) -> "GrammarConstraint":
        """Return the constraint after one more id, which must be allowed here."""
        compiler, matcher = self._compiler, self._matcher()
        shifted = self._fresh and not compiler.vocabulary.uniform_spelling and id not in compiler.vocabulary.stop
        if not matcher.consume_token(id + compiler.span if shifted else id):
            if NOT_ALLOWED not in matcher.get_error():
                raise UsageError(f"grammar: too complex to follow further: {error_line(matcher.get_error())}")
            raise UsageError(f"grammar: want an id that is allowed here, got {id}")
        self._shared.consumed += 1
        return GrammarConstraint(compiler, self._shared, self._at + 1, compiler.vocabulary.next_fresh(id, self._fresh))

    @property
    def finished(self) -> bool:
        """Tell whether the text is complete and cannot continue."""
        return self._matcher().is_stopped()

    @property
    def may_end(self) -> bool:
        """Tell whether the text is complete."""
        return self._matcher().is_accepting()


@dataclass(frozen=True)
class _TokenizerSpec:
    """What the library needs of a tokenizer: the bytes of each id, and the stop ids."""

    tokens: list[bytes]
    special_token_ids: list[int]
    bos_token_id: int | None = None

    @property
    def eos_token_id(self) -> int:
        return self.special_token_ids[0]

    def __call__(self, text: bytes | str) -> list[int]:
        return []  # used only for text that must come next, which is switched off


def _properties(schema: object) -> int:
    """Count the properties that a schema names, at any depth."""
    count, left = 0, [schema]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            named = each.get("properties")
            count += len(named) if isinstance(named, dict) else 0
        left += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
    return count


def error_line(message: str) -> str:
    """Return the line of a native error message that says what is wrong."""
    lines = [line.strip() for line in message.split("<state>")[0].splitlines() if line.strip()]
    for line in lines:
        if line.startswith("error: "):
            return line.removeprefix("error: ")
    first = (lines or ["unknown fault"])[0]
    return "no text can be written by it" if first.startswith(STUCK) else first[:160]


def without_location(reason: str) -> str:
    """Return a reason without its location in rules that the user did not write."""
    return LOCATION.sub("", reason)

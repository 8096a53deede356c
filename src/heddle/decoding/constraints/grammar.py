"""Grammars: rows that spell a regular expression, a JSON schema or a Lark grammar, followed by `llguidance`.

It follows bytes with derivatives of regular expressions under an Earley parser, so that a row may go on in every
tokenisation of an allowed text, and no id is allowed after which no bytes would finish the text. A vocabulary without
a token for each byte can still come to where none of its tokens goes on; nothing is allowed there.
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
from heddle.decoding.constraints.constraint import Mask, Masks, Together
from heddle.decoding.constraints.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

# Left to itself the library allows one tokenisation alone of what must come next; the model may choose its own.
OPTIONS = '\n%llguidance {"no_forcing": true}\n'
GAP = "( |\n {0,16})?"  # between the signs of JSON; with more, a small model spends all its tokens on padding
PLACE = re.compile(r'at \d+\(\d+\): (failed to compile JSON schema: |invalid regex ".*" \(in regex\): )?')
VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")
STUCK = "NoExtensionBias"  # how the library says that no token goes on
WORD = 32  # ids in each number of a native mask
FUEL = 10_000_000  # steps of work on a grammar's expressions, some 50,000 of which take a millisecond: nothing hangs
SEVERAL = 4  # rows from which on threads are worth waking


@settings
class GrammarConfig(Config):
    """Family of grammars: what the whole of a row's text must be."""

    @abstractmethod
    def rules(self) -> str:
        """Return the grammar in the library's own dialect of Lark."""

    @abstractmethod
    def fault(self, reason: str) -> ConfigError:
        """Say that the grammar cannot be followed, and why."""


@part("regex")
class RegexGrammar(GrammarConfig):
    r"""The whole text matches a regular expression, in Rust's dialect: no look-around, no back-references.

    `\d` means 0 to 9: which other characters are digits depends on who is asked, by the version of Unicode.
    all_of, none_of: further expressions that the whole text must match, or must not.
    """

    pattern: str
    all_of: tuple[str, ...] = ()
    none_of: tuple[str, ...] = ()

    def rules(self) -> str:
        """Return one terminal: the patterns' intersection."""
        from llguidance import regex_to_lark

        signed = [("", self.pattern), *(("", p) for p in self.all_of), *(("~", p) for p in self.none_of)]
        for _, pattern in signed:
            if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
                raise self.fault("it ends in the middle of an escape")
            if "\n" in pattern and VERBOSE.search(pattern):  # the library would take the rest for a comment
                raise self.fault("an expression in verbose mode stands on one line")
        return "start: TEXT\nTEXT: " + " & ".join(f"{sign}/(?:){regex_to_lark(p, 'd')}/" for sign, p in signed)

    def fault(self, reason: str) -> ConfigError:
        """Name the pattern."""
        return ConfigError("regex", want=f"a pattern that can be followed ({unplaced(reason)})", got=self.pattern)


@part("schema")
class SchemaGrammar(GrammarConfig):
    """The text is JSON that a schema allows; a keyword that cannot be kept is refused, not ignored."""

    schema: str  # as JSON itself

    def rules(self) -> str:
        """Return the schema, with whitespace kept short unless it says otherwise under `x-guidance`."""
        schema = parse_json(self.schema, "schema")
        if isinstance(schema, dict):
            schema = {"x-guidance": {"whitespace_pattern": GAP}} | schema
        return f"start: %json {json.dumps(schema)}"

    def fault(self, reason: str) -> ConfigError:
        """Name the schema."""
        return ConfigError("schema", want=f"a JSON schema that can be followed ({unplaced(reason)})", got=self.schema)


@part("lark")
class LarkGrammar(GrammarConfig):
    """The text is what the rule `start` of a context-free grammar derives, in Lark's notation."""

    text: str

    def rules(self) -> str:
        """Return the grammar as it stands."""
        return self.text

    def fault(self, reason: str) -> ConfigError:
        """Name the grammar."""
        return ConfigError("grammar", want=f"a Lark grammar that can be followed ({reason})", got=self.text)


@final
class GrammarCompiler:
    """A vocabulary made ready for grammars, once: `book.read(grammar).begin()` guides a row."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ImportError:
            raise MissingExtra("llguidance", "grammar", "writing by a grammar") from None
        self.vocabulary = vocabulary
        self.span = -(-len(vocabulary) // WORD) * WORD
        sides = [vocabulary.inside] if vocabulary.even else [vocabulary.inside, vocabulary.first]
        mute = vocabulary.silent | vocabulary.stop | {vocabulary.unknown}
        words = [b"" if i in mute else word for side in sides for i, word in enumerate([*side, *self._holes()])]
        # a stop with a text of its own would write beyond the grammar; with no stop, one that no model can give
        stops = sorted(vocabulary.stop & vocabulary.silent) or [len(words)]
        words += [b""] * WORD
        for stop in stops:
            words[stop] = b"<stop>"
        self.words = len(words) // WORD
        self.whole = {bytes([byte]) for byte in range(256)} <= set(words)
        self.native = LLTokenizer(
            TokenizerWrapper(_Spelt(words, stops)), len(words), stops, slices=LLTokenizer.json_slices()
        )
        self._threads: LLExecutor | None = None

    def _holes(self) -> list[bytes]:
        return [b""] * (self.span - len(self.vocabulary))

    def read(self, grammar: GrammarConfig) -> "Grammar":
        """Compile a grammar, refusing in one line what cannot be followed or has no text at all."""
        from llguidance import LLMatcher, LLParserLimits

        try:
            rules = grammar.rules() + OPTIONS
            rules.encode()
        except UnicodeEncodeError:
            raise grammar.fault("it is no Unicode text") from None
        limits = LLParserLimits(initial_lexer_fuel=FUEL, step_lexer_fuel=FUEL // 5, verbose_errors=False)
        matcher = LLMatcher(self.native, rules, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # finds what has no text
        if matcher.is_error():
            raise grammar.fault(reason_of(matcher.get_error()))
        return Grammar(self, matcher)

    def fill(self, matchers: Sequence["LLMatcher"]) -> NDArray[np.uint8]:
        """Return a row of bits for each matcher, one for each word."""
        if not self.whole:  # a matcher that finds nothing allowed is of no use any more
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
                    raise UsageError(f"grammar: too complex to follow further: {reason_of(matcher.get_error())}")
                row.fill(0)
        return np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")


@dataclass(frozen=True)
class Grammar:
    """A grammar that was read: every row begins from the same place, and shares what was learnt of it."""

    book: GrammarCompiler
    matcher: "LLMatcher"

    def begin(self, fresh: bool = True) -> "GrammarConstraint":
        """Return a guide of one row; `fresh`: no text stands before it."""
        return GrammarConstraint(self.book, _Walk(self.matcher.deep_copy(), 0), 0, fresh)


@dataclass
class _Walk:
    """A matcher on its way along one text; the guides of that text share it."""

    matcher: "LLMatcher"
    taken: int  # ids that it has taken


@final
class GrammarConstraint(Together):
    """Where a row stands in a grammar. The matcher goes on with the row; who asks an earlier guide gets a copy."""

    def __init__(self, book: GrammarCompiler, walk: _Walk, at: int, fresh: bool) -> None:
        self._book, self._walk, self._at, self._fresh = book, walk, at, fresh

    def _matcher(self) -> "LLMatcher":
        """Return a matcher that stands here: the one that came here, or a copy of it taken back."""
        beyond = self._walk.taken - self._at
        if beyond:
            copy = self._walk.matcher.deep_copy()
            copy.rollback(beyond)
            self._walk = _Walk(copy, self._at)
        return self._walk.matcher

    def allowed(self) -> Mask:
        """Tell which ids the text may go on with."""
        return self.together([self])[0]

    @property
    def kin(self) -> object:
        """Name the book: all of its rows are asked together."""
        return self._book

    def together(self, constraints: Sequence["GrammarConstraint"]) -> Masks:
        """Fill the masks of all rows at once."""
        book = self._book
        bits = book.fill([constraint._matcher() for constraint in constraints])
        masks = bits[:, : len(book.vocabulary)]
        if not book.vocabulary.even:
            stops = sorted(book.vocabulary.stop)
            for row, constraint in enumerate(constraints):
                if constraint._fresh:
                    ends = masks[row, stops]
                    masks[row] = bits[row, book.span : book.span + len(book.vocabulary)]
                    masks[row, stops] = ends
        return torch.from_numpy(masks).view(torch.bool)

    def take(self, id: int) -> "GrammarConstraint":
        """Return where the row stands after one more id, which must be allowed here."""
        book, matcher = self._book, self._matcher()
        shifted = self._fresh and not book.vocabulary.even and id not in book.vocabulary.stop
        if not matcher.consume_token(id + book.span if shifted else id):
            raise UsageError(f"grammar: want an id that is allowed here, got {id}")
        self._walk.taken += 1
        return GrammarConstraint(book, self._walk, self._at + 1, book.vocabulary.freshly(id, self._fresh))

    @property
    def finished(self) -> bool:
        """Tell whether the text is whole and cannot go on."""
        return self._matcher().is_stopped()

    @property
    def may_end(self) -> bool:
        """Tell whether the text is whole."""
        return self._matcher().is_accepting()


@dataclass(frozen=True)
class _Spelt:
    """What the library asks of a tokenizer: bytes of each id, and which ids end a text."""

    tokens: list[bytes]
    special_token_ids: list[int]
    bos_token_id: int | None = None

    @property
    def eos_token_id(self) -> int:
        return self.special_token_ids[0]

    def __call__(self, text: bytes | str) -> list[int]:
        return []  # asked only for what must come next, which is switched off


def reason_of(message: str) -> str:
    """Return the one line of a native message that says what is wrong."""
    lines = [line.strip() for line in message.split("<state>")[0].splitlines() if line.strip()]
    for line in lines:
        if line.startswith("error: "):
            return line.removeprefix("error: ")
    first = (lines or ["unknown fault"])[0]
    return "no text can be written by it" if first.startswith(STUCK) else first[:160]


def unplaced(reason: str) -> str:
    """Return a reason without where it was found in rules that the user did not write."""
    return PLACE.sub("", reason)

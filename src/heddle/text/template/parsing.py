"""Parsing by Jinja's own lexer and parser, set up as Hugging Face does for chat templates; its compiler never runs.

The parser is recursive, and slow on megabytes: a source is bounded in length and words; nesting ends in one line.
"""

from collections.abc import Iterable, Iterator
from functools import cache

from jinja2 import Environment, TemplateSyntaxError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser

from heddle.text.template.values import TemplateError

MAX_CHARACTERS = 1 << 17  # characters of a template; the longest in use have about a fifth of it
MAX_TOKENS = 1 << 14  # words of code in it; the longest in use have about a quarter of it
GENERATION = "{% generation %}"  # the name of its filter, which no template can write


def parse(source: str) -> list[nodes.Node]:
    """Parse a template into the statements of a syntax tree."""
    if len(source) > MAX_CHARACTERS:
        raise TemplateError(f"is longer than {MAX_CHARACTERS} characters")
    try:
        return Parser(_environment(), source).parse().body
    except TemplateSyntaxError as error:
        fault = TemplateError((error.message or "wrong syntax")[:300])
        fault.line = error.lineno
        raise fault from None
    except ValueError:  # a number of thousands of digits
        raise TemplateError("has a number that is too long") from None


@cache
def _environment() -> Environment:
    return Environment(trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _Generation, _WordLimit])


class _Generation(Extension):
    """`{% generation %}`: a filter block that marks the part that the model writes."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        mark = nodes.Filter(None, GENERATION, [], [], None, None, lineno=line)
        return nodes.FilterBlock(body, mark, lineno=line)


class _WordLimit(Extension):
    """Stops the parser after too many words."""

    def filter_stream(self, stream: TokenStream) -> Iterable[Token]:
        return _limited(stream)


def _limited(stream: Iterable[Token]) -> Iterator[Token]:
    for count, token in enumerate(stream):
        if count > MAX_TOKENS:
            raise TemplateError(f"has more than {MAX_TOKENS} words of code")
        yield token

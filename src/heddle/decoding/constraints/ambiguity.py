"""Ambiguity of a context-free grammar: rules such as `s: s s`, which split a text in a number of ways that explodes.

An Earley parser (Earley 1970) then takes time cubic in the length of the text, and its rows overflow.
"""

import re
from collections.abc import Iterable

# Literals, regular expressions, comments and directives of the Lark format, whatever they contain.
OPAQUE = re.compile(r'"(?:[^"\\]|\\.)*"i?|/(?:[^/\\\n]|\\.)+/[a-z]*|//.*|%.*|#.*')
RULE = re.compile(r"^[?!]?([a-z_]\w*)(?:\.\d+)?\s*:((?:[^:\n]|\n\s*\|)*)", re.MULTILINE)
SYMBOL = re.compile(r"(\w+)\s*([?*+]?)")
MAX_RULES = 500  # of a grammar that is looked at; in larger ones the parser itself finds that a row overflows
LITERAL = "LITERAL"  # a terminal: names of rules are in lower case

Choices = dict[str, list[list[tuple[str, str]]]]  # of each rule: symbols, each with its quantifier


def splits_explode(grammar: str) -> str | None:
    """Return a rule that derives itself twice in a row, such as `s: s s`, or None; groups are read as if flat."""
    choices = _choices(grammar)
    if len(choices) > MAX_RULES:
        return None
    nullable = _nullable(choices)
    edges = {name: _alone(each, nullable) for name, each in choices.items()}
    for name, each in choices.items():
        for choice in (one for one in each if len(one) > 1):
            selves = [symbol for symbol, _ in choice if _reaches(edges, symbol, name)]
            if len(selves) > 1 and _may_vanish([one for one in choice if one[0] not in selves], nullable):
                return f"{name}: {' '.join(symbol + mark for symbol, mark in choice)}"
    return None


def _choices(grammar: str) -> Choices:
    found: Choices = {}
    for name, body in RULE.findall(OPAQUE.sub(f" {LITERAL} ", grammar)):
        found[name] = [_symbols(choice) for choice in body.split("|")]
    return found


def _symbols(choice: str) -> list[tuple[str, str]]:
    """Return symbols with their quantifiers; part of a group is not all that stands there."""
    cut = choice.count("(") != choice.count(")") or choice.count("[") != choice.count("]")
    return [*SYMBOL.findall(re.sub(r"->\s*\w+", "", choice)), *[(LITERAL, "")] * cut]


def _may_vanish(symbols: Iterable[tuple[str, str]], nullable: set[str]) -> bool:
    return all(mark in ("?", "*") or symbol in nullable for symbol, mark in symbols)


def _nullable(choices: Choices) -> set[str]:
    """Return the rules that derive the empty text."""
    found: set[str] = set()
    while more := {n for n, each in choices.items() if n not in found and any(_may_vanish(c, found) for c in each)}:
        found |= more
    return found


def _alone(choices: list[list[tuple[str, str]]], nullable: set[str]) -> set[str]:
    """Return the symbols that a rule can become when everything else vanishes."""
    rest = [(choice[at][0], [*choice[:at], *choice[at + 1 :]]) for choice in choices for at in range(len(choice))]
    return {symbol for symbol, others in rest if _may_vanish(others, nullable)}


def _reaches(edges: dict[str, set[str]], start: str, end: str) -> bool:
    """Tell whether a symbol can become a rule, step by step."""
    seen, left = {start}, [start]
    while left:
        left += (more := edges.get(left.pop(), set()) - seen)
        seen |= more
    return end in seen

"""Templates against Jinja as oracle: generators, undefined values, random expressions; Jinja's compiler never runs."""

import builtins
import time
import warnings
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.compiler import CodeGenerator
from text.chats import jinja

from heddle.core import UsageError
from heddle.text.template import TRUSTED, Template, value_of

VALUES: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": " Hi ", "n": 1},
        {"role": "assistant", "content": None, "n": 2},
        {"role": "user", "content": "<b>", "n": 3},
    ],
    "empty": [],
    "nothing": None,
    "word": "aXbXc",
    "table": {"b": [1, 2], "a": {"x": "é"}},
}


def outcome(source: str) -> str | None:
    """Return what Heddle renders, or None where it refuses in one line."""
    try:
        return Template(source).render({name: value_of(value) for name, value in VALUES.items()}).plain
    except UsageError as error:
        assert "\n" not in str(error) and len(str(error)) < 500
        return None


def oracle(source: str) -> str | None:
    """Return what Jinja renders, or None where it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return jinja(source, VALUES)
        except Exception:
            return None


LAZY = """
messages | selectattr('role', 'equalto', 'nobody') and 'true'
'yes' if empty | select else 'no'
'yes' if empty | reject('none') else 'no'
'yes' if empty | map('upper') else 'no'
'yes' if empty | rejectattr('x') else 'no'
'yes' if (empty | map('upper') | list) else 'no'
messages | map(attribute='role') | length
messages | selectattr('n') | count
messages | selectattr('n') | list | length
(messages | map(attribute='n')) is sequence
(messages | map(attribute='n')) is iterable
(messages | map(attribute='n'))[0] is defined
(messages | map(attribute='n')) + [1]
messages | map(attribute='n') | tojson
messages | map(attribute='n') | first
messages | map(attribute='n') | last
messages | map(attribute='n') | sum
messages | map(attribute='n') | sort(reverse=true)
messages | map(attribute='n') | max
2 in (messages | map(attribute='n'))
messages | map(attribute='role') | unique | join
messages | map(attribute='role') | unique | length
messages | reverse | length
messages | reverse | map(attribute='n') | join
table | items | length
table | items | list | length
table.items() | length
table.items() is sequence
table.keys()
table.items()
table.values() | list
range(3)
range(3)[1]
range(5) | length
nothing | selectattr('text') | list
nothing | map(attribute='text') | join
nothing | list
messages | map(attribute='content') | select | list
messages | map('nosuch') | list
empty | map('nosuch') | list
messages | map() | list
messages | selectattr() | list
missing | default(none) is none
missing | default(none)
missing | default
nothing | default('x')
nothing | default('x', true)
missing | default(missing) is defined
missing | length
missing | int
missing | list
missing | upper
missing | tojson
missing.x
missing['x'] is defined
bos_token
bos_token ~ 'x'
bos_token + 'x'
bos_token is defined
messages[0]['nope'] is defined
table['items'] is defined
word['upper']()
word.format(1)
'{}-{}'.format('a', 2)
'{1}{0}{x}'.format('a', 'b', x='c')
'{{}}{}'.format(1)
'{}'.format()
[1, [2]] < [1, [3]]
[1] < ['a']
{'a': 1} < {}
(1, 2) == [1, 2]
messages[0] == messages[0] and messages[0] in messages
word is callable ~ (range is callable)
word | indent(2, true) ~ ('a\\n\\nb' | indent('> ', true, true))
table | dictsort(by='value')
table | dictsort(reverse=true)
messages | sort(attribute='role,n') | map(attribute='n') | join
messages | unique(attribute='role') | map(attribute='n') | join
messages | min(attribute='n')
2.567 | round(1, 'floor') ~ (2.1 | round(method='ceil'))
word.split('X', 1) ~ word.rsplit('X', 1) ~ word.partition('X') ~ word.rpartition('q')
word.find('X', 2) ~ word.startswith('X', 1) ~ word.index('X')
word.index('q')
word[::2] ~ messages[5:] ~ table[1:]
table | tojson(indent='\\t')
table | tojson(separators=(',',))
namespace({'a': 1}, b=2).b
range(*[1, 4]) | list
dict(**{'a': 1})
""".strip().splitlines()


@pytest.mark.parametrize("expression", LAZY)
def test_expressions_render_or_fail_as_in_jinja(expression: str) -> None:
    source = f"<{{{{ {expression} }}}}>"
    assert outcome(source) == oracle(source)


STATEMENTS = [
    "{% set n = namespace(x=[]) %}{% for m in messages if m.n > 1 %}{% set n.x = n.x + [m.n] %}{% endfor %}{{ n.x }}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ [f][0](*[1]) }}{{ f(**{'a': 2, 'b': 3}) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}",
    "{% if false %}{{ word | from_json }}{% endif %}ok",
    "{% if false %}{% include 'x' %}{% endif %}ok",
    "{{ word | from_json }}",
    "{% for x in messages | selectattr('role', 'eq', 'user') %}{{ loop.length }}{{ x.n }}{{ loop.last }}{% endfor %}",
    "{% for x in nothing %}{% endfor %}",
    "{% set g = messages | map(attribute='n') %}{{ g | list }}{{ g | list }}",
    "{% set x | replace('a', 'b') %}{{ word }}{% endset %}{{ x }}",
    "{% filter upper | replace('A', 'b') %}{{ word }}{% endfilter %}",
    "{% for m in messages %}{% if m.n == 2 %}{% break %}{% endif %}{{ m.n }}{% endfor %}",
    "{% set x.y = 1 %}",
    "{% set a, b = [1] %}",
]


@pytest.mark.parametrize("source", STATEMENTS)
def test_statements_render_or_fail_as_in_jinja(source: str) -> None:
    assert outcome(source) == oracle(source)


def test_recursive_loops_and_unknown_names_are_refused_by_name_and_line() -> None:
    wrong = {
        "\n{{ word | from_json }}": "line 2: no filter is called 'from_json'",
        "{{ word is nosuchtest }}": "line 1: no test is called 'nosuchtest'",
        "{% for x in messages recursive %}{% endfor %}": "line 1: recursive loops are not supported",
        "\n\n{% import 'os' as os %}": "line 3: no statement is called 'import' here",
    }
    for source, message in wrong.items():
        with pytest.raises(UsageError) as caught:
            Template(source).render({"word": value_of("x"), "messages": value_of([1])})
        assert str(caught.value).startswith(f"chat template: {message}")


# --- random templates -------------------------------------------------------------------------------------------------

LEAVES = """1 2.5 true none '' 'X' [] [1,'a'] {} {'a':1} (1,) missing word nothing empty messages messages[0] table
messages[1].content range(3) messages[-1].role"""
OPERATORS = "+ - * ~ == != < >= in and or"
FILTERS = """length list first last trim upper string tojson join default('d') default(none) select reject map('string')
map(attribute='role') selectattr('n') rejectattr('n','odd') unique reverse items dictsort sort sum int title max"""
TESTS = "defined none string mapping iterable sequence number boolean true callable"
MEMBERS = ".role [0] ['a'] .items() .get('a') .upper() .split('X') .strip() .x"


def one_of(words: str) -> st.SearchStrategy[str]:
    return st.sampled_from(words.split())


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, one_of(OPERATORS), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, one_of(FILTERS)).map(lambda t: f"({t[0]} | {t[1]})"),
        st.tuples(inner, one_of(TESTS)).map(lambda t: f"({t[0]} is {t[1]})"),
        st.tuples(inner, one_of(MEMBERS)).map(lambda t: f"{t[0]}{t[1]}"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
    )


@settings(max_examples=300, deadline=None)
@given(expression=st.recursive(one_of(LEAVES), larger, max_leaves=6))
def test_random_expressions_render_or_fail_as_in_jinja(expression: str) -> None:
    source = f"{{% for x in [1] %}}{{{{ {expression} }}}}{{% endfor %}}"
    expected = oracle(source)
    if expected is None or (" - " in expression and ".items()" in expression):  # a set, which templates here lack
        outcome(source)  # at most one line; we may be more lenient
    elif not any(word in expected.lower() for word in ("object", "built-in", "iterator")):  # Python's own objects
        assert outcome(source) == expected


# --- parsing ----------------------------------------------------------------------------------------------------------


def test_jinjas_compiler_never_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **named: Any) -> Any:
        raise AssertionError("compiled")

    with monkeypatch.context() as patched:
        patched.setattr(jinja2.Environment, "compile", refuse)
        patched.setattr(CodeGenerator, "__init__", refuse)
        patched.setattr(builtins, "exec", refuse)
        patched.setattr(builtins, "eval", refuse)
        rendered = Template("{{ 1.5 }}{% generation %}{{ word }}{% endgeneration %}").render({"word": value_of("x")})
        with pytest.raises(UsageError, match=r"^chat template: line 1: "):
            Template("{% if %}")
    assert rendered.plain == "1.5x"


DEEP = {
    "brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "not": "{{ " + "not " * 8000 + "1 }}",
    "if": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "attributes": "{{ word" + ".x" * 5000 + " }}",
    "sums": "{{ 1" + " + 1" * 5000 + " }}",
}


@pytest.mark.parametrize("name", DEEP)
def test_deep_templates_are_refused_in_one_line_and_quickly(name: str) -> None:
    start = time.process_time()
    with pytest.raises(UsageError, match=r"^chat template: (line 1: )?nests (too deep|deeper than 100 levels)$"):
        Template(DEEP[name]).render({"word": value_of("x")})
    assert time.process_time() - start < 1


def test_long_templates_are_refused_before_they_are_parsed() -> None:
    with pytest.raises(UsageError, match=r"^chat template: is longer than 131072 characters$"):
        Template("x" * 200_000)
    with pytest.raises(UsageError, match=r"^chat template: has more than 16384 words of code$"):
        Template("{{ 1 }}" * 9000)
    with pytest.raises(UsageError, match=r"^chat template: has a number that is too long$"):
        Template("{{ " + "9" * 5000 + " }}")


def test_marks_survive_format_and_partition() -> None:
    found = Template("{{ '<|{}|>'.format(m) }}{{ (m ~ '<|x').partition('<')[2] }}").render({"m": value_of("u<")})
    assert found.plain == "<|u<|>" + "<|x"
    assert [bool(mark & TRUSTED) for mark in found.marks] == [True, True, False, False, True, True, True, True, True]


def test_a_piece_keeps_its_own_marks_where_the_separator_holds_the_same_letters() -> None:
    found = Template("{{ ('xab' ~ m).split('ab')[1] }}").render({"m": value_of("a")})
    assert found.plain == "a" and found.marks == b"\0"

"""Grammars: what is written obeys them, every tokenization is allowed, and what cannot be followed is refused."""

import itertools
import json
import random
import re
import sys
import time
from typing import Any

import pytest
import torch
from decoding.constrained import VOCABULARY, WORDS, ids_of, written
from decoding.grammars import obeys, random_grammar

from heddle.core import ConfigError, MissingExtra, UsageError
from heddle.decoding.constraints import (
    CompiledPhrases,
    Conjunction,
    GrammarCompiler,
    GrammarConfig,
    LarkGrammar,
    RegexGrammar,
    SchemaGrammar,
    Vocabulary,
    allowed_tokens,
)
from heddle.decoding.generation import GenerationConfig, MultinomialSampling, complete
from heddle.decoding.runtime import FinishReason, Request
from heddle.decoding.sampling import PenaltyConfig
from heddle.decoding.search import BeamSearch
from heddle.models.networks import LanguageModel
from heddle.models.presets import build
from heddle.tasks.generation import ConstraintCompiler, TextConstraints, make_constraints
from heddle.text.tokenizers import (
    BpeTokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    TextStream,
    Tokenizer,
    TokenizerConfig,
    UnigramTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
)

pytest.importorskip("llguidance")

TEXT = 'def name(age): return {"items": [1, 2.5, "the end"], "x1": null, "name": true}\n' * 3 + "The cat sat.\n"


@pytest.fixture(scope="module")
def book() -> GrammarCompiler:
    return GrammarCompiler(VOCABULARY)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return BpeTokenizer().train([TEXT])


def tiny(vocab: int) -> LanguageModel:
    model = build("llama", layers=1, width=16, heads=2, vocab=vocab)
    assert isinstance(model, LanguageModel)
    return model


# --- what is allowed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["(ab|c)*a?", "a{2,3}b", "(abc){1,2}", "[^c]*", "€|ab"])
def test_an_id_is_allowed_where_some_text_goes_on_with_it(book: GrammarCompiler, pattern: str) -> None:
    alphabet = ["a", "b", "c", "€"]
    texts = ("".join(t) for n in range(8) for t in itertools.product(alphabet, repeat=n))
    whole = {text.encode() for text in texts if re.fullmatch(pattern, text)}
    parts = {text[:n] for text in whole for n in range(len(text) + 1)}
    draw = random.Random(0)
    for _ in range(6):
        constraint, ids = book.compile(RegexGrammar(pattern=pattern)).begin(), list[int]()
        while len(written(ids, VOCABULARY)) <= 3:
            text = written(ids, VOCABULARY)
            expected = {i for i, word in enumerate(WORDS) if word and text + word in parts}
            allowed = ids_of(constraint, len(WORDS))
            assert allowed == expected | ({0} if text in whole else set()), text
            assert constraint.may_end == (text in whole)
            if constraint.finished or allowed == {0}:
                break
            ids.append(draw.choice(sorted(allowed - {0})))
            constraint = constraint.advance(ids[-1])


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("", ""),
        ("/", "/"),
        ("[/]//", "///"),
        (r"\/\\/", "/\\/"),
        ("a\nb\t", "a\nb\t"),
        ("a | b", " b"),
        ("^a|b$", "b"),
        ("(?i)é", "É"),
        ("a*?", "aa"),
        ("(?s).", "\n"),
        ("\0", "\0"),
    ],
)
def test_expressions_mean_what_they_mean_to_python(pattern: str, text: str) -> None:
    constraint = byte_book().compile(RegexGrammar(pattern=pattern, none_of=("",) if text else ())).begin()
    assert re.fullmatch(pattern, text)
    assert constraint.may_end == (not text)
    for byte in text.encode():
        assert byte in ids_of(constraint, 257)
        constraint = constraint.advance(byte)
    assert 256 in ids_of(constraint, 257) and constraint.may_end


def byte_book() -> GrammarCompiler:
    words = (*(bytes([byte]) for byte in range(256)), b"")
    return GrammarCompiler(Vocabulary(words, words, silent=frozenset([256]), stop=frozenset([256])))


@pytest.mark.parametrize("layout", [{}, {"indent": 2}, {"indent": 4}, {"separators": (",", ":")}], ids=str)
def test_json_may_be_laid_out_in_the_usual_ways_but_not_padded(layout: dict[str, Any]) -> None:
    constraint = (
        byte_book().compile(SchemaGrammar(schema='{"type": "object", "properties": {"a": {"type": "array"}}}')).begin()
    )
    for byte in json.dumps({"a": [1, {"b": [None, {}]}], "c": "x"}, **layout).encode():
        assert byte in ids_of(constraint, 257)
        constraint = constraint.advance(byte)
    assert constraint.finished
    assert (
        ids_of(byte_book().compile(SchemaGrammar(schema="{}")).begin().advance(ord("[")).advance(ord(" ")), 257)
        & {10, 32}
        == set()
    )


def test_earlier_constraints_stay_as_they_were(book: GrammarCompiler) -> None:
    grammar = book.compile(RegexGrammar(pattern="(abc|acb|ba){1,4}"))
    draw, seen = random.Random(0), [(grammar.begin(), list[int]())]
    for _ in range(60):
        constraint, ids = draw.choice(seen)
        fresh = grammar.begin()
        for id in ids:
            fresh = fresh.advance(id)
        allowed = ids_of(constraint, len(WORDS))
        assert allowed == ids_of(fresh, len(WORDS)) and constraint.finished == fresh.finished
        if allowed - {0}:
            id = draw.choice(sorted(allowed - {0}))
            seen.append((constraint.advance(id), [*ids, id]))


def test_requested_together_or_alone_rows_are_allowed_the_same(book: GrammarCompiler) -> None:
    lark = LarkGrammar(text='start: "b" start | "a"')
    grammars: list[GrammarConfig] = [RegexGrammar(pattern="(ab)*"), lark, RegexGrammar(pattern="c")]
    constraints = [book.compile(g).begin() for g in grammars] * 2
    threads = torch.get_num_threads()
    for number in (1, 2):
        torch.set_num_threads(number)
        many = allowed_tokens(constraints, len(WORDS))
        assert many is not None
        assert all(torch.equal(row, constraint.allowed()) for row, constraint in zip(many, constraints, strict=True))
    torch.set_num_threads(threads)


def test_no_token_for_what_cannot_be_spelt_and_no_stop_with_text() -> None:
    words = (b"", b"a", "\ufffd".encode(), b"\n")
    book = GrammarCompiler(Vocabulary(words, words, silent=frozenset([0]), stop=frozenset([0, 3]), unknown=2))
    constraint = book.compile(RegexGrammar(pattern="(?s:.*)")).begin()
    assert ids_of(constraint, 4) == {0, 1}


def test_without_a_stop_a_finished_row_may_do_nothing() -> None:
    words = (b"a", b"b")
    constraint = GrammarCompiler(Vocabulary(words, words)).compile(RegexGrammar(pattern="ab?")).begin().advance(0)
    assert ids_of(constraint, 2) == {1} and constraint.may_end and not constraint.finished
    assert ids_of(constraint.advance(1), 2) == set() and constraint.advance(1).finished


def test_where_no_token_goes_on_nothing_is_allowed_and_earlier_constraints_still_serve(book: GrammarCompiler) -> None:
    constraint = book.compile(RegexGrammar(pattern="ax|ab+")).begin()
    after = constraint.advance(1)
    assert ids_of(after, len(WORDS)) == {2}
    dead = book.compile(RegexGrammar(pattern="(a|c)x|b")).begin()
    branch = dead.advance(1)
    assert ids_of(branch, len(WORDS)) == set() and not branch.finished and not branch.may_end
    assert ids_of(dead, len(WORDS)) == {1, 2, 5} and dead.advance(2).finished


def test_an_id_that_is_not_allowed_cannot_be_taken(book: GrammarCompiler) -> None:
    with pytest.raises(UsageError, match="want an id that is allowed here, got 5"):
        book.compile(RegexGrammar(pattern="a")).begin().advance(5)


def test_both_grammar_and_phrases_agree_on_the_end(book: GrammarCompiler) -> None:
    both = Conjunction(
        book.compile(RegexGrammar(pattern="[a-c]{3}")).begin(), CompiledPhrases(VOCABULARY, [b"c"]).begin()
    )
    assert both.advance(3).advance(5).finished
    stuck = both.advance(3).advance(1)
    assert not stuck.finished and ids_of(stuck, len(WORDS)) == set()


# --- what cannot be followed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (RegexGrammar(pattern="[a"), "regex: want a pattern that can be followed (unclosed character class), got '[a'"),
        (
            RegexGrammar(pattern="a\\"),
            "regex: want a pattern that can be followed (it ends in the middle of an escape)",
        ),
        (RegexGrammar(pattern="(?=a)b"), "regex: want a pattern that can be followed (look-around"),
        (RegexGrammar(pattern="ab", none_of=("a.*",)), "regex: want a pattern that can be followed (no text"),
        (RegexGrammar(pattern="(" * 3000 + ")" * 3000), "regex: want a pattern that can be followed ("),
        (RegexGrammar(pattern="(?x)a # b\n c"), "regex: want a pattern that can be followed (an expression in verbose"),
        (RegexGrammar(pattern="\ud800"), "regex: want a pattern that can be followed (it is not Unicode text)"),
        (SchemaGrammar(schema="{"), "schema: want valid JSON"),
        (SchemaGrammar(schema="[1]"), "schema: want a JSON schema that can be followed (schema must be an object"),
        (SchemaGrammar(schema="false"), "schema: want a JSON schema that can be followed (Unsatisfiable"),
        (
            SchemaGrammar(schema='{"type": "strin"}'),
            "schema: want a JSON schema that can be followed (Invalid type: strin",
        ),
        (SchemaGrammar(schema='{"uniqueItems": true, "type": "array"}'), "schema: want a JSON schema that can be fol"),
        (SchemaGrammar(schema='{"$ref": "#"}'), "schema: want a JSON schema that can be followed (no text"),
        (SchemaGrammar(schema='{"items":' * 900 + "{}" + "}" * 900), "schema: want "),
        (
            LarkGrammar(text="start: foo"),
            'grammar: want a Lark grammar that can be followed (at 1(8): unknown name: "foo"',
        ),
        (LarkGrammar(text='begin: "a"'), "grammar: want a Lark grammar that can be followed (no start rule found)"),
    ],
)
def test_bad_grammars_are_refused_in_one_line(book: GrammarCompiler, grammar: GrammarConfig, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        book.compile(grammar)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize(
    "grammar",
    [
        RegexGrammar(pattern="(a|b){1000000}"),
        RegexGrammar(pattern="((a{1,1000}){1,1000}){1,1000}"),
        RegexGrammar(pattern="(a|ab)*" * 40 + "c"),
        RegexGrammar(pattern=".*a.{300}"),
        SchemaGrammar(schema='{"type": "array", "minItems": 1000000000000, "items": {"enum": ["a", "b"]}}'),
        SchemaGrammar(schema='{"type": "string", "minLength": 100000000000}'),
        LarkGrammar(text='start: start "a" start | "a" | "b"'),
    ],
)
def test_huge_bounds_do_not_hang(book: GrammarCompiler, grammar: GrammarConfig) -> None:
    begun = time.monotonic()
    try:
        constraint = book.compile(grammar).begin()
        for _ in range(20):
            allowed = ids_of(constraint, len(WORDS)) - {0}
            if not allowed:
                break
            constraint = constraint.advance(min(allowed))
    except (ConfigError, UsageError) as error:
        assert "\n" not in str(error)
    assert time.monotonic() - begun < 5


def test_without_the_extra_a_grammar_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingExtra, match=r"pip install 'heddle\[grammar\]'"):
        ConstraintCompiler(tokenizer).compile(make_constraints(regex="a")).begin()
    assert ConstraintCompiler(tokenizer).compile(make_constraints(forbid=["a"])).begin() is not None


# --- rules on text ----------------------------------------------------------------------------------------------------

KINDS: list[TokenizerConfig] = [
    ByteTokenizer(),
    CharacterTokenizer(),
    WordTokenizer(),
    BpeTokenizer(),
    WordPieceTokenizer(vocab=60),
    UnigramTokenizer(vocab=258),
]


def text_of(tokenizer: Tokenizer, after: list[int], ids: list[int]) -> str:
    """Return what a reader is shown of new ids."""
    stream = TextStream(tokenizer, after)
    return "".join([stream.push(id) for id in ids]) + stream.flush()


WANTED = " ?(the|cat|sat|end|name|items)([ \n](the|cat|sat|end|name|items)){2,6}"


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.kind)
@pytest.mark.parametrize("prompt", ["", "The cat", "The cat sat.\n"])
def test_every_kind_of_tokenizer_writes_what_the_rules_want(kind: TokenizerConfig, prompt: str) -> None:
    tokenizer = kind.train([TEXT])
    after = [tokenizer.end, *tokenizer.encode(prompt)]
    compiled = ConstraintCompiler(tokenizer).compile(
        make_constraints(regex=WANTED, require=["cat"], forbid=["cat sat", "the the"])
    )
    draw = random.Random(0)
    for _ in range(8):
        constraint, ids = compiled.begin(after), list[int]()
        assert constraint is not None
        while not constraint.finished:
            if (id := draw.choice(sorted(ids_of(constraint, tokenizer.vocab)))) == tokenizer.end:
                break
            ids.append(id)
            constraint = constraint.advance(id)
        text = text_of(tokenizer, after, ids)
        assert re.fullmatch(WANTED, text), text
        assert "cat" in text and "cat sat" not in text and "the the" not in text


def test_rules_without_a_grammar_hold_for_rows_that_end_at_their_length(tokenizer: Tokenizer) -> None:
    model = tiny(tokenizer.vocab)
    compiler = ConstraintCompiler(tokenizer).compile(make_constraints(require=["The end", "null"], forbid=["a", "e"]))
    with pytest.raises(ConfigError, match="require: this tokenizer cannot produce the phrases"):
        compiler.begin(limit=30)
    compiler = ConstraintCompiler(tokenizer).compile(make_constraints(require=["the end", "null"], forbid=["a", '"']))
    requests = [Request([tokenizer.end], constraint=compiler.begin(limit=14)) for _ in range(3)]
    for choice in (MultinomialSampling(seed=1), BeamSearch(beams=3)):
        for found in complete(model, requests, GenerationConfig(max_tokens=14, stop=(tokenizer.end,), strategy=choice)):
            text = tokenizer.decode(found.ids)
            assert "the end" in text and "null" in text and not {"a", '"'} & set(text), text


@pytest.mark.parametrize(
    "choice", [MultinomialSampling(seed=3), BeamSearch(beams=3), None], ids=["draw", "beams", "greedy"]
)
def test_a_model_larger_than_its_tokenizer_obeys(
    tokenizer: Tokenizer, choice: MultinomialSampling | BeamSearch | None
) -> None:
    model = tiny(tokenizer.vocab + 70)
    config = GenerationConfig(max_tokens=40, stop=(tokenizer.end,))
    config = config if choice is None else GenerationConfig(max_tokens=40, stop=(tokenizer.end,), strategy=choice)
    compiler = ConstraintCompiler(tokenizer).compile(make_constraints(regex="[a-z]{3,5}: [0-9]{2}"))
    rows = complete(model, [Request([tokenizer.end], constraint=compiler.begin()), Request([tokenizer.end])], config)
    assert re.fullmatch("[a-z]{3,5}: [0-9]{2}", tokenizer.decode(rows[0].ids))
    assert rows[0].reason is FinishReason.STOP


@pytest.mark.parametrize("phrase", ["", "\ud800"])
@pytest.mark.parametrize("regex", [None, "a"])
def test_phrases_that_are_no_text_are_refused(tokenizer: Tokenizer, phrase: str, regex: str | None) -> None:
    with pytest.raises(ConfigError, match="forbid: want"):
        ConstraintCompiler(tokenizer).compile(make_constraints(regex=regex, forbid=[phrase])).begin()


def test_two_grammars_at_once_are_refused() -> None:
    with pytest.raises(ConfigError, match="grammar: cannot be combined with `regex`"):
        make_constraints(regex="a", grammar='start: "a"')
    assert make_constraints(schema={"type": "null"}).grammar == SchemaGrammar(schema='{"type": "null"}')
    assert ConstraintCompiler(ByteTokenizer().train([])).compile(make_constraints()).begin() is None


# --- random schemas and expressions -----------------------------------------------------------------------------------


def run_random(tokenizer: Tokenizer, count: int) -> None:
    """Let a model of random weights write by random grammars, eight rows at once."""
    model, valid = tiny(tokenizer.vocab), 0
    ends = [*(tokenizer.encode(mark)[0] for mark in '"}],'), tokenizer.end]  # liked, or else numbers go on for long
    compiler = ConstraintCompiler(tokenizer)
    for first in range(0, count, 8):
        grammars = [random_grammar(seed) for seed in range(first, min(first + 8, count))]
        constraints = [compiler.compile(TextConstraints(grammar=grammar)).begin() for grammar in grammars]
        config = GenerationConfig(
            max_tokens=400,
            stop=(tokenizer.end,),
            strategy=MultinomialSampling(seed=first),
            penalties=PenaltyConfig(bias=tuple((id, 3.0) for id in ends)),
        )
        rows = complete(model, [Request([tokenizer.end], constraint=constraint) for constraint in constraints], config)
        for grammar, row in zip(grammars, rows, strict=True):
            assert row.reason is FinishReason.STOP
            assert obeys(tokenizer.decode(row.ids), grammar), (grammar, tokenizer.decode(row.ids))
            valid += 1
    print(f"constrained: {valid}/{count} valid")
    assert valid == count


def test_random_schemas_and_expressions_are_obeyed(tokenizer: Tokenizer) -> None:
    run_random(tokenizer, 24)


@pytest.mark.full
def test_four_hundred_random_schemas_and_expressions_are_obeyed(tokenizer: Tokenizer) -> None:
    run_random(tokenizer, 400)

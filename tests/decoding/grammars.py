"""Random JSON schemas and regular expressions, and whether a text obeys one: for tests and for the benchmark.

All lengths are bounded, so that even a model of random weights comes to an end.
"""

import json
import random
import re
from typing import Any

from heddle.decoding.constraints import GrammarConfig, RegexGrammar, SchemaGrammar

Schema = dict[str, Any]
LETTERS = ["[a-f]", "[A-Z0-9_]", "[0-9]", r"\d", "[^a-y]", ".", "[é日x]", "[ -~]"]
LITERALS = ["id", "a/b", r"\.", r"\\", "é", "日本", r"\{", '"', "<|end|>", " the ", r"\n"]
TEXTS = ["", "a", 'say "hi"', "naïve\\", "日本", "line\nline", "<|end|>", "x" * 20]


def random_pattern(draw: random.Random, depth: int = 0) -> str:
    """Return a regular expression that Python and Rust read in the same way."""
    parts = []
    for _ in range(draw.randint(1, 4 - depth)):
        kind = draw.random()
        if kind < 0.35:
            part = draw.choice(LITERALS)
        elif kind < 0.75 or depth == 2:
            part = draw.choice(LETTERS)
        else:
            inner = "|".join(random_pattern(draw, depth + 1) for _ in range(draw.randint(1, 3)))
            part = f"(?:{inner})" if draw.random() < 0.5 else f"({inner})"
        least = draw.randint(0, 3)
        grown = [f"(?:{part})?", f"(?:{part}){{{least},{least + draw.randint(0, 5)}}}", f"(?:{part}){{2}}"]
        parts.append(draw.choice(grown) if draw.random() < 0.5 else part)
    return "".join(parts)


def random_schema(draw: random.Random, depth: int = 0) -> Schema:
    """Return a schema of nested objects, bounded arrays, enumerations, ranges, patterns and choices."""
    kinds = [_string, _string, _integer, _number, _enum, _plain]
    if depth < 3:
        kinds += [_object, _array, _choice]
    if depth == 0:
        kinds = [_object, _object, _array, _choice, _defined]
    return draw.choice(kinds)(draw, depth)


def _string(draw: random.Random, depth: int) -> Schema:
    if draw.random() < 0.4:
        return {"type": "string", "pattern": f"^(?:{random_pattern(draw, 1)})$"}
    least = draw.randint(0, 4)
    return {"type": "string", "minLength": least, "maxLength": least + draw.randint(0, 12)}


def _integer(draw: random.Random, depth: int) -> Schema:
    low = draw.randint(-1000, 1000)
    bounds = {draw.choice(["minimum", "exclusiveMinimum"]): low, draw.choice(["maximum", "exclusiveMaximum"]): low + 50}
    return {"type": "integer"} | bounds | ({"multipleOf": 7} if draw.random() < 0.2 else {})


def _number(draw: random.Random, depth: int) -> Schema:
    low = round(draw.uniform(-10, 10), 2)
    return {"type": "number", "minimum": low, "maximum": round(low + draw.uniform(0.5, 100), 2)}


def _enum(draw: random.Random, depth: int) -> Schema:
    values = [*draw.sample(TEXTS, 2), draw.randint(-5, 5), None, True, [1, {"a": "b"}]]
    return {"const": draw.choice(values)} if draw.random() < 0.2 else {"enum": draw.sample(values, 3)}


def _plain(draw: random.Random, depth: int) -> Schema:
    return {"type": draw.choice(["boolean", "null", ["boolean", "null"]])}


def _object(draw: random.Random, depth: int) -> Schema:
    names = draw.sample(["name", "age", "a b", "é", 'q"', "items", "x1"], draw.randint(0, 4))
    properties = {name: random_schema(draw, depth + 1) for name in names}
    required = [name for name in names if draw.random() < 0.7]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _array(draw: random.Random, depth: int) -> Schema:
    if draw.random() < 0.2:
        first = [random_schema(draw, depth + 1) for _ in range(2)]
        return {"type": "array", "prefixItems": first, "items": False, "minItems": 2}
    least = draw.randint(0, 2)
    return {
        "type": "array",
        "items": random_schema(draw, depth + 1),
        "minItems": least,
        "maxItems": least + draw.randint(0, 3),
    }


def _choice(draw: random.Random, depth: int) -> Schema:
    return {"anyOf": [random_schema(draw, depth + 1) for _ in range(draw.randint(2, 3))]}


def _defined(draw: random.Random, depth: int) -> Schema:
    return _object(draw, 1) | {"$defs": {"one": random_schema(draw, 2)}} | _pair()


def _pair() -> Schema:
    two = {"type": "array", "items": {"$ref": "#/$defs/one"}, "minItems": 1, "maxItems": 2}
    return {"properties": {"one": {"$ref": "#/$defs/one"}, "more": two}, "required": ["one"]}


def random_grammar(seed: int) -> GrammarConfig:
    """Return the grammar of a seed: a schema if it is even, a regular expression if it is odd."""
    draw = random.Random(seed)
    if seed % 2:
        return RegexGrammar(pattern=random_pattern(draw))
    return SchemaGrammar(schema=json.dumps(random_schema(draw)))


def obeys(text: str, grammar: GrammarConfig) -> bool:
    """Tell whether a text is what a grammar wants, by Python's own means."""
    if isinstance(grammar, RegexGrammar):
        return re.fullmatch(grammar.pattern, text) is not None
    assert isinstance(grammar, SchemaGrammar)
    try:
        value = json.loads(text, object_pairs_hook=_without_twins)
    except ValueError:
        return False
    schema = json.loads(grammar.schema)
    return valid(value, schema, schema)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name stands twice")
    return dict(pairs)


TYPES = {"string": str, "boolean": bool, "null": type(None), "object": dict, "array": list}


def valid(value: Any, schema: Schema | bool, root: Schema) -> bool:
    """Tell whether a value obeys a schema: the keywords that are drawn above, and no others."""
    if isinstance(schema, bool):
        return schema
    known = {"$defs", "type", "properties", "required", "additionalProperties"} | CHECKS.keys()
    assert schema.keys() <= known, schema.keys() - known
    wanted = schema.get("type", [])
    kinds = wanted if isinstance(wanted, list) else [wanted]
    return (not kinds or any(_is(value, kind) for kind in kinds)) and all(
        check(value, schema, root) for name, check in CHECKS.items() if name in schema
    )


def _is(value: Any, kind: str) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind in ("number", "integer"):
        return number and (kind == "number" or value == int(value))
    return isinstance(value, TYPES[kind])


def _same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _items(value: Any, schema: Schema, root: Schema) -> bool:
    first = schema.get("prefixItems", [])
    rest = all(valid(v, schema["items"], root) for v in value[len(first) :])
    return rest and all(valid(v, s, root) for v, s in zip(value, first, strict=False))


def _members(value: Any, schema: Schema, root: Schema) -> bool:
    known = schema["properties"]
    return (
        set(schema.get("required", ())) <= value.keys() <= known.keys()
        and schema["additionalProperties"] is False
        and all(valid(v, known[name], root) for name, v in value.items())
    )


CHECKS = {
    "$ref": lambda v, s, root: valid(v, root["$defs"][s["$ref"].removeprefix("#/$defs/")], root),
    "anyOf": lambda v, s, root: any(valid(v, option, root) for option in s["anyOf"]),
    "enum": lambda v, s, root: any(_same(v, option) for option in s["enum"]),
    "const": lambda v, s, root: _same(v, s["const"]),
    "minLength": lambda v, s, root: len(v) >= s["minLength"],
    "maxLength": lambda v, s, root: len(v) <= s["maxLength"],
    "pattern": lambda v, s, root: re.fullmatch(s["pattern"][1:-1], v) is not None,
    "minimum": lambda v, s, root: v >= s["minimum"],
    "maximum": lambda v, s, root: v <= s["maximum"],
    "exclusiveMinimum": lambda v, s, root: v > s["exclusiveMinimum"],
    "exclusiveMaximum": lambda v, s, root: v < s["exclusiveMaximum"],
    "multipleOf": lambda v, s, root: v % s["multipleOf"] == 0,
    "minItems": lambda v, s, root: len(v) >= s["minItems"],
    "maxItems": lambda v, s, root: len(v) <= s["maxItems"],
    "prefixItems": lambda v, s, root: True,  # with items
    "items": _items,
    "properties": _members,
}

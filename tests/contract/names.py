"""Names: what users know by name: config keys, recipes, options of the command line, the library's doors, weights."""

import contextlib
import dataclasses
import importlib
import inspect
import io
import pkgutil
import re
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from contract import cases

import heddle
from heddle.core import MissingExtra
from heddle.core import config as core

Flat = dict[str, Any]


def collect() -> dict[str, Flat]:
    """Return everything by category; recipes and configs are trees, the others flat."""
    return {
        "configs": configs(),
        "recipes": recipes(),
        "options": options(),
        "public": public(),
        "state_dict": state_dicts(),
    }


# --- the command line -------------------------------------------------------------------------------------------------


def said(*words: str) -> str:
    """Run one command in this process; return what it wrote, and refuse a failure."""
    main = importlib.import_module("heddle.cli.main").main
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    if code:
        raise RuntimeError(f"heddle {' '.join(words)}: exit code {code}: {err.getvalue()}")
    return out.getvalue()


def options() -> Flat:
    """Return every verb's options and arguments."""
    return dict(_verbs(importlib.import_module("heddle.cli.main").command(), ""))


def _verbs(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    own = path or "heddle"
    yield own, "group" if hasattr(command, "commands") else "verb"
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    for place, one in enumerate(arguments, 1):
        yield f"{own} argument {place}", _facts(one)
    for one in command.params:
        if one.param_type_name == "option":
            yield f"{own} {'|'.join((*one.opts, *one.secondary_opts))}", _facts(one)
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _verbs(inner, f"{path} {name}".strip())


def _facts(one: Any) -> Flat:
    default = None if callable(one.default) or "UNSET" in repr(one.default) else one.default
    facts = {"default": default if _plain(default) else repr(default), "metavar": one.metavar}
    more = {"required": one.required, "multiple": getattr(one, "multiple", False), "many": one.nargs == -1}
    more |= {name: getattr(one, name, None) for name in ("is_flag", "min", "max", "hidden")}
    return facts | {name: value for name, value in more.items() if value not in (None, False)}


def _plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


@cache
def recipe(name: str) -> Flat:
    """Return the whole config of a recipe, as `train --print` writes it."""
    found: Flat = yaml.safe_load(said("train", name, "--print"))
    return found


def recipes() -> Flat:
    """Return the config of every recipe that `list` names."""
    listed = re.search(r"^recipes\n((?:  .*\n)*)", said("list"), re.MULTILINE)
    assert listed is not None
    names = [line.split()[0] for line in listed[1].splitlines()]
    return {name: recipe(name) for name in names}


# --- configs ----------------------------------------------------------------------------------------------------------


@cache
def _classes() -> list[type[core.Config]]:
    """Return every config class of the library; its modules are imported by walking, for they may move."""
    for module in pkgutil.walk_packages(heddle.__path__, "heddle."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except MissingExtra:  # lm-eval, of heddle.harness
                continue
            except ModuleNotFoundError as error:  # something optional is not installed
                if error.name is None or error.name.startswith("heddle"):
                    raise
    found: list[type[core.Config]] = []
    todo = [core.Config]
    while todo:
        children = [c for c in todo.pop().__subclasses__() if c.__module__.startswith("heddle.")]
        found += children
        todo += children
    return found


def _top(cls: type) -> type:
    """Return the family that a class belongs to: what stands directly below `Config`."""
    return [c for c in cls.__mro__ if issubclass(c, core.Config) and c is not core.Config][-1]


def _concrete(cls: type) -> bool:
    """Tell whether a class is one that files hold: with a kind of its own, or a table without kinds."""
    has_kind = cls.__dict__.get("kind") is not None
    return has_kind or (dataclasses.is_dataclass(cls) and not core.kinds(_top(cls)))  # type: ignore[arg-type]


def _inside(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and issubclass(hint, core.Config):
        yield hint
    for inner in typing.get_args(hint):
        yield from _inside(inner)


@cache
def _families() -> dict[type, str]:
    """Name each family by the field that mostly holds it; by its own first fields where none does."""
    held: dict[type, Counter[str]] = {}
    for cls in filter(_concrete, _classes()):
        for field, hint in core.field_types(cls).items():
            for inner in _inside(hint):  # a field that takes the whole family tells more than one for a few kinds
                held.setdefault(_top(inner), Counter())[field] += 1000 if inner is _top(inner) else 1
    tops = sorted({_top(cls) for cls in filter(_concrete, _classes())}, key=lambda c: c.__qualname__)
    names = {top: min(held[top], key=lambda f: (-held[top][f], f)) for top in tops if top in held}
    names |= {top: _root(list(core.field_types(top))) for top in tops if top not in held}
    shared = Counter(names.values())
    return {top: name if shared[name] == 1 else f"{name} ({_kinds(top)})" for top, name in names.items()}


def _root(fields: list[str]) -> str:
    """Name a table that no other holds."""
    return "run" if "training" in fields else f"table of {' '.join(fields[:3])}"


def _kinds(cls: type) -> str:
    own = core.kinds(cls) if core.kinds(cls) else core.field_types(cls)  # type: ignore[arg-type]
    return "|".join(sorted(own))


def table_of(cls: type) -> str:
    """Name a config as files know it: `optimizer/adamw`, `training`."""
    kind = cls.__dict__.get("kind")
    return _families()[_top(cls)] + (f"/{kind}" if kind is not None else "")


def _type(hint: Any) -> str:
    """Write a type with the names of families instead of classes'."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, core.Config):
        if _concrete(hint):
            return f"<{table_of(hint)}>"
        if _top(hint) not in _families():  # whose kinds are all the user's own
            return f"<{hint.__name__}>"
        return f"<{_families()[_top(hint)]}>" if hint is _top(hint) else f"<{_families()[_top(hint)]}: {_kinds(hint)}>"
    if origin in (types.UnionType, typing.Union):
        return " | ".join(_type(one) for one in inner)
    if origin is typing.Literal:
        return "|".join(map(str, inner))
    if origin is not None:
        return f"{origin.__name__}[{', '.join('...' if one is Ellipsis else _type(one) for one in inner)}]"
    return str(getattr(hint, "__name__", hint))


def configs() -> Flat:
    """Return the fields of every kind: each with its type and, if there is one, its default as files hold it."""
    tables: Flat = {}
    for cls in sorted(filter(_concrete, _classes()), key=table_of):
        hints = core.field_types(cls)
        tables[table_of(cls)] = {
            field.name: [_type(hints[field.name]), *_default(field)] for field in dataclasses.fields(cls)
        }
    return tables


def _default(field: dataclasses.Field[Any]) -> list[Any]:
    if field.default_factory is not dataclasses.MISSING:
        return [_encoded(field.default_factory())]
    return [] if field.default is dataclasses.MISSING else [_encoded(field.default)]


def _encoded(value: Any) -> Any:
    """Return a default as files hold it; of a config only what differs from its own table's defaults."""
    if isinstance(value, core.Config):
        own = {field.name: _default(field) for field in dataclasses.fields(value)}  # type: ignore[arg-type]
        told = {name: _encoded(inner) for name, inner in core.fields_of(value).items()}
        tag = {} if value.kind is None else {"kind": value.kind}
        return tag | {name: inner for name, inner in told.items() if own[name] != [inner]}
    if isinstance(value, tuple | list):
        return [_encoded(one) for one in value]
    return value if _plain(value) or isinstance(value, dict) else str(value)


# --- the library ------------------------------------------------------------------------------------------------------


def public() -> Flat:
    """Return the names of the front door, what they take, and every preset."""
    found: Flat = {f"heddle.{name}": "name" for name in dir(heddle)}
    found["heddle.__all__"] = sorted(heddle.__all__)
    for name in ("build", "load", "presets", "rules"):
        found |= _parameters(f"heddle.{name}", getattr(heddle, name))
    found |= _members("LM.", heddle.LM) | _parameters("LM", heddle.LM) | _parameters("LookupDraft", heddle.LookupDraft)
    for name, value in inspect.getmembers(heddle.LM):
        if not name.startswith("_") and name != "text_generator":  # which is for the tasks
            for cls in _given(value.fget if isinstance(value, property) else value):
                found |= _members(f"LM.{name} gives ", cls)
    origin = typing.get_type_hints(heddle.LM.__init__)["origin"]
    for cls in filter(_own, typing.get_args(origin)):
        found |= _members("LM.origin gives ", cls)
    return dict(sorted(found.items())) | {f"preset {name}": "preset" for name in heddle.presets()}


def _given(function: Callable[..., Any]) -> list[type]:
    """Return the library's own classes that a function gives, alone or in lists; models are for torch to describe."""
    hint = typing.get_type_hints(function)["return"]
    return [cls for cls in (hint, *typing.get_args(hint)) if _own(cls)]


def _own(cls: object) -> bool:
    return isinstance(cls, type) and cls.__module__.startswith("heddle.") and not issubclass(cls, torch.nn.Module)


def _members(name: str, cls: type) -> Flat:
    """Return what objects of a class offer."""
    found: Flat = {f"{name}{field}": "field" for field in getattr(cls, "__dataclass_fields__", {})}
    for member, value in inspect.getmembers(cls):
        if member.startswith("_") or f"{name}{member}" in found:
            continue
        found[f"{name}{member}"] = "method" if callable(value) else "property"
        found |= _parameters(f"{name}{member}", value) if inspect.isfunction(value) else {}
    return found


def _parameters(name: str, function: Callable[..., Any]) -> Flat:
    """Return the parameters of a function, without their types, in which classes would be named."""
    found: Flat = {}
    for place, one in enumerate(p for p in inspect.signature(function).parameters.values() if p.name != "self"):
        words = [] if one.kind is not one.VAR_KEYWORD else _words(function, one.name)
        how = f"keyword {one.name}" if one.kind is one.KEYWORD_ONLY else f"{place} {one.name}"
        default = "" if one.default is one.empty else f" = {_shown(one.default)}"
        found[f"{name}({'**' * (one.kind is one.VAR_KEYWORD)}{one.name})"] = words or f"{how}{default}"
    return found


def _shown(default: object) -> str:
    text = repr(default)
    return text if " at 0x" not in text and "(" not in text.lstrip("(") else "something"


def _words(function: Callable[..., Any], name: str) -> list[str]:
    """Return the keywords that `**words: Unpack[Words]` takes."""
    hint = typing.get_type_hints(function)[name]
    return [word for inner in typing.get_args(hint) for word in getattr(inner, "__annotations__", {})]


# --- weights ----------------------------------------------------------------------------------------------------------


def model(label: str, seed: int = 0) -> Any:
    """Build one of the small models; those with edits go by the config of kind `preset`, which the registry knows."""
    name, dials, edits = cases.MODELS[label]
    if not edits:
        return heddle.build(name, seed=seed, **dials)
    _classes()
    preset = core.kinds(core.Config)["preset"]
    fields = core.field_types(preset)
    own = {dial: value for dial, value in dials.items() if dial in fields}
    rest = {dial: value for dial, value in dials.items() if dial not in fields}
    config: Any = core.decode(preset, {"kind": "preset", "name": name, "dials": rest, "edits": edits, **own})
    return config.build(seed)


def state_dicts() -> Flat:
    """Return the shape of every weight of the small models."""
    return {
        label: {name: "x".join(map(str, w.shape)) or "scalar" for name, w in model(label).state_dict().items()}
        for label in cases.MODELS
    }


def where() -> Path:
    """Return the folder of the library that is looked at."""
    return Path(next(iter(heddle.__path__)))

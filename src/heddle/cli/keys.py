"""Keys: what `heddle help` shows of each config key, what a slot may hold, and a search over all sentences."""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer

from heddle.cli.catalog import COMMANDS, ROOT, Catalog, Key, Table, catalog, join

MAX_RESULTS = 16  # lines of a search
ENDINGS = ("ings", "ing", "ed", "es", "s")


@dataclass(frozen=True)
class KeyMatch:
    """Where a path of the user leads: a field, or the tables that it stands for, and the path as it is written."""

    path: str
    key: Key | None
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Entry:
    """Something that a search can find: how it is written, and its sentence."""

    name: str
    about: str
    depth: int


def explain(words: str) -> Iterator[str]:
    """Yield the lines of help about a key, or about words."""
    from heddle.core import UsageError, did_you_mean

    known, words = catalog(), words.strip()
    if not words:
        yield from _overview(known)
        return
    matches = find_matches(known, words)
    for match in matches:
        yield from _describe(known, match)
    shown = {match.path for match in matches}
    found = [] if matches and "." in words else [hit for hit in search(known, words) if hit.name not in shown]
    if not matches and not found:
        near = _nearest_key(known, words)
        more = did_you_mean(near) if near else "; `heddle help` lists the topics"
        raise UsageError(f"help: no key is called {words!r}, and no sentence has these words{more}")
    yield from _results(words, found, beside=bool(matches))


def _nearest_key(known: Catalog, words: str) -> str | None:
    """Return the key that was perhaps meant: of a path, one of the keys below the last table."""
    from heddle.core import nearest

    above, _, last = words.rpartition(".")
    for match in find_matches(known, above) if above else ():
        if (near := nearest(last, [name for table in match.tables for name in table.keys])) is not None:
            return f"{above}.{near}"
    return nearest(words, {name for table in known.tables.values() for name in (*table.keys, table.kind or "")})


def _overview(known: Catalog) -> Iterator[str]:
    yield "Config keys, as in `heddle train KEY=VALUE` or a YAML file; `heddle help KEY` tells more about one:"
    yield ""
    yield from _rows([(key.name, f"{_first_upper(key.about)}") for key in known.tables[ROOT].keys.values()])
    yield ""
    yield from _rows(
        [
            ("heddle help WORDS", "search: heddle help early stopping"),
            ("heddle list", "runs, recipes, presets, tokenizers, data sources"),
            ("heddle COMMAND -h", "the options of a command"),
            ("heddle help scale", "the keys of heddle scale; likewise compare"),
            ("docs/reference.md", "all keys on one page"),
        ]
    )


# --- a key ------------------------------------------------------------------------------------------------------------


def find_matches(known: Catalog, path: str) -> list[KeyMatch]:
    """Return where a dotted path leads: from the top or, for a single name, wherever a run's tables have that key.

    Keys of a command follow, with its name or without it: scale.budgets, or budgets.
    """
    keys = [one for one in re.split(r"[. ]", path.removeprefix("heddle ")) if not re.fullmatch(r"[0-9]+|N", one)]
    found = _find_in_run(known, keys)
    for command, name in COMMANDS.items():
        rest = keys[1:] if f"heddle {keys[0]}" == command else keys
        found += _follow(known, [known.tables[name]], rest, f"{command} ")
    return found


def _find_in_run(known: Catalog, keys: list[str]) -> list[KeyMatch]:
    found = _follow(known, [known.tables[ROOT]], keys, "")
    if found or len(keys) != 1:
        return found
    by_path: dict[str, KeyMatch] = {}
    for table in known.tables.values():  # the same key of several kinds is one match
        where = join(known.paths[table.name])
        if known.paths[table.name][:1] in [(command,) for command in COMMANDS]:
            continue
        if keys[0] == table.kind:
            by_path[f"{where}={table.kind}"] = KeyMatch(f"{where}={table.kind}", None, (table,))
        elif keys[0] in table.keys and len(known.paths[table.name]) < 3:
            key = table.keys[keys[0]]
            by_path.setdefault(f"{where}.{key.name}", KeyMatch(f"{where}.{key.name}", key, tuple(known.held(key))))
    return list(by_path.values())


def _follow(known: Catalog, tables: list[Table], keys: list[str], path: str) -> list[KeyMatch]:
    """Walk down by keys, and by names of kinds, which choose among tables."""
    if not keys:
        return [KeyMatch(path.strip(), None, tuple(tables))] if path else []
    first, rest = keys[0], keys[1:]
    chosen = [table for table in tables if table.kind == first]
    by_kind = _follow(known, chosen, rest, f"{path}={first}") if chosen else []
    return by_kind + _follow_key(known, tables, first, rest, path)  # a few names are both, such as model.encoder


def _follow_key(known: Catalog, tables: list[Table], first: str, rest: list[str], path: str) -> list[KeyMatch]:
    holders = [table for table in tables if first in table.keys]
    inner = f"{path}{'' if path.endswith(' ') or not path else '.'}{first}"
    if not rest:
        unique: dict[tuple[str, str], KeyMatch] = {}
        for table in holders:
            key = table.keys[first]
            own = inner if len(tables) == 1 or len(holders) == len(tables) else f"{path}={table.kind}: {first}"
            unique.setdefault((key.about, key.type), KeyMatch(own, key, tuple(known.held(key))))
        return list(unique.values())
    below = {held.name: held for table in holders for held in known.held(table.keys[first])}
    return _follow(known, list(below.values()), rest, inner) if below else []


def _describe(known: Catalog, match: KeyMatch) -> Iterator[str]:
    tables = match.tables
    if match.key is not None:
        yield f"{match.path}  {_type(match.key)}"
        yield f"    {_first_upper(match.key.about)}"
    elif len(tables) == 1:
        yield f"{match.path}  {tables[0].about}"
    if len(tables) > 1:
        yield "  kinds:"
        yield from _rows([(str(table.kind), table.about) for table in tables], indent=4)
        yield f"  `heddle help {match.path.replace('=', '.')}.KIND` shows the keys of one"
    elif tables:
        yield from _tree(known, tables[0], "  ")
    yield ""


def _tree(known: Catalog, table: Table, indent: str, seen: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the keys of a table; those of tables inside that have no kinds too."""
    for key in table.keys.values():
        held = known.held(key)
        yield f"{indent}{key.name}  {_type(key)}"
        yield f"{indent}    {_first_upper(key.about)}"
        if len(held) > 1:
            yield f"{indent}    kinds: {', '.join(str(one.kind) for one in held)}"
        elif held and held[0].name not in seen and len(seen) < 2:
            yield from _tree(known, held[0], indent + "  ", (*seen, table.name))


def _type(key: Key) -> str:
    if key.default is None:
        return f"({key.type}, required)"
    return f"({key.type})" if key.default == "table" else f"({key.type}) = {key.default}"


# --- a search ---------------------------------------------------------------------------------------------------------


def search(known: Catalog, words: str) -> list[Entry]:
    """Return what has all the words in its name or sentence, what stands nearer to the top first."""
    wanted = [_stem(word) for word in _split(words)]
    entries = [*_entries(known), *_options()]
    hits = [e for e in entries if _has_all(f"{e.name} {e.name.replace('_', ' ')} {e.about}", wanted)]
    exact = " ".join(_split(words))
    return sorted(hits, key=lambda entry: (exact not in " ".join(_split(entry.about)), entry.depth))


def _entries(known: Catalog) -> Iterator[Entry]:
    seen: set[tuple[str, str]] = set()
    for table in known.tables.values():
        where = join(known.paths[table.name])
        depth = len(known.paths[table.name])
        if table.kind is not None:
            yield Entry(f"{where}={table.kind}", table.about, depth)
        for key in table.keys.values():
            name = join((*known.paths[table.name], key.name))
            if (name, key.about) not in seen:  # several kinds may have it
                seen.add((name, key.about))
                yield Entry(name, key.about, depth + 1)


def _options() -> Iterator[Entry]:
    """Yield the options of every command."""
    from heddle.cli.main import app

    def visit(command: Any, path: str) -> Iterator[Entry]:
        for one in command.params:
            if one.param_type_name == "option" and one.name != "help":
                yield Entry(f"{path} {max(one.opts, key=len)}", one.help or "", 9)
        for name, inner in command.commands.items() if isinstance(command, typer.core.TyperGroup) else ():
            yield from visit(inner, f"{path} {name}")

    yield from visit(typer.main.get_command(app), "heddle")


def _results(words: str, found: list[Entry], beside: bool) -> Iterator[str]:
    if found:
        yield f"{'Also with' if beside else 'With'} {words!r} in the name or the sentence:"
        yield from _rows([(entry.name, _first_upper(entry.about)) for entry in found[:MAX_RESULTS]])
    if len(found) > MAX_RESULTS:
        yield f"  and {len(found) - MAX_RESULTS} more: give another word"


def _split(text: str) -> list[str]:
    """Return the words of a text; warm-up is warmup, and fine-tuning finetuning."""
    return re.findall(r"[a-z0-9]+", re.sub(r"(?<=\w)[-_](?=\w)", "", text.lower()))


def _stem(word: str) -> str:
    ending = next((end for end in ENDINGS if word.endswith(end) and len(word) - len(end) >= 4), "")
    return word.removesuffix(ending)


def _has_all(text: str, wanted: list[str]) -> bool:
    words = _split(text)
    return all(any(word == one or (len(one) > 3 and word.startswith(one)) for word in words) for one in wanted)


# --- layout -----------------------------------------------------------------------------------------------------------


def _first_upper(text: str) -> str:
    first, space, rest = text.partition(" ")  # not of names such as torch.compile, or float8:
    return text if not first.rstrip(",;").isalpha() else first[:1].upper() + first[1:] + space + rest


def _rows(pairs: list[tuple[str, str]], indent: int = 2) -> Iterator[str]:
    width = min(36, max(len(name) for name, _ in pairs))
    for name, about in pairs:
        yield f"{'':{indent}}{name:<{width}}  {about}"


def wrapped(line: str) -> str:
    """Break a line on a terminal at its width, under its own text; a pipe gets it whole."""
    if not sys.stdout.isatty():
        return line
    columns = shutil.get_terminal_size().columns
    gap = re.match(r"\s*\S+(?: \S+)*?\s{2,}(?=\S)|\s*", line)
    indent = " " * min(len(gap[0]) if gap else 0, columns // 2)
    return "\n".join(textwrap.wrap(line, columns, subsequent_indent=indent, drop_whitespace=True)) or line

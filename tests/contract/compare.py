"""Compare: frozen names put through the declared renames, and differences as lines that a reader can act on."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from contract import renames

Tree = Any
Flat = dict[str, Any]
NEAR = 1e-5  # of the largest value


def pretty(value: Tree, depth: int = 0) -> str:
    """Write JSON with short things on one line."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value or (len(line) + depth <= 150 and depth > 2):
        return line
    pad, end = " " * (depth + 1), " " * depth
    if isinstance(value, list):
        if all(not isinstance(one, dict | list) for one in value):
            return line
        return "[\n" + ",\n".join(pad + pretty(one, depth + 1) for one in value) + f"\n{end}]"
    rows = (f"{pad}{json.dumps(name)}: {pretty(one, depth + 1)}" for name, one in value.items())
    return "{\n" + ",\n".join(rows) + f"\n{end}}}"


def flat(tree: Tree, path: str = "", inner: bool = False) -> Flat:
    """Return the leaves of a tree by dotted path; with `inner`, its tables too."""
    if not isinstance(tree, dict) or not tree:
        return {path: tree}
    found: Flat = {path: None} if inner and path else {}
    for name, value in tree.items():
        found |= flat(value, f"{path}.{name}" if path else name, inner)
    return found


# --- renames ----------------------------------------------------------------------------------------------------------


class Renamer:
    """Puts frozen names through the declared renames."""

    def __init__(self, frozen: dict[str, Flat]) -> None:
        self.frozen, self.tables = frozen, frozen["configs"]
        followers = {old.rpartition(".")[2]: new.rpartition(".")[2] for old, new in renames.CONFIG_KEYS.items()}
        held = {self._family(kind[0]) for fields in self.tables.values() for kind in fields.values()}
        own = {old: new for old, new in followers.items() if old in held and self._holders(old) == {old}}
        self.families = own | renames.CONFIG_FAMILIES

    def _family(self, kind: str) -> str | None:
        found = re.search("<([^>:/]+)", kind)
        return found[1] if found else None

    def _holders(self, family: str) -> set[str]:
        """Return the names of the keys that hold a family."""
        return {
            name for fields in self.tables.values() for name, kind in fields.items() if self._family(kind[0]) == family
        }

    def table(self, old: str) -> str:
        """Return what a table is called now."""
        family, slash, kind = old.partition("/")
        return self.families.get(family, family) + slash + renames.CONFIG_KINDS.get(old, kind)

    def kind(self, old: str) -> str:
        """Return how a type is written now."""

        def one(match: re.Match[str]) -> str:
            family, colon, kinds = match[1].partition(": ")
            if not colon:
                return f"<{self.table(family)}>"
            own = [renames.CONFIG_KINDS.get(f"{family}/{k}", k) for k in kinds.split("|")]
            return f"<{self.families.get(family, family)}: {'|'.join(sorted(own))}>"

        return re.sub("<([^>]+)>", one, old)

    def tree(self, value: Tree, family: str | None, moved: list[tuple[str, str, Tree]]) -> Tree:
        """Return a config as plain data with its keys and kinds as they are called now."""
        if isinstance(value, list):
            return [self.tree(one, family, moved) for one in value]
        if not isinstance(value, dict) or family is None:
            return value
        table = f"{family}/{value['kind']}" if "kind" in value else family
        fields, made = self.tables.get(table, {}), {}
        for name, inner in value.items():
            new = renames.CONFIG_KEYS.get(f"{table}.{name}", name)
            held = self._family(fields[name][0]) if name in fields else None
            done = renames.CONFIG_KINDS.get(table, inner) if name == "kind" else self.tree(inner, held, moved)
            if "." in new:
                moved.append((*new.rsplit(".", 1), done))
            else:
                made[new] = done
        return made

    def configs(self) -> Flat:
        """Return the frozen tables as they should be now, by `TABLE.KEY`."""
        made: Flat = {}
        for table, fields in self.tables.items():
            made[self.table(table)] = "table"
            for name, (kind, *default) in fields.items():
                new = renames.CONFIG_KEYS.get(f"{table}.{name}", name)
                path = new if "." in new else f"{self.table(table)}.{new}"
                inner = [self.tree(one, self._family(kind), []) for one in default]
                made[path] = [self.kind(kind), *inner]
        return made

    def recipes(self) -> Flat:
        """Return the frozen recipes as they should be now, by `RECIPE: PATH`."""
        made: Flat = {}
        for recipe, tree in self.frozen["recipes"].items():
            root = next(table for table, fields in self.tables.items() if set(tree) <= set(fields))
            moved: list[tuple[str, str, Tree]] = []
            new = self.tree(tree, root, moved)
            for table, name, value in moved:
                new[table][name] = value  # tables of a run are called after the key that holds them
            made |= {f"{recipe}: {path}": value for path, value in flat(new).items()}
        return made

    def all(self) -> dict[str, Flat]:
        """Return every category as it should be now."""
        old = self.frozen
        weights = {f"{m}: {_reworded(n)}": s for m, each in old["state_dict"].items() for n, s in each.items()}
        return {
            "configs": self.configs(),
            "recipes": self.recipes(),
            "options": {_prefixed(name, renames.OPTIONS): value for name, value in old["options"].items()},
            "public": {_prefixed(name, renames.PUBLIC): value for name, value in old["public"].items()},
            "state_dict": weights,
        }


def _reworded(name: str) -> str:
    for pattern, new in renames.STATE_DICT.items():
        name = re.sub(pattern, new, name)
    return name


def _prefixed(name: str, table: dict[str, str]) -> str:
    """Return a name whose longest declared beginning is replaced; it ends where a word does."""
    for old in sorted(table, key=len, reverse=True):
        if name == old or (name.startswith(old) and name[len(old)] in " .("):
            return table[old] + name[len(old) :]
    return name


def flattened(category: str, found: Flat) -> Flat:
    """Return names as they are, in the flat form in which they are compared."""
    if category == "configs":
        tables = dict.fromkeys(found, "table")
        return tables | {f"{table}.{name}": kind for table, own in found.items() for name, kind in own.items()}
    if category in ("recipes", "state_dict"):
        leaves = flat if category == "recipes" else dict
        return {f"{of}: {path}": value for of, tree in found.items() for path, value in leaves(tree).items()}
    return found


def differing(category: str, want: Flat, found: Flat) -> Iterator[str]:
    """Yield a line for each name that differs and is not declared, or declared and not so."""
    added, removed = (set(table.get(category, ())) for table in (renames.ADDED, renames.REMOVED))
    changed = renames.CHANGED.get(category, {})
    want = {name: value for name, value in want.items() if name not in removed} | changed
    plain = json.loads(json.dumps(found))
    for name in want.keys() - plain.keys():
        yield f"gone: {name}"
    whole = {name[:-1] for name in added if name.endswith("*")}  # a table or recipe that is new as a whole
    new = plain.keys() - want.keys()
    for name in new - added:
        if not any(name.startswith(one) for one in whole):
            yield f"new: {name}"
    for name in added - new:
        if name.endswith("*") and any(one.startswith(name[:-1]) for one in new):
            continue
        yield f"declared as added, but was there or is not there: {name}"
    for name in removed & plain.keys():
        yield f"declared as removed, but there: {name}"
    for name in want.keys() & plain.keys():
        if want[name] != plain[name] or type(want[name]) is not type(plain[name]):
            yield f"{name}: was {json.dumps(want[name])}, is {json.dumps(plain[name])}"


def names_differ(category: str, frozen: dict[str, Flat], now: dict[str, Flat]) -> list[str]:
    """Return the differences of one category, in order."""
    return sorted(differing(category, Renamer(frozen).all()[category], flattened(category, now[category])))


# --- numbers ----------------------------------------------------------------------------------------------------------


def unlike(want: Tree, found: Tree, path: str, exact: bool) -> Iterator[str]:
    """Yield where computed things differ: to the bit, or where floats are further apart than rounding explains."""
    if path in renames.OTHER_NUMBERS or (not exact and path.endswith("sha256")):
        return
    if isinstance(want, dict) and isinstance(found, dict):
        for name in [*want, *(n for n in found if n not in want)]:
            if name not in want or name not in found:
                if f"{path}: {name}" not in renames.OTHER_NUMBERS:
                    yield f"{path}: {name}: {'new' if name in found else 'gone'}"
            else:
                yield from unlike(want[name], found[name], f"{path}: {name}", exact)
    elif isinstance(want, list) and isinstance(found, list) and len(want) == len(found) and _branches(want):
        for place, (one, other) in enumerate(zip(want, found, strict=True)):
            yield from unlike(one, other, f"{path}: {place}", exact)
    elif want != found and (exact or not _near(want, found)):
        yield f"{path}: was {json.dumps(want)}, is {json.dumps(found)}"


def _branches(value: list[Any]) -> bool:
    return any(isinstance(one, dict | list) for one in value)


def _numbers(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(one, float) for one in value)


def _near(want: Tree, found: Tree) -> bool:
    """Tell whether floats are the same within rounding, measured by the largest of them."""
    ours, theirs = ([one] if not isinstance(one, list) else one for one in (want, found))
    if len(ours) != len(theirs) or not (_numbers(ours) and _numbers(theirs)):
        return False
    largest = max(1e-12, *map(abs, ours)) if len(ours) > 1 else max(1e-12, abs(ours[0]))
    return all(math.isclose(a, b, rel_tol=0, abs_tol=NEAR * largest) for a, b in zip(ours, theirs, strict=True))


def bitwise(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return every difference of two collections but the declared renames."""
    lines = [f"{c}: {line}" for c in before["names"] for line in names_differ(c, before["names"], after["names"])]
    for part in ("logits", "runs"):
        for name in sorted(before["goldens"][part].keys() | after["goldens"][part].keys()):
            sides = (side["goldens"][part].get(name, {}) for side in (before, after))
            lines += numbers_differ(part, name, *sides, exact=True)
    return lines


def numbers_differ(part: str, name: str, want: Tree, found: Tree, exact: bool = False) -> list[str]:
    """Return the differences of one golden, whose metrics may have got other names."""
    if "metrics" in want:
        lines = [{renames.METRICS.get(key, key): value for key, value in line.items()} for line in want["metrics"]]
        want = want | {"metrics": lines}
    return list(unlike(want, found, f"{part}: {name}", exact))

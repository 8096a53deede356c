"""The reference: every config key on one page, docs/reference.md, from the catalog."""

from collections.abc import Iterator

from heddle.cli.catalog import ROOT, Catalog, Key, Table, join

HEAD = """# Reference

Every key of a config, from the code: `make reference` writes this page, and a test fails when it is out of date.
In a terminal, `heddle help KEY` shows the same, and `heddle help WORDS` searches. A key is given as
`heddle train KEY=VALUE` or in a YAML file; `heddle train --print` writes the whole config of a run with these sentences
as comments.

A table has one line for each key: its type, its default and what it is. Where a key holds one of several kinds, `kind`
says which: `training.optimizer=muon`, or `training.optimizer.kind: muon` in a file.
"""


def reference(known: Catalog) -> str:
    """Return the page."""
    return "\n".join([HEAD, *_sections(known)]) + "\n"


def _sections(known: Catalog) -> Iterator[str]:
    yield from _section("run", known, known.tables[ROOT])
    done = {ROOT}
    for name, path in known.paths.items():
        slot = join(path)
        members = [t for t, p in known.paths.items() if p == path and t not in done]
        if name in done or not members:
            continue
        done |= set(members)
        if known.tables[members[0]].kind is None:
            yield from _section(slot, known, known.tables[members[0]])
            continue
        yield f"## {slot}\n"
        yield "| kind | what it is |\n|---|---|"
        for table in map(known.tables.__getitem__, members):
            yield f"| `{table.kind}` | {_cell(table.about)} |"
        yield ""
        for table in map(known.tables.__getitem__, members):
            if table.keys:
                yield f"`{slot}={table.kind}`\n"
                yield from _rows(known, table)


def _section(title: str, known: Catalog, table: Table) -> Iterator[str]:
    yield f"## {title}\n\n{table.about}\n"
    yield from _rows(known, table)


def _rows(known: Catalog, table: Table) -> Iterator[str]:
    yield "| key | type | default | what it is |\n|---|---|---|---|"
    for key in table.keys.values():
        default = "required" if key.default is None else f"`{_cell(key.default)}`"
        yield f"| `{key.name}` | {_cell(_type(known, key))} | {default} | {_cell(key.about)} |"
    yield ""


def _type(known: Catalog, key: Key) -> str:
    """Return the type, for a slot with a link to where its kinds are described."""
    held = known.held(key)
    if not held:
        return key.type
    slot = join(known.paths[held[0].name])
    anchor = slot.replace(".", "").replace(" ", "-").lower()
    return key.type.replace("table", f"[{slot}](#{anchor})", 1)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")

"""Built-in data: enough of it, whole modules, the same each time."""

import pytest

from heddle.data.sources import BuiltinSource, CorpusConfig, DocumentCounter, Split
from heddle.data.sources.builtin import docstrings, modules


def test_there_is_enough_to_learn_from_and_to_hold_out() -> None:
    counter = DocumentCounter()
    sizes = dict.fromkeys(Split, 0)
    for split, document in CorpusConfig().split_documents(counter):
        sizes[split] += len(document.text.encode())
    assert counter.balanced
    assert sizes[Split.TRAIN] > 7_000_000
    assert sizes[Split.VALID] > 400_000


def test_modules_are_sorted_and_without_tests_or_packages() -> None:
    names = [name for name, _ in modules()]
    assert names == sorted(names)
    assert {"ast", "json.decoder", "argparse"} <= set(names)
    assert not any("test" in name.split(".") or "site-packages" in name for name in names)


def test_a_module_is_whole_and_on_one_side(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [(name, path) for name, path in modules() if name.startswith(("json", "email", "xml", "http"))]
    monkeypatch.setattr("heddle.data.sources.builtin.modules", lambda: some)
    corpus = CorpusConfig(sources=(BuiltinSource(part="both"),))
    splits: dict[str, set[Split]] = {}
    for split, document in corpus.split_documents(DocumentCounter()):
        splits.setdefault(document.group, set()).add(split)
    assert len(splits) > 20
    assert all(len(found) == 1 for found in splits.values())
    assert any("JSON" in d.text for d in BuiltinSource(part="docstrings").documents(DocumentCounter()))
    path = dict(modules())["json.decoder"]
    held = {d.origin: d.text for d in BuiltinSource().documents(DocumentCounter())}
    assert held["json.decoder"] == path.read_text(encoding="utf-8")


def test_docstrings_come_in_the_order_of_the_source() -> None:
    source = '"""Top."""\nclass A:\n    """Of A.\n\n    More.\n    """\n    def f(self):\n        """Of f."""\n'
    assert docstrings(source) == "Top.\n\nOf A.\n\nMore.\n\nOf f.\n\n"
    assert docstrings("def broken(:") == ""


def test_stamps_hold_no_place_on_this_machine() -> None:
    assert all("/" not in str(name) for name, *_ in BuiltinSource().stamps())

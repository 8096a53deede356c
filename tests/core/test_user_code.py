"""Code of the user's own: found, hashed, run once, trusted by hash; faults are one line."""

import importlib.metadata
import logging
import sys
from pathlib import Path

import pytest

from heddle.core import ConfigError, DamageError, UsageError, decode, user_code
from heddle.nn.base import ChannelConfig
from heddle.recipes import RECIPES

PART = '''
from heddle.core import part
from heddle.nn.base import ChannelConfig, Part


@part("{kind}")
class MineConfig(ChannelConfig):
    """Mine."""

    size: int = {size}

    def build(self, width, place):
        return Part()
'''


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_user_code: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(PART.format(kind="mine_1", size=3))
    return path


def test_a_file_is_run_once_and_its_newest_version_counts(file: Path) -> None:
    first = user_code.use(file)
    assert user_code.use("mine.py") is first
    assert decode(ChannelConfig, "mine_1").size == 3
    file.write_text(PART.format(kind="mine_1", size=4))
    second = user_code.use(file)
    assert second is not first and decode(ChannelConfig, "mine_1").size == 4
    file.write_text(PART.format(kind="mine_1", size=3))
    user_code.use(file)  # the first again
    assert decode(ChannelConfig, "mine_1").size == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = \n", r"mine.py, line 1: SyntaxError: invalid syntax"),
        ("a = 1\nb = a + nothing\n", r"mine.py, line 2: NameError: name 'nothing' is not defined"),
        ("import nothing_like_this\n", r"mine.py, line 1: ModuleNotFoundError: No module named 'nothing_like_this'"),
        (
            PART.format(kind="feed_forward", size=1),
            r"MineConfig.kind: 'feed_forward' is taken by the library's FeedForward",
        ),
        ("import heddle\n@heddle.register_recipe\ndef first(): ...\n", r"library has a recipe called 'first'"),
        ("import heddle\n@heddle.register_preset\ndef gpt2(): ...\n", r"library has a preset called 'gpt2'"),
    ],
)
def test_a_fault_in_it_is_one_line(file: Path, text: str, words: str) -> None:
    file.write_text(text)
    before, modules = dict(RECIPES), set(sys.modules)
    with pytest.raises(UsageError, match=words) as raised:
        user_code.use(file)
    assert "\n" not in str(raised.value)
    assert before == RECIPES and not [name for name in set(sys.modules) - modules if name.startswith("user_code")]
    assert not (Path("settings") / "trusted").exists()  # what does not run is not remembered


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("mime.py", r"mime.py: no such file; did you mean 'mine.py'"),
        ("nothing_like_this", r"no module of Python code is called 'nothing_like_this'"),
        ("not a module", r"want a file that ends in .py, or a module, got 'not a module'"),
        ("./settings", r"no such file"),
        ("sys", r"no module of Python code is called 'sys'"),
    ],
)
def test_what_cannot_be_used_is_named(file: Path, target: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        user_code.use(target)


def test_a_module_is_hashed_with_its_whole_package_before_it_runs(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = file.parent / "my_package_x"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text(PART.format(kind="mine_2", size=5))
    (package / "helper.py").write_text("")
    monkeypatch.syspath_prepend(file.parent)
    user_code.use("my_package_x.parts")
    (entry,) = user_code.record([], [type(decode(ChannelConfig, "mine_2"))], file.parent / "run")
    assert entry.startswith("my_package_x.parts#sha256=") and not (file.parent / "run" / "code").exists()
    monkeypatch.setattr(user_code, "_loaded", {})
    monkeypatch.setattr(user_code, "_named", {})
    assert user_code.load_recorded([entry], file.parent) == [entry]
    (package / "helper.py").write_text("x = 1\n")
    monkeypatch.setattr(user_code, "_loaded", {})
    with pytest.raises(DamageError, match=r"my_package_x.parts: altered since"):
        user_code.load_recorded([entry], file.parent)
    monkeypatch.setenv("HEDDLE_CONFIG", str(file.parent / "another"))
    with pytest.raises(UsageError, match=r"pass --use my_package_x.parts, or --trust-run"):
        user_code.load_recorded([entry], file.parent)


def test_installed_packages_are_loaded_once(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (file.parent / "my_plugin_x.py").write_text(PART.format(kind="mine_3", size=7))
    monkeypatch.syspath_prepend(file.parent)
    points = [
        importlib.metadata.EntryPoint("good", "my_plugin_x", user_code.PLUGINS),
        importlib.metadata.EntryPoint("bad", "no_such_plugin_x", user_code.PLUGINS),
    ]
    monkeypatch.setattr(user_code, "entry_points", lambda group: points if group == user_code.PLUGINS else [])
    monkeypatch.setattr(user_code, "_searched", [])
    with caplog.at_level(logging.WARNING, "heddle"):
        user_code.load_plugins()
        user_code.load_plugins()
    assert decode(ChannelConfig, "mine_3").size == 7
    assert user_code.plugins() == {"my_plugin_x": "unknown"}
    (line,) = caplog.messages
    assert "the plugin bad (no_such_plugin_x) cannot be loaded" in line
    assert user_code.record([], [type(decode(ChannelConfig, "mine_3"))], file.parent / "run") == ()
    assert len(caplog.messages) == 1


def test_a_class_in_no_file_is_reported(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = type("HomelessConfig", (), {"__module__": "__main__"})
    assert user_code.record([], [kept], file.parent) == ()
    assert "HomelessConfig is defined in __main__, which is not kept" in caplog.text


def test_links_in_a_runs_code_are_refused(file: Path) -> None:
    user_code.use(file)
    (file.parent / "run").mkdir()
    (file.parent / "run" / "code").symlink_to(file.parent)
    with pytest.raises(DamageError, match="code: a link"):
        user_code.record(["mine.py"], [], file.parent / "run")


def test_a_family_without_kinds_says_where_they_come_from() -> None:
    from heddle.training import RunConfig

    with pytest.raises(ConfigError, match=r"callbacks.0: want .* got 'x'"):
        decode(RunConfig, {"callbacks": ["x"]})


@pytest.mark.parametrize("entries", ["mine.py", [3], {"a": 1}])
def test_a_wrong_list_is_refused(entries: object, file: Path) -> None:
    with pytest.raises(ConfigError, match="use: want a list"):
        user_code.load_recorded(entries, file.parent)

"""Compiled code lies where the next process finds it, and where the user wants it."""

import os
from pathlib import Path

import pytest
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from heddle.core.system.compile_cache import FOLDER, TRITON_CACHE_VARIABLE, cache_folder, enable_compile_cache


def test_compiled_code_lies_in_a_folder_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEDDLE_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.setenv(FOLDER, "")  # so that it is taken back after the test
    monkeypatch.delenv(FOLDER)
    enable_compile_cache()
    assert os.environ[FOLDER] == str(tmp_path / "own" / "compiled")
    monkeypatch.delenv("HEDDLE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "system"))
    assert cache_folder() == tmp_path / "system" / "heddle"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "heddle"


def test_a_folder_that_the_user_chose_or_that_cannot_be_is_let_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, "chosen")
    enable_compile_cache()
    assert os.environ[FOLDER] == "chosen"
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEDDLE_CACHE", str(tmp_path / "file"))
    monkeypatch.delenv(FOLDER)
    enable_compile_cache()
    assert FOLDER not in os.environ


def test_a_folder_that_torch_chose_by_itself_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEDDLE_CACHE", str(tmp_path))
    monkeypatch.setenv(FOLDER, "")
    monkeypatch.delenv(FOLDER)
    monkeypatch.setenv(FOLDER, default_cache_dir())
    monkeypatch.setenv(TRITON_CACHE_VARIABLE, str(Path(default_cache_dir()) / "triton" / "0"))
    enable_compile_cache()
    assert os.environ[FOLDER] == str(tmp_path / "compiled") and TRITON_CACHE_VARIABLE not in os.environ

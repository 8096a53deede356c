"""What the system refuses is one line in our words, from one table."""

import errno
from pathlib import Path

import pytest

from heddle.core import EnvironmentFault, HeddleError, UsageError, system_fault, system_faults


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, EnvironmentFault, "x: no space left on the device"),
        (errno.EDQUOT, EnvironmentFault, "x: no space left"),
        (errno.EFBIG, EnvironmentFault, "x: file too large"),
        (errno.EROFS, EnvironmentFault, "x: the disk is read-only"),
        (errno.EIO, EnvironmentFault, "x: the disk failed"),
        (errno.EACCES, EnvironmentFault, "x: permission denied"),
        (errno.EMFILE, EnvironmentFault, "x: too many open files"),
        (errno.ENOENT, UsageError, "x: no such file or folder"),
        (errno.EISDIR, UsageError, "x: want a file, found a folder"),
        (errno.ENOTDIR, UsageError, "x: not a directory"),
        (errno.ENAMETOOLONG, UsageError, "x: name too long"),
    ],
)
def test_each_error_of_the_system_has_its_words(number: int, kind: type[HeddleError], words: str) -> None:
    for error, place in ((OSError(number, "said", "x"), None), (OSError(number, "said"), Path("x"))):
        fault = system_fault(error, place)
        assert type(fault) is kind and str(fault).startswith(words)


def test_a_nameless_path_is_a_bug_of_ours_and_a_full_disk_is_not() -> None:
    assert system_fault(OSError(errno.ENOENT, "said")) is None
    assert system_fault(OSError(errno.ECHILD, "said", "x")) is None
    assert str(system_fault(OSError(errno.ENOSPC, "said"))) == "disk: no space left on the device"
    with pytest.raises(ChildProcessError), system_faults():
        raise OSError(errno.ECHILD, "said", "x")


def test_a_long_name_is_cut() -> None:
    with pytest.raises(UsageError, match=r"^a{119}…: name too long$"), system_faults():
        Path("a" * 300).stat()

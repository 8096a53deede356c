"""Freed memory: kept for the next step, so that the kernel need not clear the same pages again."""

import platform
import resource
import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from heddle.core.system import keep_freed_memory
{call}
def step():
    torch.empty(1 << 24).fill_(1.0)
for _ in range(20):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(call: str) -> int:
    """Count page faults of twenty steps that each allocate 64 MiB."""
    done = subprocess.run([sys.executable, "-c", FAULTS.format(call=call)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_freed_memory_is_used_again() -> None:
    """By default glibc maps each large block anew; kept, twenty steps touch no new page."""
    pages = (1 << 26) // resource.getpagesize()
    assert faults("assert keep_freed_memory()") < pages


def test_the_users_own_settings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    from heddle.core.system import keep_freed_memory

    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert not keep_freed_memory()

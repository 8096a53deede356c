"""Door: how every benchmark is entered; a fault that the user can mend is one line and an exit code, no traceback."""

import argparse
import sys
from collections.abc import Callable

from heddle.core import HeddleError, system_fault


def run_main(main: Callable[[], None]) -> None:
    """Run a benchmark's main."""
    try:
        main()
    except (HeddleError, OSError) as error:
        fault = system_fault(error) if isinstance(error, OSError) else error
        if fault is None:
            raise
        print(" ".join(str(fault).split()), file=sys.stderr)
        raise SystemExit(fault.exit_code) from None


def positive(word: str) -> int:
    """Read how many, on a command line."""
    if not word.isdigit() or not int(word):
        raise argparse.ArgumentTypeError(f"want a whole number from 1 on, got {word!r}")
    return int(word)

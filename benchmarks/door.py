"""Door: how every benchmark is entered; a fault that the user can mend is one line and an exit code, no traceback."""

import sys
from collections.abc import Callable

from heddle.core import HeddleError, system_fault


def enter(main: Callable[[], None]) -> None:
    """Run a benchmark's main."""
    try:
        main()
    except (HeddleError, OSError) as error:
        fault = system_fault(error) if isinstance(error, OSError) else error
        if fault is None:
            raise
        print(" ".join(str(fault).split()), file=sys.stderr)
        raise SystemExit(fault.exit_code) from None

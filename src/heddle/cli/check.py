"""heddle check: the laws over the parts in a file of one's own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli.terminal import BOLD, print_message

if TYPE_CHECKING:
    from heddle.models.laws import CheckedLaw

BROKEN = 1  # the exit code where a law is broken


def check(
    file: Annotated[str, typer.Argument(metavar="FILE.py|MODULE", help="Your own code: a file, or a module.")],
) -> int:
    """Check parts of your own: shape, causality, gradients, packing, caching; all that the library's own parts keep.

    Each part stands in a small model. One whose fields have no defaults needs an example: EXAMPLES = [MyPart(size=3)].
    The exit code is 1 if a law is broken.
    """
    from heddle.core import UsageError, user_code
    from heddle.models.laws import check_module

    found = list(check_module(user_code.use(file)))
    if not found:
        raise UsageError(f"{file}: defines no part: want a config class with @part")
    for part in dict.fromkeys(one.part for one in found):
        _show(part, [one for one in found if one.part == part])
    broken = [one for one in found if one.verdict == "broken"]
    print_message(f"{Path(file).name}: {len(found) - len(broken)} of {len(found)} laws hold")
    return BROKEN if broken else 0


def _show(part: str, laws: "list[CheckedLaw]") -> None:
    print_message(part, BOLD)
    width = max(len(one.law) for one in laws)
    for one in laws:
        print_message(f"  {one.law:<{width}}  {one.verdict:<8}{one.message}".rstrip())

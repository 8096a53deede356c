"""heddle help: explain config keys, or search for words in what they say."""

from typing import Annotated

import typer

from heddle.cli.terminal import print_message


def help_(
    key: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY|WORDS]...", help="A key such as training or stop.patience, or words to search for."
        ),
    ] = None,
) -> None:
    """Explain config keys: what each is, its type and default, and what may stand there."""
    from heddle.cli.keys import explain, wrapped

    for line in explain(" ".join(key or [])):
        print_message(wrapped(line))

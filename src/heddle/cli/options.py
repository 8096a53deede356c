"""Options that several verbs share, and the model that `-m` means."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from heddle.lm import LM

Model = Annotated[
    str | None,
    typer.Option("-m", "--model", metavar="MODEL", help="A run: its folder or its name. Left out: the newest."),
]
Device = Annotated[str, typer.Option("--device", metavar="DEVICE", help="auto, cpu or cuda.")]
Json = Annotated[bool, typer.Option("--json", help="Write JSON.")]
Words = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as vocab=8192.")]


def open_model(name: str | None, device: str) -> "LM":
    """Load the model that the user means."""
    from heddle.lm import load

    return load(name, device=device)

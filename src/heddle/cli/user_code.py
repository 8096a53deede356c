"""`--use` and `--trust-run`, which every command has: code of the user's own is loaded before the command runs."""

from typing import Annotated, Any

import typer


def _use(targets: list[str] | None) -> None:
    from heddle.core import user_code

    user_code.load_plugins()
    for target in targets or []:
        user_code.use(target)


def _trust(trusted: bool) -> None:
    if trusted:
        from heddle.core import user_code

        user_code.trust_runs()


def _options(
    use: Annotated[
        list[str] | None,
        typer.Option(
            "--use",
            metavar="FILE.py|MODULE",
            help="Load parts, objectives, recipes and callbacks of your own. A run records and finds them again.",
            callback=_use,
            expose_value=False,
        ),
    ] = None,
    trust_run: Annotated[
        bool,
        typer.Option(
            "--trust-run", help="Run the code that a run stores, this time only.", callback=_trust, expose_value=False
        ),
    ] = False,
) -> None:
    """Declare the options; typer makes them, whatever its release."""


def add_user_code_options(command: Any) -> Any:
    """Add the options to every command below a group; return the group."""
    carrier = typer.Typer(add_completion=False)
    carrier.command()(_options)
    own = typer.main.get_command(carrier).params
    groups = [command]
    while groups:
        for inner in groups.pop().commands.values():
            if isinstance(inner, typer.core.TyperGroup):
                groups.append(inner)
            else:
                inner.params += own
    return command

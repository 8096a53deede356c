"""Options that commands share: `--use` and `--trust-run`, which every command has, and `--base`, for those of runs.

They take effect before the command runs: code of the user's own is loaded, the place of a base is set.
"""

from collections.abc import Callable
from typing import Annotated, Any

import typer

READ_RUNS = ("chat", "convert", "correct", "evaluate", "generate", "rescore", "score", "train", "translate")


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


def _base(place: str | None) -> None:
    if place is not None:
        from heddle.checkpoints import use_base

        use_base(place)


def _base_option(
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="MODEL",
            help="Where the model is now that a run with adapters (LoRA) was trained from.",
            callback=_base,
            expose_value=False,
        ),
    ] = None,
) -> None:
    """Declare the option of commands that read runs."""


def add_shared_options(command: Any) -> Any:
    """Add the options to the commands below a group; return the group."""
    everywhere, of_runs = _params(_options), _params(_base_option)
    groups = [command]
    while groups:
        group = groups.pop()
        for name, inner in group.commands.items():
            if isinstance(inner, typer.core.TyperGroup):
                groups.append(inner)
            else:
                reads_runs = group is command and name in READ_RUNS
                inner.params += [*everywhere, *(of_runs if reads_runs else ())]
    return command


def _params(declare: Callable[..., None]) -> list[Any]:
    carrier = typer.Typer(add_completion=False)
    carrier.command()(declare)
    return list(typer.main.get_command(carrier).params)

"""The command line `heddle COMMAND`: each command has a file, and imports heavy modules only when it runs."""

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heddle import __version__
from heddle.cli.answer import answer
from heddle.cli.bench import bench
from heddle.cli.caption import caption
from heddle.cli.chat import chat
from heddle.cli.check import check
from heddle.cli.classify import classify
from heddle.cli.compare import compare
from heddle.cli.convert import convert
from heddle.cli.correct import correct
from heddle.cli.data import data
from heddle.cli.embed import embed
from heddle.cli.evaluate import evaluate
from heddle.cli.explain import explain
from heddle.cli.fill import fill
from heddle.cli.generate import generate
from heddle.cli.help import help_
from heddle.cli.list import list_
from heddle.cli.memory import memory
from heddle.cli.plot import plot
from heddle.cli.rescore import rescore
from heddle.cli.retrieve import retrieve
from heddle.cli.scale import scale
from heddle.cli.score import score
from heddle.cli.serve import serve
from heddle.cli.show import show
from heddle.cli.summarize import summarize
from heddle.cli.tag import tag
from heddle.cli.terminal import note, print_message, show_everything
from heddle.cli.tokenizer import tokenizer
from heddle.cli.transcribe import transcribe
from heddle.cli.translate import translate
from heddle.cli.usage import ClickException, parser_message, typed_names
from heddle.cli.user_code import add_shared_options

if TYPE_CHECKING:
    from heddle.core import HeddleError

INTERRUPTED = 130

app = typer.Typer(
    name="heddle",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def heddle(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Train, run, measure and inspect neural language models."""
    if version:
        print_message(f"heddle {__version__}")
        raise typer.Exit()
    if context.invoked_subcommand is None:
        print_message(context.get_help())


@app.command()
def train(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE|CONFIG.yaml|RUN]",
            help="A recipe, a config file, or a run to resume. Default: the first recipe.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Config overrides, such as model.width=256.")
    ] = None,
    print_: Annotated[bool, typer.Option("--print", help="Print the config as YAML, and exit.")] = False,
) -> int:
    """Train a model, or resume a run."""
    from heddle.cli.precheck import precheck

    precheck(target, overrides or [])  # before torch is imported
    from heddle.cli.train import train as run

    return run(target, overrides or [], print_)


app.command("generate")(generate)
app.command("chat")(chat)
app.command("score")(score)
app.command("rescore")(rescore)
app.command("correct")(correct)
app.command("evaluate")(evaluate)
app.command("translate")(translate)
app.command("transcribe")(transcribe)
app.command("summarize")(summarize)
app.command("caption")(caption)
app.command("classify")(classify)
app.command("tag")(tag)
app.command("answer")(answer)
app.command("embed")(embed)
app.command("fill")(fill)
app.command("retrieve")(retrieve)
app.command("show")(show)
app.command("explain")(explain)
app.command("serve")(serve)
app.command("check")(check)
app.command("compare")(compare)
app.command("scale")(scale)
app.add_typer(tokenizer, name="tokenizer")
app.add_typer(data, name="data")
app.add_typer(bench, name="bench")
app.add_typer(memory, name="memory")
app.command("convert")(convert)
app.command("list")(list_)
app.command("plot")(plot)
app.command("help")(help_)


def command() -> Any:
    """Return the whole command line."""
    return add_shared_options(typer.main.get_command(app))


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. An error that the user can fix is one line on stderr."""
    show_everything()
    whole = command()
    typed = sys.argv[1:] if words is None else words
    try:
        with _warnings():  # in a context of its own, for `--trust-run` is for once
            code = copy_context().run(whole.main, args=words, prog_name="heddle", standalone_mode=False)
    except ClickException as error:
        return _print_error(parser_message(error, whole, typed), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:
        fault = _fault(error)
        if fault is None or os.environ.get("HEDDLE_DEBUG") == "1":
            raise
        return _print_error(typed_names(fault, whole, typed), fault.exit_code)
    return code if isinstance(code, int) else 0


def _print_error(message: str, code: int) -> int:
    note(message)
    return code


def _fault(error: Exception) -> "HeddleError | None":
    """Return an error of the user or the machine as ours, or None for a bug."""
    from heddle.core import EnvironmentFault, HeddleError, system_fault
    from heddle.core.system import compiler_fault

    if isinstance(error, HeddleError):
        return error
    if isinstance(error, OSError):
        return system_fault(error)
    import torch

    no_memory = "can't allocate memory" in str(error)  # on the CPU, torch has no type for it
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or (isinstance(error, RuntimeError) and no_memory):
        return EnvironmentFault("out of memory; a smaller model or batch may fit")
    if (failed := compiler_fault(error)) is not None:
        return EnvironmentFault(f"the compiler failed ({failed}); hardware.compile=off or --compile off avoids it")
    return None


class _Notes(logging.Handler):
    """Shows the warnings of the library as lines on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        note(self.format(record))


@contextmanager
def _warnings() -> Iterator[None]:
    """Show the warnings of the library as lines on standard error."""
    handler = _Notes()
    log = logging.getLogger("heddle")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


if __name__ == "__main__":  # as in job scripts; `python -m heddle` is shorter
    sys.exit(main())

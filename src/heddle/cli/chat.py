"""heddle chat: talk with a model in the terminal, or feed it a turn a line."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli import generation_options as w
from heddle.cli.line_input import LineErrors, valid_lines
from heddle.cli.options import Device, Model, Weights, open_model

if TYPE_CHECKING:
    from heddle.tasks.generation import Conversation

HELP = "/reset forgets all that was said, /exit leaves; Ctrl-C breaks an answer off, and leaves at the prompt."


def chat(  # noqa: PLR0913 - the options are the contract
    model: Model = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="What the model is told before all.")] = None,
    once: Annotated[str | None, typer.Option(metavar="TEXT", help="Answer this, and leave.")] = None,
    template: Annotated[
        str | None,
        typer.Option(metavar="FILE|NAME", help="A template, or chatml, llama2, llama3, plain. Left out: the model's."),
    ] = None,
    max_tokens: w.MaxTokens = 256,
    temperature: w.Temperature = None,
    top_k: w.TopK = None,
    top_p: w.TopP = None,
    min_p: w.MinP = None,
    repetition: w.Repetition = None,
    seed: w.Seed = None,
    device: Device = "auto",
    weights: Weights = "auto",
) -> int:
    """Talk with a language model; an answer is shown as it is written.

    Standard input that is no terminal is read as a turn a line, blank lines passed over. A message never becomes a
    control token, whatever it spells.
    """
    from heddle.checkpoints import find_source
    from heddle.decoding.sampling import GenerationOptions, generation_config
    from heddle.tasks.generation import chat_template, conversation
    from heddle.text.chat import Chat, find_template

    filters: GenerationOptions = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    config = generation_config({"max_tokens": max_tokens, "repetition": repetition, "seed": seed, **filters})
    w.warn_unused_seed({"seed": seed, "temperature": temperature}, config)
    source = (
        "" if template else chat_template(find_source(model))
    )  # one that is missing is told before a model is loaded
    lm = open_model(model, device, weights)
    source = find_template(template, lm.tokenizer) if template else source
    talk = conversation(lm.model, Chat(source, lm.tokenizer), config, system)
    if once is not None:
        _answer(talk, once)
        return 0
    return _terminal(talk) if sys.stdin.isatty() else _lines(talk)


def _lines(talk: "Conversation") -> int:
    """Answer every line of standard input; one that cannot be answered is told, and the rest is done."""
    line_errors = LineErrors()
    with valid_lines("-", line_errors) as lines:
        for line in lines:
            if not line.text.strip():
                continue
            with line_errors.at("-", line.number):
                if _command(talk, line.text):
                    break
    return line_errors.code()


def _terminal(talk: "Conversation") -> int:
    from heddle.core import UsageError

    typer.echo(typer.style(HELP, dim=True), err=True)
    while True:
        try:
            text = input("> ")
        except (EOFError, KeyboardInterrupt):
            typer.echo()
            return 0
        if not text.strip():
            continue
        try:
            if _command(talk, text):
                return 0
        except KeyboardInterrupt:
            typer.echo(typer.style(" (broken off)", dim=True))
        except UsageError as error:
            typer.echo(f"heddle: {error}", err=True)


def _command(talk: "Conversation", text: str) -> bool:
    """Answer a text, or do what it says where it is a command; tell whether to leave."""
    match text.strip():
        case "/exit":
            return True
        case "/reset":
            talk.reset()
        case _:
            _answer(talk, text)
    return False


def _answer(talk: "Conversation", text: str) -> None:
    from heddle.decoding.runtime import FinishReason

    before = talk.forgotten
    for piece in talk.say(text):
        typer.echo(piece, nl=False)
        sys.stdout.flush()
    typer.echo()
    if talk.forgotten > before:
        number = talk.forgotten - before
        typer.echo(
            f"heddle: the context of {talk.model.context} tokens is full; {number} oldest turns forgotten", err=True
        )
    if talk.reason is FinishReason.CONTEXT:
        typer.echo(f"heddle: stopped at the model's context of {talk.model.context} tokens", err=True)

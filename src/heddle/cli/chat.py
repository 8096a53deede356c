"""heddle chat: chat with a model in the terminal, or feed it one turn per line."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli import generation_options as opts
from heddle.cli.line_input import LineErrors, valid_lines
from heddle.cli.options import Best, Device, Model, Weights, open_model
from heddle.cli.terminal import DIM, is_terminal, note, print_message, print_report, write

if TYPE_CHECKING:
    from heddle.tasks.generation import Conversation

HELP = "/reset starts over, /exit leaves; Ctrl-C interrupts an answer, or leaves at the prompt."


def chat(  # noqa: PLR0913 - the options are the contract
    model: Model = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system message.")] = None,
    once: Annotated[str | None, typer.Option(metavar="TEXT", help="Answer this message, then exit.")] = None,
    template: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME",
            help="A chat template: a file, or chatml, llama2, llama3, plain. Default: the model's own.",
        ),
    ] = None,
    max_tokens: opts.MaxTokens = 256,
    temperature: opts.Temperature = None,
    top_k: opts.TopK = None,
    top_p: opts.TopP = None,
    min_p: opts.MinP = None,
    repetition: opts.Repetition = None,
    seed: opts.Seed = None,
    device: Device = "auto",
    weights: Weights = "auto",
    best: Best = False,
) -> int:
    """Chat with a language model; answers are streamed.

    If standard input is not a terminal, each line is a turn, and blank lines are skipped. Text of a message never
    becomes a special token.
    """
    from heddle.checkpoints import find_source
    from heddle.decoding import GenerationOptions, generation_config
    from heddle.tasks.generation import chat_template, conversation
    from heddle.text.chat import Chat, find_template

    filters: GenerationOptions = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    config = generation_config({"max_tokens": max_tokens, "repetition": repetition, "seed": seed, **filters})
    opts.warn_unused_seed({"seed": seed, "temperature": temperature}, config)
    source = (
        "" if template else chat_template(find_source(model, best=best))
    )  # a missing one is reported before a model is loaded
    lm = open_model(model, device, weights, best)
    source = find_template(template, lm.tokenizer) if template else source
    talk = conversation(lm.model, Chat(source, lm.tokenizer), config, system)
    if once is not None:
        _answer(talk, once)
        return 0
    return _terminal(talk) if is_terminal(sys.stdin) else _lines(talk)


def _lines(talk: "Conversation") -> int:
    """Answer every line of standard input; a line that cannot be answered is reported, and the others are answered."""
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

    print_report(HELP, DIM)
    while True:
        try:
            text = input("> ")
        except (EOFError, KeyboardInterrupt):
            write()
            return 0
        if not text.strip():
            continue
        try:
            if _command(talk, text):
                return 0
        except KeyboardInterrupt:
            print_message(" (interrupted)", DIM)
        except UsageError as error:
            note(str(error))


def _command(talk: "Conversation", text: str) -> bool:
    """Answer a message, or run a command; return whether to leave."""
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
    for chunk in talk.say(text):
        write(chunk, end="")
    write()
    if talk.forgotten > before:
        number = talk.forgotten - before
        note(f"the context of {talk.model.context} tokens is full; the {number} oldest turns were dropped")
    if talk.reason is FinishReason.CONTEXT:
        note(f"stopped at the model's context of {talk.model.context} tokens")

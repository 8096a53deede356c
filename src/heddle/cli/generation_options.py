"""Wishes: the options that say how to write, and what they mean together."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from heddle.cli.options import open_model

if TYPE_CHECKING:
    from heddle.decoding.sampling import GenerationConfig, GenerationOptions
    from heddle.decoding.speculative import Draft
    from heddle.lm import LM
    from heddle.tasks.generation import TextConstraints

LARGEST = 1 << 24  # bytes of a schema or a grammar

Prompts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PROMPT]...",
        help="Texts to continue. -, or none but a pipe: standard input, whole, without its last line break. "
        "None at all: a new document.",
    ),
]
File = Annotated[
    str | None,
    typer.Option(metavar="FILE|-", help="A prompt on each line, or JSON lines with the key prompt; -: standard input."),
]
Records = Annotated[bool, typer.Option("--records", help="With --file: JSON lines, whatever it is called.")]
Batch = Annotated[int, typer.Option(min=1, help="Prompts answered at once.")]
MaxTokens = Annotated[int, typer.Option(help="New tokens at most.")]
MinTokens = Annotated[
    int | None, typer.Option(help="New tokens before the end token; --stop and rules may end it sooner.")
]
Temperature = Annotated[
    float | None,
    typer.Option(
        help="0: the most probable token each time. Left out: 0, or 1 with --top-k, --top-p, --min-p or --typical."
    ),
]
TopK = Annotated[int | None, typer.Option(help="Choose among the K most probable tokens.")]
TopP = Annotated[float | None, typer.Option(help="Choose among the most probable tokens of mass P.")]
MinP = Annotated[float | None, typer.Option(help="Leave out what is below P times the best.")]
Typical = Annotated[float | None, typer.Option(help="Choose among the tokens of mass P as surprising as expected.")]
Contrast = Annotated[
    float | None, typer.Option(help="Weight of saying something new, 0 to 1, among --top-k candidates (4).")
]
Repetition = Annotated[float | None, typer.Option(help="Above 1: what was said before becomes less probable.")]
Presence = Annotated[float | None, typer.Option(help="Taken from the score of each token that was written.")]
Frequency = Annotated[float | None, typer.Option(help="Taken once for each time that it was written.")]
Bias = Annotated[
    list[str] | None,
    typer.Option(metavar="TOKEN=NUMBER", help="Added to the score of a token; -inf bans. May be given again."),
]
Beams = Annotated[int | None, typer.Option(help="Sequences that grow side by side; 1: one, as it is written.")]
LengthPenalty = Annotated[
    float | None, typer.Option(help="With --beams: rank by log-probability over length to this power.")
]
Coverage = Annotated[
    float | None, typer.Option(help="With --beams: weight of how much of the source they attended to.")
]
Groups = Annotated[int | None, typer.Option(help="With --beams: groups of them that shun each other by --diversity.")]
Diversity = Annotated[
    float | None, typer.Option(help="With --groups: what a token costs that another group has just taken.")
]
Seed = Annotated[
    int | None, typer.Option(help="Of what is drawn: same seed and prompt, same text. Other prompts draw apart.")
]
Samples = Annotated[int, typer.Option(help="Texts for each prompt: drawn, or the best that --beams find.")]
Seconds = Annotated[float | None, typer.Option(help="End after so much time, for each batch.")]
Logprobs = Annotated[
    int | None, typer.Option(help="With --json: log-probabilities of each token and the N most probable.")
]
StopAt = Annotated[
    list[str] | None,
    typer.Option("--stop", help="End before this text; may be given again. The ids of --json hold it nevertheless."),
]
Regex = Annotated[str | None, typer.Option(help="The new text matches this expression, in Rust's dialect.")]
Schema = Annotated[str | None, typer.Option(metavar="FILE|JSON", help="The new text is JSON of this schema.")]
GrammarFile = Annotated[str | None, typer.Option(metavar="FILE", help="The new text obeys this Lark grammar.")]
Require = Annotated[list[str] | None, typer.Option(help="The new text holds this phrase; may be given again.")]
Forbid = Annotated[list[str] | None, typer.Option(help="The new text never holds this phrase; may be given again.")]

CacheKind = Annotated[
    str | None,
    typer.Option("--cache", metavar="KIND", help="What attention remembers: full, or quantised to eight bits."),
]
CompileWhen = Annotated[
    str | None,
    typer.Option(
        "--compile",
        metavar="WHEN",
        help="Compile the step of each token first: on pays for long work; auto only records it, on a GPU; or off.",
    ),
]
DraftModel = Annotated[
    str | None,
    typer.Option(
        "--draft", metavar="MODEL", help="A smaller model that guesses ahead, for speed; lookup: passages that repeat."
    ),
]

UNDRAWN = "seed: nothing is drawn, so that every seed gives the same; --temperature 1 draws"

Options = Mapping[str, Any]  # options by name
RENAMED = {"logprobs": "alternatives"}


def generation_options_from(options: Options) -> "GenerationOptions":
    """Return the options that are wishes, in the words of the library."""
    from heddle.decoding.sampling import GenerationOptions

    named = {RENAMED.get(name, name): value for name, value in options.items()}
    found = {name: named[name] for name in GenerationOptions.__annotations__ if name in named}
    return cast("GenerationOptions", found | {"bias": _biases(options["bias"] or ())})


def warn_unused_seed(options: Options, config: "GenerationConfig") -> None:
    """Say that a seed changes nothing, where nothing is drawn and nobody asked for that."""
    from heddle.decoding.sampling import MultinomialSampling

    if (
        options["seed"] is not None
        and options["temperature"] is None
        and not isinstance(config.choice, MultinomialSampling)
    ):
        typer.echo(f"heddle: {UNDRAWN}", err=True)


def _biases(words: Sequence[str]) -> dict[str, float]:
    from heddle.core import ConfigError

    found: dict[str, float] = {}
    for word in words:
        token, _, number = word.rpartition("=")
        try:
            found[token] = float(number)
        except ValueError:
            token = ""
        if not token:
            raise ConfigError("bias", want="a token and a number, such as ' word=-5'", got=word)
    return found


def constraints_from(options: Options) -> "TextConstraints":
    """Return what the new text must obey."""
    from heddle.core.system import read_text
    from heddle.tasks.generation import make_constraints

    schema, grammar = options["schema"], options["grammar"]
    if schema is not None:
        schema = schema if schema.lstrip().startswith("{") else read_text(Path(schema), LARGEST)
    return make_constraints(
        options["regex"],
        schema,
        None if grammar is None else read_text(Path(grammar), LARGEST),
        options["require"] or (),
        options["forbid"] or (),
    )


def draft_from(options: Options) -> "LM | Draft | None":
    """Return what guesses ahead, if anything does."""
    from heddle.decoding.speculative import LookupDraft

    if options["draft"] is None:
        return None
    return LookupDraft() if options["draft"] == "lookup" else open_model(options["draft"], options["device"])

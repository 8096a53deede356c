"""The command-line options of text generation, and the config that they make."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from heddle.cli.options import open_model
from heddle.cli.terminal import note

if TYPE_CHECKING:
    from heddle.decoding import GenerationOptions
    from heddle.decoding.generation import GenerationConfig
    from heddle.decoding.speculative import Draft
    from heddle.lm import LM
    from heddle.tasks.generation import TextConstraints

MAX_BYTES = 1 << 24  # bytes of a schema or a grammar

Prompts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PROMPT]...",
        help="Prompts to continue. - (or a pipe and no prompt): all of standard input as one prompt, without the last "
        "line break. Without any prompt: a new document.",
    ),
]
File = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|-",
        help="Read prompts from a file: one per line, or JSON lines with the key prompt; -: standard input.",
    ),
]
Records = Annotated[bool, typer.Option("--records", help="Read --file as JSON lines, whatever its extension.")]
StreamWindow = Annotated[
    int | None, typer.Option("--window", metavar="TOKENS", help="With --sinks: the latest tokens that are kept.")
]
Batch = Annotated[int, typer.Option(min=1, help="Batch size: prompts per batch.")]
MaxTokens = Annotated[int, typer.Option(help="Maximum number of new tokens.")]
MinTokens = Annotated[
    int | None,
    typer.Option(
        help="Minimum number of new tokens before the end token; --stop and constraints may end the text sooner."
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(help="Sampling temperature; 0: greedy. Default: 0, or 1 with --top-k, --top-p, --min-p or --typical."),
]
TopK = Annotated[int | None, typer.Option(help="Top-k sampling: sample from the K most probable tokens.")]
TopP = Annotated[
    float | None,
    typer.Option(help="Nucleus sampling: sample from the most probable tokens that together have probability P."),
]
MinP = Annotated[
    float | None, typer.Option(help="Min-p sampling: drop tokens less probable than P times the most probable one.")
]
Typical = Annotated[
    float | None,
    typer.Option(
        help="Typical sampling: sample from the tokens of probability P whose surprisal is closest to the entropy."
    ),
]
Contrast = Annotated[
    float | None,
    typer.Option(
        help="Contrastive search: weight of the degeneration penalty, 0 to 1, over --top-k candidates (default 4)."
    ),
]
Repetition = Annotated[
    float | None,
    typer.Option(help="Repetition penalty: above 1, tokens of the prompt and the text become less probable."),
]
Presence = Annotated[
    float | None, typer.Option(help="Presence penalty: subtracted from the logit of each token already generated.")
]
Frequency = Annotated[
    float | None,
    typer.Option(help="Frequency penalty: subtracted from the logit once per time the token was generated."),
]
NoRepeatNgram = Annotated[
    int | None, typer.Option(help="N-gram blocking: n-grams of N tokens, the prompt's included, occur only once.")
]
Bias = Annotated[
    list[str] | None,
    typer.Option(metavar="TOKEN=NUMBER", help="Logit bias: added to the logit of a token; -inf bans it. Repeatable."),
]
Beams = Annotated[int | None, typer.Option(help="Beam search: number of beams; 1: none.")]
LengthPenalty = Annotated[
    float | None, typer.Option(help="With --beams: rank by log-probability divided by length to this power.")
]
Coverage = Annotated[
    float | None,
    typer.Option(help="With --beams: weight of the coverage penalty, how much of the source was attended to."),
]
Groups = Annotated[int | None, typer.Option(help="With --beams: number of groups in diverse beam search.")]
Diversity = Annotated[
    float | None,
    typer.Option(help="With --groups: penalty per earlier group that chose the same token in this step."),
]
EarlyStop = Annotated[
    str | None,
    typer.Option(
        "--early-stopping",
        metavar="WHEN",
        help="With --beams: end when as many texts ended (full), when none is better now (heuristic), or never early.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        help="Random seed of sampling. The same seed and prompt give the same text, whatever else is in the batch."
    ),
]
Samples = Annotated[int, typer.Option(help="Texts per prompt: samples, or the best beams.")]
Seconds = Annotated[float | None, typer.Option(help="Time limit for each batch, in seconds.")]
Logprobs = Annotated[
    int | None,
    typer.Option(help="With --json: write the log-probability of each token and of the N most probable ones."),
]
StopAt = Annotated[
    list[str] | None,
    typer.Option("--stop", help="Stop string: end before this text. Repeatable. The ids of --json include it."),
]
Regex = Annotated[str | None, typer.Option(help="Constrain the new text to a regular expression, in Rust's syntax.")]
Schema = Annotated[str | None, typer.Option(metavar="FILE|JSON", help="Constrain the new text to JSON of this schema.")]
GrammarFile = Annotated[str | None, typer.Option(metavar="FILE", help="Constrain the new text to this Lark grammar.")]
Require = Annotated[list[str] | None, typer.Option(help="A phrase that the new text must contain. Repeatable.")]
Forbid = Annotated[list[str] | None, typer.Option(help="A phrase that the new text must not contain. Repeatable.")]

CacheKind = Annotated[
    str | None, typer.Option("--cache", metavar="KIND", help="The KV cache: full, or int8 (quantized to eight bits).")
]
CompileWhen = Annotated[
    str | None,
    typer.Option(
        "--compile",
        metavar="WHEN",
        help="Compile the decoding step: on (pays off for long work), auto (only captures a CUDA graph), or off.",
    ),
]
DraftModel = Annotated[
    str | None,
    typer.Option(
        "--draft",
        metavar="MODEL",
        help="Speculative decoding: a smaller draft model, or lookup for n-grams of the prompt.",
    ),
]

UNUSED_SEED = "--seed has no effect without sampling; --temperature 1 samples"

Options = Mapping[str, Any]  # command-line options by name


def generation_options_from(options: Options) -> "GenerationOptions":
    """Return the generation options, under the names of the library."""
    from heddle.decoding import GenerationOptions

    found = {name: options[name] for name in GenerationOptions.__annotations__ if name in options}
    return cast("GenerationOptions", found | {"bias": _biases(options["bias"] or ())})


def warn_unused_seed(options: Options, config: "GenerationConfig") -> None:
    """Warn that a seed has no effect if nothing is sampled, unless a temperature was given too."""
    if options["seed"] is not None and options["temperature"] is None and not config.strategy.draws:
        note(UNUSED_SEED)


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
    """Return the constraints on the new text."""
    from heddle.core.system import read_text
    from heddle.tasks.generation import make_constraints

    schema, grammar = options["schema"], options["grammar"]
    if schema is not None:
        schema = schema if schema.lstrip().startswith("{") else read_text(Path(schema), MAX_BYTES)
    return make_constraints(
        options["regex"],
        schema,
        None if grammar is None else read_text(Path(grammar), MAX_BYTES),
        options["require"] or (),
        options["forbid"] or (),
    )


def draft_from(options: Options) -> "LM | Draft | None":
    """Return the draft of speculative decoding, if there is one."""
    from heddle.decoding.speculative import LookupDraft

    if options["draft"] is None:
        return None
    return LookupDraft() if options["draft"] == "lookup" else open_model(options["draft"], options["device"])

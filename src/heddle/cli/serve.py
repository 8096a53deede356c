"""heddle serve: models over HTTP, by OpenAI's protocol, and the playground."""

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli.options import Best, Device, Weights, open_model
from heddle.cli.terminal import DIM, note, print_report

if TYPE_CHECKING:
    from heddle.lm import LM
    from heddle.serving.http import ModelSource

KEY = "HEDDLE_API_KEY"  # in the environment, where a list of processes does not show it


def serve(  # noqa: PLR0913 - the options are the contract
    model: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--model",
            metavar="[NAME=]MODEL",
            help="A run, Hugging Face folder, GGUF file or package:NAME; repeat it for several. Default: newest run.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Address to listen on; all but loopback need --api-key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="Port.")] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help=f"A key that clients must send; repeat it for several. Also ${KEY}."),
    ] = None,
    slots: Annotated[int, typer.Option(metavar="N", min=1, max=1024, help="Requests decoded side by side.")] = 16,
    capacity: Annotated[
        int | None, typer.Option(metavar="TOKENS", min=1, help="Tokens of a slot, prompt and answer together.")
    ] = None,
    waiting: Annotated[int, typer.Option(metavar="N", min=1, help="Requests that may wait for a slot.")] = 256,
    waiting_per_client: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Those of one client, by key or address; default: half.")
    ] = None,
    max_wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long a request may wait; then the answer is 503.")
    ] = 120.0,
    invariant: Annotated[
        str, typer.Option(metavar="MODE", help="Equal bits whatever else runs: auto (on a CPU), on or off.")
    ] = "auto",
    allowed_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A further name of this server in Host headers.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="An origin whose pages may call the server.")
    ] = None,
    device: Device = "auto",
    weights: Weights = "auto",
    best: Best = False,
) -> int:
    """Serve models by OpenAI's HTTP protocol, and a playground in the browser.

    Routes: / (the playground), /v1/completions, /v1/chat/completions, /v1/embeddings, /v1/models, /tokenize,
    /detokenize, /tokenizer_info, /health, /ready, /metrics; under /v1/heddle the tasks: score, classify, tag, answer,
    fill, embed, rescore, translate, summarize, and what the playground shows: explain, logits, divergence, models.
    SIGTERM and Ctrl-C let accepted requests finish.
    """
    from heddle.core import ConfigError, MissingExtra
    from heddle.serving import Address, EngineConfig

    if invariant not in ("auto", "on", "off"):
        raise ConfigError.unknown("invariant", invariant, ("auto", "on", "off"))
    keys = (*(api_key or ()), *filter(None, [os.environ.get(KEY)]))
    address = Address(host, port, keys, tuple(allowed_host or ()), tuple(cors_origin or ()))
    limits = {"waiting": waiting, "waiting_per_client": waiting_per_client, "max_wait": max_wait}
    config = EngineConfig(slots=slots, capacity=capacity, invariant=invariant, **limits)  # type: ignore[arg-type]
    try:
        from heddle.serving.http import Access, ServedModel, ServedModels, make_app
        from heddle.serving.http import serve as serve_app
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "fastapi", "serve", "heddle serve") from None
    bound = address.bind()
    sources = [_source(name, device, weights, best) for name in model or [""]]
    models = ServedModels([ServedModel.start(source, config) for source in sources])
    _log_to_stderr()
    names = ", ".join(models.by_name)
    note(f"serving {names} on http://{host}:{bound.getsockname()[1]}/v1", DIM)
    serve_app(make_app(models, Access.of(address)), bound)
    return 0


def _source(typed: str, device: str, weights: str, best: bool) -> "ModelSource":
    """Load a model, given as MODEL or NAME=MODEL."""
    from heddle.serve_app import model_source

    name, equals, path = typed.partition("=")
    if Path(typed).exists():  # a path may have an equals sign
        name, equals, path = typed, "", ""
    lm = open_model((path if equals else typed) or None, device, weights, best)
    return model_source(name if equals else _name(lm), lm)


def _name(lm: "LM") -> str:
    return "heddle" if lm.origin.path is None else lm.origin.path.name


class _Lines(logging.Handler):
    """Writes messages as lines on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        print_report(record.getMessage())


def _log_to_stderr() -> None:
    """Write the access log as JSON lines to standard error."""
    log = logging.getLogger("heddle.access")
    log.addHandler(_Lines())
    log.setLevel(logging.INFO)
    log.propagate = False

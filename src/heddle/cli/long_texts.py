"""heddle evaluate on long texts: the loss by position, and reading with attention sinks."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heddle.cli.options import check_output
from heddle.cli.terminal import print_message, write

if TYPE_CHECKING:
    from heddle.decoding.runtime import StreamingConfig
    from heddle.lm import LM
    from heddle.tasks.scoring import PositionLosses

ByPosition = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.svg",
        help="Measure the loss by position, past the trained length too: the figure, and the numbers in FILE.json.",
    ),
]
Length = Annotated[
    int | None,
    typer.Option(help="With --by-position: tokens of each row. Default: eight times the model's context."),
]


@dataclass(frozen=True)
class LongReading:
    """How long texts are read."""

    window: int | None
    stride: int | None
    carry: bool
    sinks: int | None
    figure: Path | None
    length: int | None

    def check(self) -> None:
        """Refuse options that contradict each other, and a figure that cannot be written."""
        from heddle.core import UsageError

        if self.length is not None and self.figure is None:
            raise UsageError("--length requires --by-position")
        if self.stride is not None or self.carry:
            given = "carry" if self.carry else "stride"
            raise UsageError(f"--{given} has no effect with --{'sinks' if self.figure is None else 'by-position'}")
        if (self.sinks is None) != (self.window is None):
            raise UsageError("--sinks and --window: want both, the first tokens and the latest ones that are kept")
        _ = self.streaming
        if self.figure is not None:
            if self.figure.suffix != ".svg":
                raise UsageError(f"--by-position {self.figure}: want a name that ends in .svg")
            check_output(self.figure, lambda path: path.read_bytes().startswith(b"<svg"), False)
            check_output(self.numbers, lambda path: b'"loss_beyond_context"' in path.read_bytes(), False)

    @property
    def streaming(self) -> "StreamingConfig | None":
        """Return what is kept of a text; None: all of it."""
        from heddle.decoding.runtime import StreamingConfig

        if self.sinks is None or self.window is None:
            return None
        return StreamingConfig(window=self.window, sinks=self.sinks)

    @property
    def numbers(self) -> Path:
        """Return the file of the numbers in a figure."""
        assert self.figure is not None
        return self.figure.with_suffix(".json")


def measure_long_texts(lm: "LM", data: str | None, limit: int | None, reading: LongReading, as_json: bool) -> int:
    """Measure a model on long texts: the loss by position, or the loss with attention sinks."""
    from heddle.cli.evaluate import corpus_of, held_out_texts, limited, report_skipped, show_evaluation
    from heddle.data.sources import DocumentCounter
    from heddle.tasks.scoring import PositionConfig, evaluate_streaming, loss_by_position

    counter = DocumentCounter()
    texts = limited(held_out_texts(lm, corpus_of(lm, data), data, counter), limit)
    if reading.figure is not None:
        config = PositionConfig(length=reading.length, streaming=reading.streaming)
        losses = loss_by_position(lm.model, lm.tokenizer, texts, config)
        _write(lm, losses, reading)
        if as_json:
            write(json.dumps(losses.plain()))
        else:
            _show(losses, reading)
        return report_skipped(counter, own=data is None)
    streaming = reading.streaming
    assert streaming is not None
    found = evaluate_streaming(lm.model, lm.tokenizer, texts, streaming)
    if as_json:
        write(json.dumps(found.plain()))
    else:
        show_evaluation(found)
    return report_skipped(counter, own=data is None)


def _write(lm: "LM", losses: "PositionLosses", reading: LongReading) -> None:
    """Write the figure and its numbers."""
    from heddle.cli.curves import Curve, to_svg
    from heddle.core.system import write_json, write_text

    assert reading.figure is not None
    name = "model" if lm.origin.path is None else lm.origin.path.name
    kept = "" if reading.streaming is None else f", {reading.sinks} sinks and a window of {reading.window}"
    curve = Curve(f"{name}{kept}: loss in nats per token by position", losses.points())
    write_text(reading.figure, to_svg([curve], marks=(losses.context,)))
    write_json(reading.numbers, losses.plain() | {"model": name, "window": reading.window, "sinks": reading.sinks})


def _show(losses: "PositionLosses", reading: LongReading) -> None:
    plain = losses.plain()
    within, beyond = plain["loss_within_context"], plain["loss_beyond_context"]
    if within is not None:
        print_message(
            f"loss             {within:.4f} nats per token up to position {losses.context:,}, the trained length"
        )
    if beyond is not None:
        print_message(f"loss beyond      {beyond:.4f} nats per token up to position {losses.length:,}")
    print_message(f"measured on      {plain['tokens']:,} tokens")
    print_message(f"wrote {reading.figure} and {reading.numbers}")

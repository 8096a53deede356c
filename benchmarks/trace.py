"""Trace budget: how many files and calls of src/heddle a reader must follow through one branch and one training step.

`python benchmarks/trace.py` prints both counts; `--list` also prints every call, in order, and the files of a step.
The mixer branch is the first block's (norm, attention, output projection, dropout, join) of a small GPT-2 on a CPU,
eager, without gradients. The training step is one turn of the trainer's loop in a run of the recipe `gpt2`, from the
loader's next batch to the optimizer's step, without callbacks. Both are counted by `sys.setprofile`.
"""

import argparse
import contextlib
import io
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import heddle

SOURCE = Path(next(iter(heddle.__path__)))
MIXER_FILES, MIXER_CALLS = 8, 35  # the most that the mixer branch may touch
TRAINING_FILES = 25  # the most that a training step should touch
STEP = 2  # the step of the run that is traced: the first warms up
TEXT = "the quick brown fox jumps over the lazy dog. " * 400
OPTIONS = {
    "model.layers": 2,
    "model.width": 64,
    "model.heads": 4,
    "tokenizer.vocab": 280,
    "rows.length": 32,
    "data.split.fraction": 0.1,
    "training.steps": STEP + 1,
    "training.batch": 4,
    "hardware.device": "cpu",
    "hardware.workers": 0,
    "every.validate": 1000,
    "every.save": 1000,
}


@dataclass
class Trace:
    """Calls of functions in src/heddle, in order, as (file, function)."""

    calls: list[tuple[str, str]] = field(default_factory=list)

    @property
    def files(self) -> list[str]:
        """Return the files touched, in order of the first call."""
        return list(dict.fromkeys(file for file, _ in self.calls))

    def start(self) -> None:
        """Count from here on."""
        sys.setprofile(self._event)

    def stop(self) -> None:
        """Stop counting."""
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(SOURCE)):
            self.calls.append((str(Path(path).relative_to(SOURCE)), frame.f_code.co_qualname))


@torch.no_grad()
def mixer_branch() -> Trace:
    """Trace the first block's mixer branch of a small GPT-2."""
    model = heddle.build("gpt2", layers=2, width=64, heads=4, vocab=512).eval()
    branch: torch.nn.Module = next(module for path, module in model.named_modules() if path.endswith("0.mixer"))
    trace, forward = Trace(), branch.forward

    def traced(*inputs: Any) -> Any:
        trace.start()
        try:
            return forward(*inputs)
        finally:
            trace.stop()

    ids = torch.arange(32).view(2, 16)
    model(ids)  # once untraced: caches and lazy imports
    branch.forward = traced
    model(ids)
    return trace


def training_step() -> Trace:
    """Trace one turn of the trainer's loop, from the loader to the optimizer's step."""
    from heddle.cli.main import main as command_line
    from heddle.training.loop import Callback, Trainer

    trace, fit = Trace(), Trainer.fit

    class Start(Callback):
        """The last callback of a step: what follows is the next turn of the loop."""

        def after_step(self, trainer: Trainer, report: object) -> None:
            if trainer.step == STEP - 1:
                trace.start()

    class Stop(Callback):
        """The first callback of a step: what came before was the loop."""

        def after_step(self, trainer: Trainer, report: object) -> None:
            trace.stop()

    def traced(trainer: Trainer) -> None:
        trainer.callbacks = [Stop(), *trainer.callbacks, Start()]
        fit(trainer)

    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        text.write_text(TEXT)
        words = ["train", "gpt2", f"data={text}", *(f"{key}={value}" for key, value in OPTIONS.items())]
        Trainer.fit = traced  # type: ignore[method-assign, assignment]
        try:
            with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
                assert command_line(words) == 0
        finally:
            Trainer.fit = fit  # type: ignore[method-assign]
    return trace


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print every call of the branch and the step's files")
    listed = parser.parse_args().list
    mixer, training = mixer_branch(), training_step()
    if listed:
        print(*(f"{file:44} {name}" for file, name in mixer.calls), *training.files, sep="\n")
    print(f"mixer branch: {len(mixer.files)} files (at most {MIXER_FILES}), {len(mixer.calls)} calls ({MIXER_CALLS})")
    print(f"training step: {len(training.files)} files (at most {TRAINING_FILES}), {len(training.calls)} calls")


if __name__ == "__main__":
    main()

"""Sample: let the model write a little every so many steps; how it writes comes from outside."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from heddle.core import EnvironmentFault
from heddle.models.networks import Model
from heddle.training.loop import Callback, Report, Trainer

SampleWriter = Callable[[Model], str]


class Sample(Callback):
    """Append samples to samples.txt and show the last one."""

    def __init__(self, write: SampleWriter, path: Path, console: Console, every: int) -> None:
        self.write, self.path, self.console, self.every = write, path, console, every

    def after_step(self, trainer: Trainer, report: Report) -> None:
        if trainer.step % self.every and trainer.step != trainer.steps:
            return
        trainer.model.eval()
        text = self.write(trainer.model)
        trainer.model.train()
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"--- step {trainer.step}\n{text}\n")
        except OSError as error:
            raise EnvironmentFault(f"{self.path}: cannot be written: {error.strerror}") from error
        self.console.print(Text(f"sample at step {trainer.step}:\n{text}", style="dim"))

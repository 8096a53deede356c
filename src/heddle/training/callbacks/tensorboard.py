"""Board: the same numbers as metrics.jsonl for TensorBoard, an extra."""

from pathlib import Path

from heddle.core import MissingExtra
from heddle.training.loop import Callback, Report, Trainer


class TensorBoard(Callback):
    """Write loss, norm, rate and held-out loss as TensorBoard scalars."""

    def __init__(self, folder: Path, every: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("tensorboard", "track", "tensorboard=true") from None
        self.writer = SummaryWriter(str(folder))
        self.every = every

    def after_step(self, trainer: Trainer, report: Report) -> None:
        if trainer.step % self.every and trainer.metric is None:
            return
        values = {"loss": float(report.loss), "norm": float(report.norm), "rate": report.rate}
        if trainer.metric is not None:
            values["validation_loss"] = trainer.metric
        for name, value in values.items():
            self.writer.add_scalar(name, value, trainer.step)

    def after_fit(self, trainer: Trainer) -> None:
        self.writer.close()

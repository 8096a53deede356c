"""A part, an objective, a callback, a preset and a recipe of one's own, in one file outside the library.

heddle check own_part.py                                # the laws that every part of the library keeps
heddle train maxout --use own_part.py data=my.txt
heddle generate "Once" -m maxout                        # the run has kept the file: no --use, from any folder
python own_part.py my.txt                               # the same in Python
"""

import sys
from collections.abc import Mapping
from typing import Any

from torch import Tensor

import heddle
from heddle.core import check_at_least, check_share, part, swap
from heddle.core.shapes import Stream
from heddle.core.system import parse_overrides
from heddle.data.rows import Batch, PackedRows
from heddle.models.networks import LanguageModelConfig, Model
from heddle.models.presets import PresetConfig, preset
from heddle.nn.base import ChannelConfig, Context, Linear, Part, Place, Role
from heddle.nn.state import State
from heddle.objectives import Loss, NextTokenConfig, ObjectiveConfig
from heddle.text.tokenizers import BpeTokenizer
from heddle.training import EveryConfig, RunConfig, TrainingConfig
from heddle.training.callbacks import CallbackConfig
from heddle.training.loop import Callback, Report, Trainer

# --- a part -----------------------------------------------------------------------------------------------------------


@part("maxout")
class MaxoutConfig(ChannelConfig):
    """Maxout instead of an activation: each unit is the largest of several linear maps (Goodfellow et al. 2013)."""

    hidden: int | None = None  # None: twice the width
    pieces: int = 2

    def __post_init__(self) -> None:
        check_at_least(1, hidden=self.hidden, pieces=self.pieces)

    def build(self, width: int, place: Place) -> Part:
        return Maxout(width, self.hidden or 2 * width, self.pieces)


class Maxout(Part):
    """down(max over the pieces of up(x))."""

    def __init__(self, width: int, hidden: int, pieces: int) -> None:
        super().__init__()
        self.pieces = pieces
        self.up = Linear(width, hidden * pieces)
        self.down = Linear(hidden, width, role=Role.INTO_STREAM)

    def forward(self, x: Stream, ctx: Context) -> Stream:
        return self.down(self.up(x).unflatten(-1, (-1, self.pieces)).amax(-1))


# --- an objective -----------------------------------------------------------------------------------------------------


@part("focal")
class FocalConfig(ObjectiveConfig):
    """Next-token prediction in which easy tokens count less (focal loss, Lin et al. 2017); validation is plain."""

    focus: float = 0.5

    def __post_init__(self) -> None:
        check_share(focus=self.focus)

    def checked_model(self, model: Model) -> Model:
        return NextTokenConfig().checked_model(model)

    def __call__(
        self, model: Model, batch: Batch, carried: State | None = None, scheduled: Tensor | None = None
    ) -> Loss:
        if not model.training:
            return NextTokenConfig()(model, batch, carried, scheduled)
        hidden = model(batch.inputs, Context(documents=batch.documents, positions=batch.positions))
        nll = model.head.nll(hidden, batch.targets)
        return Loss(((1 - (-nll).exp()) ** self.focus * nll * batch.weights).sum())


# --- a callback -------------------------------------------------------------------------------------------------------


@part("token_budget")
class TokenBudgetConfig(CallbackConfig):
    """Stop once so many tokens were trained on, over all resumptions of the run."""

    tokens: int = 10_000_000

    def build(self) -> Callback:
        return TokenBudget(self.tokens)


class TokenBudget(Callback):
    """Counts the tokens; its count is part of every checkpoint."""

    saved_as = "token_budget"

    def __init__(self, tokens: int) -> None:
        self.tokens, self.seen = tokens, 0

    def after_step(self, trainer: Trainer, report: Report) -> None:
        self.seen += report.tokens
        if self.seen >= self.tokens:
            trainer.stop = f"{self.seen:,} tokens were trained on"

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load(self, state: Mapping[str, Any]) -> None:
        self.seen = state["seen"]


# --- a preset and a recipe --------------------------------------------------------------------------------------------


@heddle.register_preset
def maxout_lm(layers: int = 4, width: int = 192, heads: int = 4, vocab: int = 4096, context: int = 256) -> Any:
    """The preset `first` with maxout in place of its feed-forward networks."""
    config = preset("first").config(layers=layers, width=width, heads=heads, vocab=vocab, context=context)
    assert isinstance(config, LanguageModelConfig)
    return swap(ChannelConfig, MaxoutConfig())(config)


@heddle.register_recipe
def maxout() -> RunConfig:
    """A small Transformer with maxout, under the focal loss."""
    return RunConfig(
        name="maxout",
        model=PresetConfig(name="maxout_lm"),
        tokenizer=BpeTokenizer(vocab=2048),
        rows=PackedRows(length=128),
        objective=FocalConfig(),
        training=TrainingConfig(steps=200, batch=8),
        every=EveryConfig(log=10, validate=100, save=100, sample=100),
        callbacks=(TokenBudgetConfig(),),
    )


if __name__ == "__main__":
    heddle.use(__file__)  # so that the run keeps this file
    run = heddle.train("maxout", data=sys.argv[1], overrides=dict(parse_overrides(sys.argv[2:])))
    print(run.metrics)
    print(run.lm.generate("The", max_tokens=20))

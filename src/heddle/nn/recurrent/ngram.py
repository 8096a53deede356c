"""N-gram neural language model: a hidden layer over the concatenated last n - 1 words (Bengio et al. 2003)."""

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.core import ConfigError, check_at_least, part
from heddle.core.shapes import Stream
from heddle.nn.base import Context, Linear, Place, Role
from heddle.nn.layers import activation
from heddle.nn.recurrent.recurrence import Recurrent, RecurrentConfig, document_starts, output_projection
from heddle.nn.state import HiddenState

PaddedRow = Float[Tensor, "batch lengthened width"]  # previous inputs, then the stream


@part("ngram")
class NGramConfig(RecurrentConfig):
    """N-gram model: see the last n - 1 positions as one concatenated vector.

    n: the n-th word is predicted from the n - 1 before it.
    hidden: width of the hidden layer; None: the stream's width; another size is projected back to it.
    activation: the function of the hidden layer.
    direct: direct connections from the concatenated vector to the output.
    """

    n: int = 5
    hidden: int | None = None
    activation: str = "tanh"
    direct: bool = False

    def __post_init__(self) -> None:
        check_at_least(1, hidden=self.hidden)
        if self.n < 2:
            raise ConfigError("n", want="at least 2: one token before the predicted one", got=self.n)
        activation(self.activation)

    def build(self, width: int, place: Place) -> "NGram":
        return NGram(width, self)


class NGram(Recurrent):
    """output(activation(inner(last))) + direct(last)."""

    def __init__(self, width: int, config: NGramConfig) -> None:
        super().__init__()
        self.width, self.window = width, config.n - 1
        hidden = width if config.hidden is None else config.hidden
        self.inner = Linear(self.window * width, hidden, bias=True)
        self.activation = activation(config.activation)
        self.output = output_projection(hidden, width)
        self.direct = Linear(self.window * width, width, role=Role.INTO_STREAM) if config.direct else None

    def state_sizes(self) -> tuple[int, ...]:
        return ((self.window - 1) * self.width,)

    def step(self, x: Stream, ctx: Context, slot: object) -> tuple[Stream, HiddenState]:
        """Continue after the last inputs, oldest first; zeros before the beginning."""
        (past,) = self.initial_state(x, slot)
        row = torch.cat((past.unflatten(1, (self.window - 1, self.width)).to(x.dtype), x), dim=1)
        last = torch.cat([self.shifted(row, ctx, x.shape[1], back) for back in reversed(range(self.window))], dim=-1)
        y: Tensor = self.output(self.activation(self.inner(last)))
        after = HiddenState((self.last_inputs(row, ctx, x.shape[1]),))
        return y if self.direct is None else y + self.direct(last), after

    def shifted(self, row: PaddedRow, ctx: Context, length: int, offset: int) -> Tensor:
        """Return the input `offset` steps before each position; zeros where that is another document's."""
        start = self.window - 1 - offset
        found = row[:, start : start + length]
        number = self.document_numbers(ctx)
        if number is None or not offset:
            return found
        other = number[:, start : start + length] != number[:, self.window - 1 :]
        return found.masked_fill(other[..., None], 0)

    def document_numbers(self, ctx: Context) -> Tensor | None:
        """Number the documents of the padded row; previous inputs belong to the first."""
        starts = document_starts(ctx)
        if starts is None:
            return None
        number = starts.cumsum(1)
        return torch.cat((number.new_zeros(len(number), self.window - 1), number), dim=1)

    def last_inputs(self, row: PaddedRow, ctx: Context, length: int) -> Tensor:
        """Return the last inputs of each row's last document."""
        ends = row.new_full((len(row),), length, dtype=torch.long) if ctx.lengths is None else ctx.lengths
        places = ends[:, None] + torch.arange(self.window - 1, device=row.device)
        found, number = row.take_along_dim(places[..., None], dim=1), self.document_numbers(ctx)
        if number is not None:
            at_end = (ends + self.window - 2).clamp(min=0)[:, None]
            other = number.take_along_dim(places, dim=1) != number.take_along_dim(at_end, dim=1)
            found = found.masked_fill(other[..., None], 0)
        return found.flatten(1)

"""The window model equals its formula, forgets what lies beyond its window, and keeps documents apart."""

from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.core import ConfigError
from heddle.nn.base import Context, Place
from heddle.nn.recurrent import NGramConfig

WIDTH = 6


def built(config: NGramConfig) -> Any:
    module = config.build(WIDTH, Place()).double()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(0.5 * torch.randn(weight.shape, generator=draw, dtype=torch.float64))
    return module


def x(batch: int = 2, length: int = 9) -> Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("n", [2, 3, 5, 12])
@pytest.mark.parametrize(("hidden", "direct"), [(None, False), (4, False), (4, True)])
def test_a_row_equals_the_formula(n: int, hidden: int | None, direct: bool) -> None:
    module = built(NGramConfig(n=n, hidden=hidden, direct=direct))
    got = module(x(), Context())
    for row in range(2):
        words = torch.cat((torch.zeros(n - 2, WIDTH, dtype=torch.float64), x()[row]))
        for t in range(9):
            last = words[t : t + n - 1].flatten()  # the n - 1 words before the predicted one
            want = module.output(torch.tanh(module.inner.weight @ last + module.inner.bias))
            want = want + module.direct.weight @ last if direct else want
            torch.testing.assert_close(got[row, t], want)


def test_what_lies_beyond_the_window_has_no_say() -> None:
    module, rows = built(NGramConfig(n=4)), x().requires_grad_()
    (gradient,) = torch.autograd.grad(module(rows, Context())[:, 6].sum(), rows)
    assert [bool(gradient[:, t].count_nonzero()) for t in range(9)] == [False] * 4 + [True] * 3 + [False] * 2


@pytest.mark.parametrize("n", [2, 3, 5])
def test_documents_are_apart_and_the_first_goes_on(n: int) -> None:
    module, rows = built(NGramConfig(n=n, direct=True)), x()
    _, before = module.step(x(2, 3), Context(), None)
    documents, new = torch.tensor([[0, 0, 1, 1, 1, 1, 2, 9, 9], [3] * 9]), torch.tensor([7, 9])
    got, slot = module.step(rows, Context(documents=documents, lengths=new), before)
    first = type(before)(tuple(v[:1] for v in before.vectors))
    for start, stop in ((0, 2), (2, 6), (6, 7)):
        want, last = module.step(rows[:1, start:stop], Context(), None if start else first)
        torch.testing.assert_close(got[:1, start:stop], want)
    torch.testing.assert_close(slot.vectors[0][:1], last.vectors[0])


def test_a_window_of_one_word_is_refused() -> None:
    with pytest.raises(ConfigError, match="n: want at least 2"):
        NGramConfig(n=1)
    with pytest.raises(ConfigError, match="activation"):
        NGramConfig(activation="tan")

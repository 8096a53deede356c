"""Static rows: a row that is written in place goes on as it did alone, whatever the other rows hold."""

import pytest
import torch
from laws.cases import CONTEXT, cases, ids, pairs

from heddle.models.networks import AutoregressiveModel
from heddle.nn.state import State, StatePiece, TokenAxes, allocate_rows, view_rows, write_pieces, write_row

NAMES = ("gpt2", "mistral", "lstm_lm", "qrnn_lm", "SumConfig", "int8", "seq2seq_attention", "t5")
CHOSEN = [case for case in [*cases(), *pairs()] if case.stepwise and any(name in case.name for name in NAMES)]


def built(config: object) -> AutoregressiveModel:
    made = config.build(0).double().eval()  # type: ignore[attr-defined]
    assert isinstance(made, AutoregressiveModel)
    return made


def begin(model: AutoregressiveModel, row: torch.Tensor, capacity: int) -> State:
    """Read a prompt, after a source of as many tokens as the model takes."""
    memory = model.encode(row[:, :5]) if model.reads_source else None
    return model.step(row, model.new_state(1, capacity, memory))[1]


@pytest.mark.parametrize("case", CHOSEN, ids=lambda c: c.name)
@torch.inference_mode()
def test_row_written_in_place_continues_as_alone(case: object) -> None:
    model = built(case.config)  # type: ignore[attr-defined]
    rows = [ids(batch=1, length=length, seed=length) for length in (4, 6, 3)]
    template = model.new_state(1, CONTEXT, model.encode(ids(batch=1, length=7)) if model.reads_source else None)
    static = allocate_rows(model.step(rows[0], template)[1], 4, CONTEXT)
    model.reserve(CONTEXT)
    alone = []
    for row, prompt in ((2, rows[0]), (0, rows[1])):
        state = begin(model, prompt, prompt.shape[1] + 2)
        write_row(static, row, state)
        alone.append(model.step(torch.tensor([[3]]), state)[0])
    view = view_rows(static, 3, 8)
    vectors, later = model.step(torch.full((3, 1), 3), view)
    view.update_from(later)
    torch.testing.assert_close(vectors[[2, 0]], torch.cat(alone))
    write_row(static, 2, begin(model, rows[2], 5))  # over an earlier request
    fresh = model.step(torch.tensor([[5]]), begin(model, rows[2], 5))[0]
    again = model.step(torch.full((3, 1), 5), view_rows(static, 3, 8))[0]
    torch.testing.assert_close(again[2:], fresh)


@pytest.mark.parametrize("case", [c for c in CHOSEN if c not in pairs()], ids=lambda c: c.name)
@torch.inference_mode()
def test_pieces_of_a_row_restore_what_it_has_read(case: object) -> None:
    model = built(case.config)  # type: ignore[attr-defined]
    if model.reads_source:
        return
    prompt = ids(batch=1, length=8, seed=1)
    blank = allocate_rows(begin(model, prompt[:, :1], CONTEXT), 1, CONTEXT)
    axes, state, pieces = TokenAxes.of(blank), allocate_rows(blank, 1, 8), []
    for start in (0, 4):
        _, later = model.step(prompt[:, start : start + 4], state)
        state.update_from(later)
        state.lengths.fill_(start + 4)
        pieces.append(StatePiece.copy_of(state, axes, start, start + 4))
    wanted = model.step(torch.tensor([[2]]), allocate_and_fill(blank, axes, pieces, 9))[0]
    plain = model.step(torch.tensor([[2]]), begin(model, prompt, 9))[0]
    torch.testing.assert_close(wanted, plain)


def allocate_and_fill(blank: State, axes: TokenAxes, pieces: list[StatePiece], capacity: int) -> State:
    state = allocate_rows(blank, 1, capacity)
    write_pieces(state, axes, pieces)
    return state

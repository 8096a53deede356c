"""Segment recurrence (Transformer-XL, Dai et al. 2019) against a plain reference written as the paper's equations."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

import heddle
from heddle.core import ConfigError
from heddle.models.networks import LanguageModel
from heddle.nn.base import Context, Place
from heddle.nn.recurrent import SegmentRecurrence, SegmentRecurrenceConfig
from heddle.nn.state import HiddenState, State

WIDTH, HEADS, MEMORY, VOCAB = 12, 3, 5, 30


def part(memory: int = MEMORY) -> SegmentRecurrence:
    made = SegmentRecurrenceConfig(heads=HEADS, memory=memory).build(WIDTH, Place()).double()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw, dtype=torch.float64) * 0.5)
    made.reset_buffers()
    return made


def inputs(rows: int, length: int) -> Tensor:
    return torch.randn(rows, length, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def reference(made: SegmentRecurrence, memory: Tensor, x: Tensor) -> Tensor:
    """Return Transformer-XL's attention of one row, position by position, as equations of its section 3.3."""
    row = torch.cat((memory, x))
    count = len(memory)
    frequency = 10_000.0 ** -(torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH)
    matrix = {name: made.get_parameter(f"{name}.weight") for name in ("query", "key", "value", "position", "output")}
    found = []
    for i in range(len(x)):
        heads = []
        for head in range(HEADS):
            part = slice(head * 4, head * 4 + 4)
            query = matrix["query"][part] @ x[i]
            scores, values = [], []
            for j in range(max(0, count + i - made.memory), count + i + 1):
                phases = (count + i - j) * frequency
                distance = matrix["position"][part] @ torch.cat((phases.sin(), phases.cos()))
                key = matrix["key"][part] @ row[j]
                u, v = made.content_bias[head], made.position_bias[head]
                scores.append((query @ key + query @ distance + u @ key + v @ distance) / math.sqrt(4))
                values.append(matrix["value"][part] @ row[j])
            heads.append(torch.stack(scores).softmax(0) @ torch.stack(values))
        found.append(matrix["output"] @ torch.cat(heads))
    return torch.stack(found)


def test_it_is_the_attention_of_the_paper() -> None:
    made, x = part(), inputs(2, 9)
    found = made(x, Context())
    for row in range(2):
        torch.testing.assert_close(found[row], reference(made, x[row, :0], x[row]))


@pytest.mark.parametrize("pieces", [(4, 4, 4), (1, 7, 4), (12,), (2, 3, 5, 2)])
def test_segments_with_a_memory_are_the_whole_row(pieces: Sequence[int]) -> None:
    made, x = part(), inputs(2, 12)
    whole, slot, found, start = made(x, Context()), None, [], 0
    for length in pieces:
        state = State(torch.tensor([start, start]), 12)
        y, slot = made.step(x[:, start : start + length], Context(state=state), slot)
        assert isinstance(slot, HiddenState)
        found.append(y)
        start += length
    torch.testing.assert_close(torch.cat(found, 1), whole)
    after, known = slot.vectors  # type: ignore[union-attr]
    torch.testing.assert_close(after.view(2, MEMORY, WIDTH), x[:, -MEMORY:])
    assert bool((known == 1).all())


def test_a_second_segment_reads_the_first_as_the_reference_does() -> None:
    made, x = part(), inputs(1, 10)
    _, slot = made.step(x[:, :6], Context(state=State.empty(1, 10)), None)
    y, _ = made.step(x[:, 6:], Context(state=State.empty(1, 10)), slot)
    torch.testing.assert_close(y[0], reference(made, x[0, 1:6], x[0, 6:]))


def test_no_gradient_passes_between_segments_once_the_state_is_detached() -> None:
    made, x = part(), inputs(1, 8).requires_grad_()
    _, slot = made.step(x[:, :4], Context(state=State.empty(1, 8)), None)
    for state, reaches in ((State.empty(1, 8).with_slot("a", slot), True), (None, False)):
        kept = slot if state is not None else State.empty(1, 8).with_slot("a", slot).detach().slots["a"]
        y, _ = made.step(x[:, 4:], Context(state=State.empty(1, 8)), kept)
        (gradient,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        assert bool((gradient[:, :4] != 0).any()) is reaches and bool((gradient[:, 4:] != 0).any())


def test_padding_is_not_remembered() -> None:
    made, x = part(), inputs(2, 6)
    lengths = torch.tensor([6, 2])
    _, slot = made.step(x, Context(state=State.empty(2, 9), lengths=lengths), None)
    _, alone = made.step(x[1:, :2], Context(state=State.empty(1, 9)), None)
    assert isinstance(slot, HiddenState) and isinstance(alone, HiddenState)
    for own, other in zip(slot.vectors, alone.vectors, strict=True):
        torch.testing.assert_close(own[1:], other)
    assert slot.vectors[1].tolist() == [[1] * 5, [0, 0, 0, 1, 1]]


def test_a_document_of_a_packed_row_does_not_see_the_one_before() -> None:
    made, x = part(), inputs(1, 9)
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1]])
    found = made(x, Context(documents=documents))
    torch.testing.assert_close(found[:, 4:], made(x[:, 4:], Context()))
    _, slot = made.step(x, Context(documents=documents, state=State.empty(1, 20)), None)
    y, _ = made.step(x[:, :3], Context(state=State.empty(1, 20)), slot)
    torch.testing.assert_close(y, made(torch.cat((x[:, 4:], x[:, :3]), 1), Context())[:, 5:])


def test_weights_on_the_segment_lack_what_the_memory_has() -> None:
    made, x = part(), inputs(1, 8)
    _, slot = made.step(x[:, :4], Context(state=State.empty(1, 8)), None)
    alone = made.attention_weights(x[:, 4:], Context(), None)
    after = made.attention_weights(x[:, 4:], Context(), slot)
    torch.testing.assert_close(alone.sum(-1), torch.ones_like(alone.sum(-1)))
    assert bool((after.sum(-1) < 1 - 1e-6).all())


def test_a_model_reads_far_past_its_context_in_constant_memory() -> None:
    model = heddle.build("transformer_xl", layers=2, width=12, heads=3, hidden=16, memory=5, vocab=VOCAB, context=8)
    assert isinstance(model, LanguageModel)
    model.eval()
    ids = torch.randint(0, VOCAB, (1, 60), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        whole, state, pieces, sizes = model(ids), model.new_state(1, 1), [], set()
        for start in range(0, 60, 7):
            vectors, state = model.step(ids[:, start : start + 7], state)
            pieces.append(vectors)
            sizes.add(state.nbytes())
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-4, atol=1e-4)
    assert len(sizes) == 1


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(ConfigError, match="heads: want a divisor of the width 12, got 5"):
        SegmentRecurrenceConfig(heads=5).build(12, Place())
    with pytest.raises(ConfigError, match="width: want an even number"):
        SegmentRecurrenceConfig(heads=1).build(7, Place())
    with pytest.raises(ConfigError, match="memory: want at least 1, got 0"):
        SegmentRecurrenceConfig(heads=1, memory=0)


def test_it_trains_on_streams_and_is_evaluated_with_its_state_carried(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the loom lifts the right threads, and the pattern is woven. " * 60)
    small = {"layers": 1, "width": 16, "heads": 2, "hidden": 32, "memory": 8, "dropout": 0.0}
    overrides = (
        {"model": "transformer_xl"}
        | {f"model.{name}": value for name, value in small.items()}
        | {
            "rows": {"kind": "streams", "length": 8, "lanes": 4},
            "tokenizer": {"kind": "byte"},
            "training.steps": 150,
            "training.batch": 4,
            "training.optimizer.learning_rate": 0.01,
            "hardware.device": "cpu",
        }
    )
    run = heddle.train("first", data=text, runs=tmp_path, overrides=overrides, progress=False)
    from heddle.tasks.scoring import evaluate

    lm = run.lm
    carried = evaluate(lm.model, lm.tokenizer, [text.read_text()[:600]], carry=True)
    alone = evaluate(lm.model, lm.tokenizer, [text.read_text()[:600]], window=8, stride=8)
    assert carried.loss < alone.loss < 5

"""Mixed rows: each row of a batch obeys its own generation config, and generates what it would alone."""

from typing import Any

import pytest
import torch
from decoding.reference import model

from heddle.core import DamageError, HeddleError, replace
from heddle.decoding import generation_config
from heddle.decoding.generation import (
    ContrastiveSearch,
    GenerationConfig,
    MixedRow,
    StepOutput,
    advance_rows,
    generate,
    mixed_row,
)
from heddle.decoding.runtime import Request, prepare_prefill
from heddle.models.networks import AutoregressiveModel
from heddle.nn.state import State, allocate_rows, view_rows, write_row

VOCAB, LIMIT = 12, 24
SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 1.0, "seed": 4, "max_tokens": 3},
    {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "seed": 3},
    {"presence": 1.5, "frequency": 0.5},
    {"repetition": 1.4, "temperature": 1.5, "seed": 1},
    {"bias": {2: 4.0}, "min_tokens": 4},
    {"temperature": 1.0, "min_p": 0.1, "seed": 3, "min_tokens": 2, "logprobs": 3},
    {"forced_end": True},
]
PROMPTS = [[1, 2], [3], [1, 2], [5, 6, 7, 8], [9, 9], [1], [4, 3, 2], [1, 2], [1, 2]]


def configs() -> list[GenerationConfig]:
    return [replace(generation_config({"max_tokens": 8, **one}), stop=(0,)) for one in SETTINGS]  # type: ignore[typeddict-item]


def together(made: AutoregressiveModel, prompts: list[list[int]], every: list[GenerationConfig]) -> list[list[int]]:
    """Generate all rows on one state of static size; row i joins after i steps, and leaves when it ends."""
    found: list[list[int]] = [[] for _ in prompts]
    waiting, active = list(range(len(prompts))), dict[int, tuple[int, MixedRow]]()  # by place
    static: State | None = None
    while waiting or active:
        if waiting:
            number = waiting.pop(0)
            request = Request(prompts[number])
            prefill = prepare_prefill(made, [request], every[number].prefill)
            row = mixed_row(prefill, request, every[number])
            logits, state = prefill.run(made)
            static = allocate_rows(state, len(prompts), LIMIT) if static is None else static
            place = min(set(range(len(prompts))) - active.keys())
            write_row(static, place, state)
            note(found, active, place, number, row, advance_rows(logits, [row])[0])
        if not active:
            continue
        assert static is not None
        rows = max(active) + 1
        static.lengths.zero_()
        for place, (_, row) in active.items():
            static.lengths[place] = row.length - 1
        ids = torch.tensor([[active[i][1].last if i in active else 0] for i in range(rows)])
        vectors, later = made.step(ids, view := view_rows(static, rows, LIMIT))
        view.update_from(later)
        places = sorted(active)
        outputs = advance_rows(made.head.logits(vectors[:, -1])[places], [active[i][1] for i in places])
        for place, output in zip(places, outputs, strict=True):
            note(found, active, place, *active[place], output)
    return found


def note(
    found: list[list[int]],
    active: dict[int, tuple[int, MixedRow]],
    place: int,
    number: int,
    row: MixedRow,
    output: StepOutput | Exception,
) -> None:
    assert isinstance(output, StepOutput) and output.id is not None
    found[number].append(output.id)
    active[place] = number, row
    if output.reason is not None:
        del active[place]


@pytest.mark.parametrize("name", ["attention", "recurrent"])
@torch.inference_mode()
def test_each_row_generates_what_it_would_alone(name: str) -> None:
    made = model(name, vocab=VOCAB)
    every = configs()
    alone = [generate(made, [prompt], config)[0] for prompt, config in zip(PROMPTS, every, strict=True)]
    assert together(made, PROMPTS, every) == alone
    assert len({tuple(ids) for ids in alone}) > 4


@torch.inference_mode()
def test_rows_of_other_seeds_are_drawn_by_their_own() -> None:
    made = model("attention", vocab=VOCAB)
    every = [generation_config({"max_tokens": 6, "temperature": 2.0, "seed": seed}) for seed in range(6)]
    alone = [generate(made, [[1]], config)[0] for config in every]
    assert together(made, [[1]] * 6, every) == alone
    assert len({tuple(ids) for ids in alone}) > 3


def test_damaged_logits_end_only_their_own_row() -> None:
    made, every = model("attention", vocab=VOCAB), configs()
    rows = []
    for prompt, config in zip(PROMPTS, every, strict=True):
        request = Request(prompt)
        rows.append(mixed_row(prepare_prefill(made, [request], config.prefill), request, config))
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits[1] = torch.nan
    outputs = advance_rows(logits, rows)
    assert [isinstance(output, DamageError) for output in outputs] == [row == 1 for row in range(len(rows))]


def test_strategy_that_reads_ahead_is_refused() -> None:
    made = model("attention", vocab=VOCAB)
    config = GenerationConfig(strategy=ContrastiveSearch())
    with pytest.raises(HeddleError, match="contrastive does not choose each token"):
        mixed_row(prepare_prefill(made, [Request([1])], config.prefill), Request([1]), config)

"""Batches: rows stacked, sliced, counted and moved."""

import dataclasses

import numpy as np
import pytest
import torch

from heddle.data.rows import Batch, Row, collate


def sample(batch: int = 4, length: int = 3) -> Batch:
    marks = np.zeros(length, np.int64)
    weights = np.array([1, 1, 0], np.float32)
    rows = [
        Row(np.arange(length + 1, dtype=np.uint16) + 10 * i, weights, marks, marks + i, i == 0, marks + 7, 2)
        for i in range(batch)
    ]
    return collate(rows, range(100, 100 + batch))


def test_targets_are_inputs_moved_by_one() -> None:
    batch = sample()
    assert batch.inputs[1].tolist() == [10, 11, 12]
    assert batch.targets[1].tolist() == [11, 12, 13]
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert batch.rows.tolist() == [100, 101, 102, 103]
    assert batch.fresh is not None and batch.fresh.tolist() == [True, False, False, False]


def test_only_counting_targets_are_tokens() -> None:
    assert sample().tokens == 8
    assert sample().slice(1, 2).tokens == 2


def test_slices_join_to_the_whole() -> None:
    batch = sample()
    parts = [batch.slice(0, 1), batch.slice(1, 4)]
    for field in dataclasses.fields(batch):
        whole = getattr(batch, field.name)
        assert torch.equal(torch.cat([getattr(part, field.name) for part in parts]), whole), field.name
    assert [len(part) for part in parts] == [1, 3]


def test_what_a_row_lacks_a_batch_lacks() -> None:
    row = Row(np.arange(4, dtype=np.uint32), np.ones(3, np.float32))
    batch = collate([row, row], [0, 1])
    absent = (batch.documents, batch.positions, batch.fresh, batch.source, batch.source_lengths)
    assert absent == (None,) * 5
    assert batch.slice(0, 1).to("cpu").documents is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pinned_batches_reach_the_device() -> None:
    moved = sample().pin().to("cuda")
    assert moved.inputs.is_cuda
    assert torch.equal(moved.inputs.cpu(), sample().inputs)

"""Chunked prefill: prompts read side by side get the bits that each has alone; a shared prefix is read once."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from serving.models import VOCAB, served
from torch import Tensor

from heddle.core.system import batch_invariant
from heddle.decoding import generation_config
from heddle.decoding.runtime import Request, prepare_prefill
from heddle.models.networks import AutoregressiveModel
from heddle.nn.state import FullKVCacheConfig
from heddle.serving import Engine, EngineConfig, EngineRequest
from heddle.serving.chunked_prefill import ChunkedPrefill, PromptReader
from heddle.serving.invariance import make_invariant
from heddle.serving.slot_batch import BatchSize, SlotBatch

KINDS = ["gpt2", "mistral-7b", "mixtral-8x7b", "lstm_lm", "mogrifier_lm"]
LENGTHS = (70, 66, 64, 41, 40, 33, 32, 20, 5)


def batch_of(model: AutoregressiveModel, prefix_bytes: int = 0) -> SlotBatch:
    return SlotBatch(model, BatchSize(16, 256, 0, 32), FullKVCacheConfig(), prefix_bytes)


def reader(model: AutoregressiveModel, ids: Sequence[int], salt: str = "") -> PromptReader:
    options = generation_config({"max_tokens": 4}).prefill
    return PromptReader(prepare_prefill(model, [Request(ids)], options), salt=salt)


def prompts(lengths: Sequence[int]) -> list[list[int]]:
    return [[(7 * number + 5 * at) % VOCAB for at in range(length)] for number, length in enumerate(lengths)]


def read_all(batch: SlotBatch, readers: Sequence[PromptReader]) -> tuple[dict[PromptReader, Tensor], list[int]]:
    """Read prompts as a scheduler does; return the logits after each, and how many were read at once."""
    prefill, waiting, found, sizes = ChunkedPrefill(batch), list(readers), {}, []
    while waiting:
        group = prefill.choose(waiting, max(batch.read_counts))
        logits = prefill.read(group)
        ended = [one for one in group if not one.left]
        found |= dict(zip(ended, () if logits is None else logits, strict=True))
        for number, one in enumerate(ended):
            prefill.join(one, number)
        waiting = [one for one in waiting if one.left and one not in group] + [one for one in group if one.left]
        sizes.append(len(group))
    return found, sizes


@torch.inference_mode()
@pytest.mark.parametrize("name", KINDS)
def test_prompts_read_side_by_side_have_the_bits_that_each_has_alone(name: str) -> None:
    model = served(name)
    batch = batch_of(model)
    with batch_invariant(make_invariant(batch)):
        assert max(batch.read_counts) == 16 and min(batch.read_counts) <= 4
        readers = [reader(model, ids) for ids in prompts(LENGTHS)]
        together, sizes = read_all(batch, readers)
        assert max(sizes) >= 5
        for one in readers:
            again = reader(model, one.ids)
            (alone,) = read_all(batch, [again])[0].values()
            assert torch.equal(together[one], alone)


@torch.inference_mode()
@pytest.mark.parametrize("name", ["gpt2", "lstm_lm"])
def test_prefix_that_several_prompts_share_is_read_by_one_of_them(name: str) -> None:
    model = served(name)
    batch, (shared,) = batch_of(model, 1 << 26), prompts([64])
    readers = [reader(model, [*shared, last]) for last in (1, 2, 3)]
    found, sizes = read_all(batch, readers)
    assert [one.cached for one in readers] == [0, 64, 64] and sum(sizes) == 3 + 2
    (cold,) = read_all(batch_of(model), [reader(model, readers[2].ids)])[0].values()
    assert torch.allclose(found[readers[2]], cold, atol=1e-4)


@torch.inference_mode()
def test_prompts_of_different_salts_share_no_prefix() -> None:
    model = served("gpt2")
    batch, (shared,) = batch_of(model, 1 << 26), prompts([40])
    for salt, cached in (("a", 0), ("b", 0), ("a", 32)):
        one = reader(model, shared, salt)
        read_all(batch, [one])
        assert one.cached == cached


@torch.inference_mode()
def test_cancelled_prompt_leaves_the_others_in_place() -> None:
    model = served("gpt2")
    batch = batch_of(model)
    prefill, readers = ChunkedPrefill(batch), [reader(model, ids) for ids in prompts([60, 59, 58])]
    prefill.read(prefill.choose(readers, 16))
    readers[0].move(None)
    found, _ = read_all(batch, readers[1:])
    for one in readers[1:]:
        (alone,) = read_all(batch, [reader(model, one.ids)])[0].values()
        assert torch.allclose(found[one], alone, atol=1e-4)


def test_error_of_prompts_read_together_ends_the_guilty_one_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model, bad = served("lstm_lm"), 7
    step = type(model).step

    def failing(self: Any, inputs: Any, state: Any, lengths: Any = None) -> Any:
        if inputs.shape[1] > 1 and bool((inputs == bad).any()):
            raise RuntimeError("planted")
        return step(self, inputs, state, lengths)

    config = generation_config({"max_tokens": 3, "logprobs": 1})
    requests = [EngineRequest(Request([one] * 40), config) for one in (3, bad, 9)]
    with Engine(model, EngineConfig(slots=4)) as engine:
        wanted = [engine.submit(one).result() for one in requests]
        monkeypatch.setattr(type(model), "step", failing)
        handles = [engine.submit(one) for one in requests]
        assert [handles[number].result() for number in (0, 2)] == [wanted[0], wanted[2]]
        with pytest.raises(Exception, match="stopped by RuntimeError"):
            handles[1].result()
        assert dataclasses.asdict(engine.counters)["failed"] == 1

"""Law of serving: in invariant mode a request's log-probabilities have the same bits alone and among others."""

import random
from typing import Any

import pytest
import torch
from serving.models import VOCAB, served

from heddle.decoding import generation_config
from heddle.decoding.generation import Completion
from heddle.decoding.runtime import Request
from heddle.models.networks import AutoregressiveModel
from heddle.nn.quantization import remove_prepacked
from heddle.serving import Engine, EngineConfig, EngineRequest

STREAMS = 64
KINDS = ["gpt2", "lstm_lm", "mixtral-8x7b", "seq2seq_attention"]
MORE = [pytest.param(name, marks=pytest.mark.full) for name in ("llama", "mistral-7b", "gru_lm", "transformer_base")]


def streams(model: AutoregressiveModel, count: int = STREAMS) -> list[EngineRequest]:
    """Draw requests of mixed lengths and settings."""
    draw = random.Random(1)
    found = []
    for number in range(count):
        options: Any = {"max_tokens": draw.randrange(3, 14), "logprobs": 2}
        if number % 3:
            options |= {"temperature": 1.0, "seed": number, "top_k": draw.choice([None, 20])}
        if number % 7 == 1:
            options |= {"frequency": 0.5}
        ids = [draw.randrange(VOCAB) for _ in range(draw.choice([1, 5, 20, 33, 70]))]
        request = Request(ids[:1], ids[:40]) if model.reads_source else Request(ids)
        found.append(EngineRequest(request, generation_config(options)))
    return found


def bits(found: Completion) -> tuple[list[int], list[Any], list[Any]]:
    return found.ids, found.logprobs, found.alternatives


def answers(
    model: AutoregressiveModel, config: EngineConfig, requests: list[EngineRequest], together: bool
) -> list[Any]:
    with Engine(model, config) as engine:
        if together:
            return [bits(handle.result()) for handle in [engine.submit(one) for one in requests]]
        return [bits(engine.submit(one).result()) for one in requests]


@pytest.mark.parametrize("name", [*KINDS, *MORE])
def test_streams_have_the_same_bits_alone_and_together(name: str) -> None:
    model = served(name)
    requests = streams(model)
    together = answers(model, EngineConfig(slots=16), requests, together=True)
    some = slice(None, None, 4)
    assert answers(model, EngineConfig(slots=16), requests[some], together=False) == together[some]


def test_streams_have_the_same_bits_by_torchs_own_products() -> None:
    model = served("gpt2")
    requests = streams(model)
    remove_prepacked(model)
    together = answers(model, EngineConfig(slots=16, prepack=False), requests, together=True)
    assert answers(model, EngineConfig(slots=16, prepack=False), requests[::4], together=False) == together[::4]


@pytest.mark.parametrize("name", KINDS)
def test_without_the_mode_bits_depend_on_neighbours(name: str) -> None:
    model = served(name)
    requests = streams(model, 24)
    remove_prepacked(model)
    config = EngineConfig(slots=16, invariant="off", prepack=False)
    assert answers(model, config, requests, together=True) != answers(model, config, requests, together=False)


@pytest.mark.parametrize("name", ["gpt2", "lstm_lm"])
def test_cached_prefix_gives_the_same_bits_as_a_cold_prompt(name: str) -> None:
    model, ids = served(name), [(7 * i) % VOCAB for i in range(150)]
    requests = [
        EngineRequest(Request([*ids, last]), generation_config({"max_tokens": 4, "logprobs": 1})) for last in (3, 9)
    ]
    with Engine(model, EngineConfig(slots=4)) as engine:
        handles = [engine.submit(one) for one in requests]
        warm = [bits(handle.result()) for handle in handles]
        again = engine.submit(requests[1])
        assert bits(again.result()) == warm[1]
        assert again.cached_tokens == 128
    with Engine(model, EngineConfig(slots=4, prefix_bytes=0)) as engine:
        cold = engine.submit(requests[1])
        assert bits(cold.result()) == warm[1]
        assert cold.cached_tokens == 0


@pytest.mark.full  # two threads spin when other processes are busy
def test_two_threads_need_attention_by_row() -> None:
    model, before = served("gpt2"), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        requests = streams(model, 12)
        together = answers(model, EngineConfig(slots=8), requests, together=True)
        assert answers(model, EngineConfig(slots=8), requests[::3], together=False) == together[::3]
    finally:
        torch.set_num_threads(before)

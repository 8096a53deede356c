"""Engine: answers are those of offline generation; requests come, go, are refused, cancelled and fail by themselves."""

import copy
import dataclasses
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from serving.models import VOCAB, served

from heddle.core import HeddleError, replace
from heddle.decoding import generation_config
from heddle.decoding.generation import complete
from heddle.decoding.runtime import FinishReason, Request
from heddle.decoding.speculative import LookupDraft
from heddle.models.networks import AutoregressiveModel
from heddle.nn.quantization import quantize_model
from heddle.nn.state import Int8KVCacheConfig
from heddle.serving import Cancelled, DeadlineExceeded, Engine, EngineConfig, EngineRequest, FairQueue, QueueFull

MORE = [pytest.param(name, marks=pytest.mark.full) for name in ("llama", "gru_lm", "mogrifier_lm", "t5-small")]
KINDS = ["gpt2", "mistral-7b", "mixtral-8x7b", "lstm_lm", "seq2seq_attention", "transformer_base", *MORE]
OPTIONS: list[dict[str, Any]] = [
    {"max_tokens": 9},
    {"max_tokens": 7, "temperature": 1.0, "seed": 5},
    {"max_tokens": 12, "beams": 3},
    {"max_tokens": 3, "frequency": 1.0},
    {"max_tokens": 9, "temperature": 0.8, "top_p": 0.9, "seed": 2},
    {"max_tokens": 1},
]


def request(model: AutoregressiveModel, length: int, **options: Any) -> EngineRequest:
    ids = [(length + 5 * i) % VOCAB for i in range(length)]
    wanted = Request(ids[:1], ids[:60]) if model.reads_source else Request(ids)
    return EngineRequest(wanted, replace(generation_config(options), stop=(0,)))  # type: ignore[arg-type]


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(served("gpt2"), EngineConfig(slots=4, waiting=6, waiting_per_client=6)) as made:
        yield made


@pytest.mark.parametrize("name", KINDS)
def test_answers_are_those_of_offline_generation(name: str) -> None:
    model = served(name)
    requests = [request(model, 3 + 17 * i, **options) for i, options in enumerate(OPTIONS)]
    with Engine(model, EngineConfig(slots=4)) as engine:
        found = [handle.result() for handle in [engine.submit(one) for one in requests]]
    for one, answer in zip(requests, found, strict=True):
        (alone,) = complete(model, [one.request], one.config)
        assert (answer.ids, answer.reason) == (alone.ids, alone.reason)


def test_quantized_weights_and_cache_give_offline_ids() -> None:
    model = quantized()
    options: dict[str, Any] = {"max_tokens": 8, "cache": "int8"}
    requests = [request(model, 5 + 9 * i, **options) for i in range(3)]
    with Engine(model, EngineConfig(slots=4, cache=Int8KVCacheConfig())) as engine:
        found = [handle.result().ids for handle in [engine.submit(one) for one in requests]]
        assert engine.counters.steps > 0
    assert found == [complete(model, [one.request], one.config)[0].ids for one in requests]


def quantized() -> AutoregressiveModel:
    """Build a model with weights in eight bits."""
    model = copy.deepcopy(served("gpt2"))
    quantize_model(model, "int8")
    return model


def test_samples_are_those_of_offline_generation() -> None:
    model = served("gpt2")
    config = generation_config({"max_tokens": 5, "temperature": 1.0, "samples": 3})
    with Engine(model, EngineConfig(slots=4)) as engine:
        each = [engine.submit(EngineRequest(Request([4]), config, sample)) for sample in range(3)]
        assert [one.result().ids for one in each] == [c.ids for c in complete(model, [Request([4])], config)]


def test_searches_give_all_their_samples_and_drafts_change_nothing(engine: Engine) -> None:
    config = generation_config({"max_tokens": 6, "beams": 3, "samples": 2})
    wanted = [c.ids for c in complete(engine.model, [Request([4, 8])], config)]
    assert [c.ids for c in engine.submit(EngineRequest(Request([4, 8]), config)).results()] == wanted
    plain = generation_config({"max_tokens": 12})
    drafted = engine.submit(EngineRequest(Request([4, 8, 4, 8]), plain, draft=LookupDraft())).result()
    assert drafted.ids == complete(engine.model, [Request([4, 8, 4, 8])], plain)[0].ids


def test_prompt_logprobs_are_those_of_the_model(engine: Engine) -> None:
    ids = [(3 * i) % VOCAB for i in range(45)]
    handle = engine.submit(EngineRequest(Request(ids), generation_config({"max_tokens": 1}), prompt_logprobs=2))
    handle.result()
    with torch.no_grad():
        wanted = engine.model.logits(torch.tensor([ids]))[0].double().log_softmax(-1)
    first, *rest = handle.prompt_logprobs
    assert first is None and len(rest) == len(ids) - 1
    for at, one in enumerate(rest):
        assert one is not None
        assert one.logprob == pytest.approx(float(wanted[at, ids[at + 1]]), abs=1e-4)
        assert one.alternatives[0][1] == pytest.approx(float(wanted[at].max()), abs=1e-4)


def test_row_ends_where_its_slot_is_full() -> None:
    with Engine(served("gpt2"), EngineConfig(slots=2, capacity=32)) as engine:
        found = engine.submit(EngineRequest(Request([5] * 30), generation_config({"max_tokens": 50}))).result()
        assert (len(found.ids), found.reason) == (3, FinishReason.CONTEXT)
        with pytest.raises(HeddleError, match="prompt: want at most 32 tokens, got 33"):
            engine.submit(EngineRequest(Request([5] * 33), generation_config({"max_tokens": 1})))


def test_source_beyond_a_slot_is_refused() -> None:
    model = served("seq2seq_attention")
    with Engine(model, EngineConfig(slots=2)) as engine, pytest.raises(HeddleError, match="source: want at most"):
        long = Request([1], [3] * (model.context + 1))
        engine.submit(EngineRequest(long, generation_config({"max_tokens": 1})))


def test_too_many_requests_are_refused_at_once(engine: Engine) -> None:
    hold = held(engine)
    handles = [engine.submit(request(engine.model, 3, max_tokens=2)) for _ in range(6)]
    with pytest.raises(QueueFull, match="want at most 6 requests waiting, got 7"):
        engine.submit(request(engine.model, 3, max_tokens=2))
    hold.set()
    assert {len(handle.result().ids) for handle in handles} <= {1, 2}


def test_cancelled_request_frees_its_slot_and_disturbs_nobody(engine: Engine) -> None:
    long = request(engine.model, 40, max_tokens=200)
    victim, other = engine.submit(long), engine.submit(request(engine.model, 8, max_tokens=30))
    next(iter(victim))
    victim.cancel()
    with pytest.raises(Cancelled):
        list(victim)
    (alone,) = complete(engine.model, [other.request.request], other.request.config)
    assert other.result().ids == alone.ids
    assert wait_until(lambda: engine.load()["active"] == 0)


def test_request_that_waits_too_long_is_told(engine: Engine) -> None:
    hold = held(engine)
    late = engine.submit(replace_wait(request(engine.model, 5, max_tokens=2), 0.05))
    time.sleep(0.1)
    hold.set()
    with pytest.raises(DeadlineExceeded, match=r"waited longer than 0\.05 s"):
        late.result()


def held(engine: Engine) -> threading.Event:
    """Stop the engine's thread; it goes on when the event is set."""
    begun, hold = threading.Event(), threading.Event()
    engine.run(lambda: begun.set() or hold.wait())  # type: ignore[func-returns-value]
    assert begun.wait(20)
    return hold


def replace_wait(one: EngineRequest, seconds: float) -> EngineRequest:
    return EngineRequest(one.request, one.config, max_wait=seconds)


@pytest.mark.parametrize("name", ["gpt2", "lstm_lm"])
def test_error_in_a_step_ends_the_guilty_request_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, bad = served(name), 7
    step = type(model).step

    def failing(self: Any, inputs: Any, state: Any, lengths: Any = None) -> Any:
        if inputs.shape[1] == 1 and bool((inputs == bad).any()):
            raise RuntimeError("planted")
        return step(self, inputs, state, lengths)

    guilty = EngineRequest(Request([3]), generation_config({"max_tokens": 5, "bias": {bad: 1e4}}))
    others = [request(model, 5 + i, max_tokens=12, bias={bad: -1e4}) for i in range(3)]
    wanted = [complete(model, [one.request], one.config)[0].ids for one in others]
    with Engine(model, EngineConfig(slots=4)) as engine:
        monkeypatch.setattr(type(model), "step", failing)
        handles = [engine.submit(one) for one in (*others, guilty)]
        with pytest.raises(HeddleError, match="stopped by RuntimeError"):
            handles[-1].result()
        assert [handle.result().ids for handle in handles[:-1]] == wanted
        assert engine.is_alive()


@pytest.mark.parametrize("stage", ["prompt", "listener", "stop"])
def test_error_at_another_stage_ends_the_guilty_request_only(stage: str, engine: Engine, monkeypatch: Any) -> None:
    def fail(*given: Any) -> Any:
        raise RuntimeError("planted")

    other = request(engine.model, 9, max_tokens=25)
    good = engine.submit(other)
    if stage == "prompt":
        next(iter(good))
        monkeypatch.setattr(type(engine.model), "step", fail_once_in_a_prompt(type(engine.model).step))
        with pytest.raises(HeddleError, match="stopped by RuntimeError"):
            engine.submit(request(engine.model, 6, max_tokens=3)).result()
        assert good.result().ids == complete(engine.model, [other.request], other.config)[0].ids[1:]
        return
    config = generation_config({"max_tokens": 9})
    if stage == "listener":
        engine.submit(EngineRequest(Request([2]), config), fail)
    else:
        with pytest.raises(HeddleError, match="stopped by RuntimeError"):
            engine.submit(EngineRequest(Request([2]), config, should_stop=fail)).result()
    (alone,) = complete(engine.model, [other.request], other.config)
    assert good.result().ids == alone.ids
    assert wait_until(lambda: engine.load()["active"] == 0)


def fail_once_in_a_prompt(function: Any) -> Any:
    left = [1]

    def call(self: Any, inputs: Any, state: Any, lengths: Any = None) -> Any:
        if left and inputs.shape[1] > 1:
            left.pop()
            raise RuntimeError("planted")
        return function(self, inputs, state, lengths)

    return call


def test_dead_engine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(served("gpt2"), EngineConfig(slots=2))

    def fail(self: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr("heddle.serving.scheduler.Scheduler.turn", fail)
    assert wait_until(lambda: not engine.is_alive())
    with pytest.raises(HeddleError, match="engine: stopped by RuntimeError"):
        engine.submit(EngineRequest(Request([1]), generation_config({"max_tokens": 1})))
    engine.close()


def test_closing_engine_finishes_what_it_accepted() -> None:
    engine = Engine(served("gpt2"), EngineConfig(slots=2))
    handles = [engine.submit(request(engine.model, 5, max_tokens=10)) for _ in range(5)]
    engine.close()
    assert {len(handle.result().ids) for handle in handles} <= set(range(1, 11))
    with pytest.raises(Cancelled, match="takes no more requests"):
        engine.submit(request(engine.model, 5, max_tokens=1))


def test_closing_engine_answers_every_call_even_beside_a_cancelled_one() -> None:
    engine, begun = Engine(served("gpt2"), EngineConfig(slots=2)), threading.Event()

    def slow() -> None:
        begun.set()
        time.sleep(0.5)

    first = engine.run(slow)
    assert begun.wait(20)
    dropped, waiting = engine.run(lambda: 1), engine.run(lambda: 2)
    dropped.cancel()
    engine.close(drain=0)
    first.result(timeout=10)
    with pytest.raises(HeddleError, match="engine: closed"):
        waiting.result(timeout=10)


def test_memory_decides_how_many_slots_there_are() -> None:
    model = served("gpt2")
    with Engine(model, EngineConfig(slots=8, invariant="off")) as engine:
        row = 8 * 256 * 2 * 2 * 96 * 4 // 8
        assert engine.slots == 8
    with Engine(model, EngineConfig(slots=8, memory=5 * row + row // 2, invariant="off")) as engine:
        assert engine.slots == 5
    with pytest.raises(HeddleError, match="memory: want at least"):
        Engine(model, EngineConfig(slots=8, memory=row))


def test_clients_take_turns() -> None:
    queue: FairQueue[str] = FairQueue(9, client_limit=4)
    for item in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        queue.put(item, item[0])
    with pytest.raises(QueueFull, match="at most 4 requests waiting of one client"):
        queue.put("a5", "a")
    assert queue.remove("a2") and not queue.remove("a2")
    assert [queue.pop() for _ in range(7)] == ["a1", "b1", "c1", "a3", "b2", "a4", None]


def test_request_that_cannot_begin_holds_up_no_other() -> None:
    queue: FairQueue[str] = FairQueue(9)
    for item in ("a-search", "a1", "b-search", "c1"):
        queue.put(item, item[0])

    def is_row(item: str) -> bool:
        return "search" not in item

    assert [queue.pop(is_row) for _ in range(3)] == ["a1", "c1", None]
    assert [queue.pop() for _ in range(3)] == ["b-search", "a-search", None]


def test_full_searches_do_not_hold_up_plain_requests() -> None:
    model = served("gpt2")
    search = request(model, 6, max_tokens=150, beams=2)
    with Engine(model, EngineConfig(slots=4, max_searches=1)) as engine:
        searches = [engine.submit(search) for _ in range(3)]
        plain = engine.submit(request(model, 5, max_tokens=2))
        assert len(plain.result().ids) <= 2
        assert any(handle.timing.first is None for handle in searches)


def test_one_client_cannot_fill_the_queue() -> None:
    with Engine(served("gpt2"), EngineConfig(slots=4, waiting=4)) as engine:
        hold = held(engine)
        one = request(engine.model, 3, max_tokens=1)
        try:
            for _ in range(2):
                engine.submit(replace_client(one, "greedy"))
            with pytest.raises(QueueFull, match="at most 2 requests waiting of one client"):
                engine.submit(replace_client(one, "greedy"))
            other = engine.submit(replace_client(one, "modest"))
        finally:
            hold.set()
        assert len(other.result().ids) == 1


def replace_client(one: EngineRequest, client: str) -> EngineRequest:
    return dataclasses.replace(one, client=client)


def test_engine_has_a_longest_wait_of_its_own() -> None:
    with Engine(served("gpt2"), EngineConfig(slots=4, max_wait=0.05)) as engine:
        hold = held(engine)
        late = engine.submit(request(engine.model, 5, max_tokens=2))
        time.sleep(0.1)
        hold.set()
        with pytest.raises(DeadlineExceeded, match=r"waited longer than 0\.05 s"):
            late.result()


def test_long_text_lets_requests_go_on_between_its_pieces() -> None:
    model, ids = served("llama"), torch.arange(250)[None] % VOCAB
    with Engine(model, EngineConfig(slots=4)) as engine:
        running = engine.submit(request(model, 5, max_tokens=40))
        next(iter(running))
        made: list[int] = []

        def read() -> torch.Tensor:
            found = model.hidden_states(ids)
            made.append(engine.counters.steps)
            return found

        def count() -> None:
            made.append(engine.counters.steps)

        engine.run(count).result()
        found = engine.run(read).result()
        assert made[1] >= made[0] + 2  # a turn for each of two pieces
    with torch.no_grad():
        assert torch.allclose(found, model(ids), atol=1e-4)


def test_closing_engine_ends_a_long_call() -> None:
    model = served("llama")
    engine, begun = Engine(model, EngineConfig(slots=4)), threading.Event()

    def long() -> None:
        while True:
            begun.set()
            model.hidden_states(torch.zeros(1, 250, dtype=torch.long))

    endless = engine.run(long)
    assert begun.wait(20)
    engine.close(drain=0)
    with pytest.raises(Cancelled):
        endless.result(timeout=10)


def test_slots_of_a_recurrent_model_cost_its_state_and_end_where_others_do() -> None:
    model = served("lstm_lm")
    row = 2 * 2 * 96 * 4 + 8  # two vectors in each of two layers, and a length
    with Engine(model, EngineConfig(slots=64, memory=5 * row, invariant="off")) as engine:
        assert (engine.slots, engine.capacity) == (5, max(4096, model.context))
        with pytest.raises(HeddleError, match="prompt: want at most"):
            engine.submit(EngineRequest(Request([5] * (engine.capacity + 1)), generation_config({"max_tokens": 1})))
    with Engine(model, EngineConfig(slots=2, capacity=9000, invariant="off")) as engine:
        assert engine.capacity == 9000


def wait_until(condition: Any, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False

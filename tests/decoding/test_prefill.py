"""Reading: prompts in chunks within bounded memory, caches of a window, and caches in eight bits."""

import pytest
import torch
from laws.cases import SMALL, own_presets

from heddle.core import ConfigError, replace
from heddle.decoding.generation import GenerationConfig, complete, generate
from heddle.decoding.runtime import Request, prefill, prepare_prefill
from heddle.models import summarize
from heddle.models.networks import EncoderDecoder, LanguageModel
from heddle.nn.base import Context
from heddle.nn.state import Int8KVCacheConfig, KVCache, State

IDS = [(11 * n * n + 3 * n) % 23 for n in range(60)]


def model(name: str = "gpt2", **dials: int) -> LanguageModel:
    made = own_presets()[name].make(**{"vocab": 23, "context": 80} | SMALL[name] | dials).build(3).eval()
    assert isinstance(made, LanguageModel)
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in made.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=draw)
    return made


def test_no_more_than_a_chunk_is_read_at_once_and_capacities_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    made, seen = model(), list[tuple[int, int]]()
    real = made.step

    def noted(inputs: torch.Tensor, state: State, lengths: torch.Tensor | None = None) -> object:
        seen.append((inputs.shape[1], state.capacity))
        return real(inputs, state, lengths)

    monkeypatch.setattr(made, "step", noted)
    monkeypatch.setattr(prefill, "SPARE", 3)
    found = complete(made, [Request(IDS[:50]), Request(IDS[:7])], GenerationConfig(max_tokens=5, chunk=16))
    assert [length for length, _ in seen[:4]] == [16, 16, 16, 2]
    assert [room for _, room in seen[:4]] == [16, 32, 53, 53]
    monkeypatch.undo()
    assert found == complete(made, [Request(IDS[:50]), Request(IDS[:7])], GenerationConfig(max_tokens=5))


def test_a_chunk_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="chunk"):
        GenerationConfig(chunk=0)


def test_the_cache_of_a_window_stays_as_small_as_the_window() -> None:
    made = model("mistral", window=4)
    with torch.no_grad():
        _, state = made.step(torch.tensor([IDS]), made.new_state(1, 70))
    decodes_with_kv_cache = [slot for slot in state.slots.values() if isinstance(slot, KVCache)]
    assert len(decodes_with_kv_cache) == 2
    assert [cache.size for cache in decodes_with_kv_cache] == [4 + 16] * 2
    assert state.nbytes() < model("llama").step(torch.tensor([IDS]), model("llama").new_state(1, 70))[1].nbytes() / 2


@pytest.mark.parametrize("chunk", [1, 5, 17, 18, 60])
def test_a_window_that_forgets_writes_what_one_that_remembers_does(chunk: int) -> None:
    made = model("mistral", window=4)
    with torch.no_grad():
        grown = list(IDS)
        for _ in range(8):
            grown.append(int(made.logits(torch.tensor([grown]))[0, -1].argmax()))
    assert generate(made, [IDS], GenerationConfig(max_tokens=8, chunk=chunk)) == [grown[60:]]


@pytest.mark.parametrize(("name", "dials"), [("gpt2", {}), ("llama", {}), ("mistral", {"window": 4})])
@torch.no_grad()
def test_a_quantised_cache_is_near_a_full_one_and_far_smaller(name: str, dials: dict[str, int]) -> None:
    made, states, probs = model(name, **dials), {}, {}
    for kind in (None, Int8KVCacheConfig()):
        config = GenerationConfig(max_tokens=20) if kind is None else GenerationConfig(max_tokens=20, cache=kind)
        start = prepare_prefill(made, [Request(IDS[:40])], replace(config, chunk=10).prefill)
        scores, state = start.run(made)
        state = state.resize(60)
        for id in IDS[40:50]:
            vectors, state = made.step(torch.tensor([[id]]), state)
            scores = torch.cat((scores, made.head.logits(vectors[:, -1])))
        states[kind is None], probs[kind is None] = state, scores.log_softmax(-1)
    whole = made.logits(torch.tensor([IDS[:50]]), Context())[0, 39:].log_softmax(-1)
    assert (probs[True] - whole).abs().max() < 1e-4
    assert 0 < (probs[False] - whole).abs().max() < 0.05  # nats, the tolerance that we state
    assert states[False].nbytes() < 0.6 * states[True].nbytes()


@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral", "lstm_lm", "awd_lstm", "transformer", "t5"])
@torch.no_grad()
def test_a_token_takes_as_many_bytes_as_the_summary_says(name: str) -> None:
    config = own_presets()[name].make(**{"vocab": 23, "context": 80} | SMALL[name])
    made, sizes = config.build().eval(), list[int]()
    for length in (20, 30):
        if isinstance(made, EncoderDecoder):
            state = made.new_state(1, length, made.encode(torch.tensor([IDS[:9]])))
        else:
            state = made.new_state(1, length)
        sizes.append(made.step(torch.tensor([IDS[:length]]), state)[1].nbytes())
    assert (sizes[1] - sizes[0]) / 10 == 2 * summarize(config).kv_bytes_per_token  # said for half precision


def test_layers_that_need_no_cache_do_not_mind_its_kind() -> None:
    made = model("lstm_lm")
    assert generate(made, [IDS], GenerationConfig(cache=Int8KVCacheConfig(), max_tokens=4)) == generate(
        made, [IDS], GenerationConfig(max_tokens=4)
    )

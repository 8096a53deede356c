"""Rows on a state of fixed size give what rows on a growing one give; what is kept for later is given back in the end.

Here the step is run as it is; on a GPU it is captured (`test_gpu.py`). The compiled one runs in a process of its own,
for the shape checks that tests switch on cannot be traced.
"""

import gc
import json
import subprocess
import sys
import weakref

import pytest
import torch
from laws.cases import CONTEXT, VOCAB, as_source, of_presets

from heddle.core import ConfigError, DamageError, replace
from heddle.decoding import generation_config
from heddle.decoding.generation import (
    Completion,
    GenerationConfig,
    MultinomialSampling,
    complete,
    decoders,
    follow,
    generate,
)
from heddle.decoding.runtime import CaptureMode, FinishReason, Request, cuda_graphs, make_requests
from heddle.decoding.sampling import PenaltyConfig
from heddle.models.networks import AutoregressiveModel, EncoderDecoderConfig, LanguageModel, LanguageModelConfig
from heddle.models.presets import build

CASES = {
    case.name.removeprefix("preset="): case.config
    for case in of_presets()
    if isinstance(case.config, LanguageModelConfig | EncoderDecoderConfig) and case.stepwise
}
WRITERS = {name: config for name, config in CASES.items() if isinstance(config, LanguageModelConfig)}
PAIRS = {
    name: config for name, config in CASES.items() if isinstance(config, EncoderDecoderConfig) and "narang" not in name
}
PROMPTS = [[1], [2, 3, 4], [5, 6]]


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all rows go on a state of fixed size."""
    monkeypatch.setattr(
        cuda_graphs,
        "requested_mode",
        lambda model, prefill, compile: None if compile == "off" else CaptureMode.CAPTURED,
    )


def built(name: str) -> AutoregressiveModel:
    return CASES[name].build(3).double().eval()


def both(
    model: AutoregressiveModel, requests: list[Request], config: GenerationConfig
) -> tuple[list[Completion], list[Completion]]:
    return complete(model, requests, config), complete(model, requests, replace(config, compile="off"))


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("choice", [None, MultinomialSampling(seed=1)], ids=["greedy", "drawn"])
def test_rows_on_a_fixed_state_are_those_on_a_growing_one(
    name: str, choice: MultinomialSampling | None, fixed: None
) -> None:
    model = built(name)
    config = (
        GenerationConfig(max_tokens=12)
        if choice is None
        else GenerationConfig(max_tokens=12, strategy=choice, samples=2)
    )
    mine, plain = both(model, make_requests(PROMPTS), config)
    assert mine == plain
    stop = plain[0].ids[3]
    mine, plain = both(model, make_requests(PROMPTS), replace(config, stop=(stop,), min_tokens=2))
    assert mine == plain


@pytest.mark.parametrize("name", PAIRS)
def test_targets_on_a_fixed_state_are_those_on_a_growing_one(name: str, fixed: None) -> None:
    model = built(name)
    sources = [[4, 5, 6], [7], [8, 9]]
    read = sources if model.reads == "ids" else [as_source(model, torch.tensor(source)) for source in sources]
    mine, plain = both(model, make_requests([[1], [1, 2], [1]], read), GenerationConfig(max_tokens=8))
    assert mine == plain


def test_what_is_liked_banned_or_too_early_counts_where_the_device_chooses(fixed: None) -> None:
    model = built("first")
    free = generate(model, PROMPTS, GenerationConfig(max_tokens=6))
    banned = PenaltyConfig(bias=((free[0][1], -float("inf")), (free[1][2], 0.25)))
    for config in (
        GenerationConfig(max_tokens=9, penalties=banned),
        GenerationConfig(max_tokens=9, penalties=PenaltyConfig(repetition=1.3)),
        GenerationConfig(max_tokens=9, vocab=VOCAB // 2),
        GenerationConfig(max_tokens=9, stop=tuple(sorted({ids[0] for ids in free})), min_tokens=5),
        GenerationConfig(max_tokens=9, logprobs=2),
    ):
        mine, plain = both(model, make_requests(PROMPTS), config)
        assert mine == plain


@pytest.mark.parametrize("name", ["first", "mistral", "lstm_lm"])
def test_capacities_grow_where_a_option_is_long(name: str, fixed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "AHEAD", 2)
    monkeypatch.setattr(cuda_graphs, "BUCKET", 4)
    model, config = built(name).double(), GenerationConfig(max_tokens=CONTEXT - 4, logprobs=1)
    with torch.no_grad():
        for weight in model.parameters():  # wide, so that a single token lost or moved shows in every later one
            torch.nn.init.normal_(weight, std=0.5)
    for each in (config, replace(config, strategy=MultinomialSampling())):
        for mine, plain in zip(*both(model, make_requests(PROMPTS), each), strict=True):
            assert mine.ids == plain.ids
            torch.testing.assert_close(torch.tensor(mine.logprobs), torch.tensor(plain.logprobs), rtol=0, atol=1e-6)


def test_a_row_that_ends_at_the_last_position_does_no_harm_to_the_others(fixed: None) -> None:
    model = built("gpt2")  # whose positions end
    prompts = [list(range(1, CONTEXT)), [1]]
    mine, plain = both(model, make_requests(prompts), GenerationConfig(max_tokens=2 * CONTEXT))
    assert mine == plain and {found.reason for found in plain} == {FinishReason.CONTEXT}


def test_a_stop_criterion_ends_its_row_alone_and_steps_come_in_order(fixed: None) -> None:
    model, config = built("first"), GenerationConfig(max_tokens=8)

    def should_stop(row: int, id: int) -> bool:
        return row == 1

    found = list(follow(model, make_requests(PROMPTS), config, should_stop))
    assert found == list(follow(model, make_requests(PROMPTS), replace(config, compile="off"), should_stop))
    assert [step.row for step in found[:5]] == [0, 1, 2, 0, 2]


def test_scores_that_are_no_numbers_are_refused(fixed: None) -> None:
    model = built("first")
    with torch.no_grad():
        next(model.parameters())[7].fill_(float("nan"))  # the prompts do not hold it; the model chooses it in the end
    prompts = [[1], [7]]
    with pytest.raises(DamageError, match="not numbers"):
        generate(model, prompts, GenerationConfig(max_tokens=4))


def test_two_at_once_do_not_disturb_each_other(fixed: None) -> None:
    model, config = built("first"), GenerationConfig(max_tokens=10)
    alone = [list(follow(model, [Request([id])], config)) for id in (1, 2)]
    left, right = follow(model, [Request([1])], config), follow(model, [Request([2])], config)
    mixed = list(zip(left, right, strict=True))
    assert [[pair[0] for pair in mixed], [pair[1] for pair in mixed]] == alone


def test_steps_are_kept_for_the_next_rows_and_given_back_with_the_model(fixed: None) -> None:
    model = built("first")
    generate(model, PROMPTS, GenerationConfig(max_tokens=4))
    (kept,) = cuda_graphs._CACHED[model].values()
    generate(model, [ids[::-1] for ids in PROMPTS], GenerationConfig(max_tokens=6))
    assert list(cuda_graphs._CACHED[model].values()) == [kept], "the same shape had a step already"
    for count in range(1, 8):
        generate(model, PROMPTS[:1] * count, GenerationConfig(max_tokens=2))
    assert len(cuda_graphs._CACHED[model]) == cuda_graphs.MAX_CACHED
    held = weakref.ref(kept.state.lengths), weakref.ref(model)
    del kept
    cuda_graphs.clear_static_states(model)
    gc.collect()
    assert held[0]() is None
    generate(model, PROMPTS, GenerationConfig(max_tokens=4))
    del model
    gc.collect()
    assert held[1]() is None, "what is kept holds on to its model"


def test_a_model_in_training_keeps_its_weights_where_they_are(fixed: None) -> None:
    model = build("first", layers=1, width=32, heads=2, vocab=50, context=16)
    model.train()
    places = [weight.data_ptr() for weight in model.parameters()]
    generate(model, [[1]], GenerationConfig(max_tokens=4))
    assert model.training and model not in cuda_graphs._CACHED
    assert places == [weight.data_ptr() for weight in model.parameters()]


def test_weights_that_were_laid_together_still_learn(fixed: None) -> None:
    model = build("first", layers=1, width=32, heads=2, vocab=50, context=16).eval()
    generate(model, [[1]], GenerationConfig(max_tokens=4))
    model.logits(torch.tensor([[1, 2]])).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_compiling_is_requested_for_by_a_word() -> None:
    assert generation_config({}).compile == "auto" and generation_config({"compile": "on"}).compile == "on"
    with pytest.raises(ConfigError, match="one of auto, on, off"):
        generation_config({"compile": "maybe"})


def test_on_a_cpu_rows_go_as_they_always_did_unless_requested() -> None:
    model = built("first")
    assert isinstance(model, LanguageModel)
    generate(model, PROMPTS, GenerationConfig(max_tokens=40))
    assert model not in cuda_graphs._CACHED


TRACED = """
import json
import torch
from torch._dynamo.testing import CompileCounter
from heddle.core import replace
from heddle.decoding.generation import GenerationConfig, generate
from heddle.decoding.runtime import cuda_graphs, make_requests
from heddle.decoding.speculative import LookupDraft, speculate
from heddle.models.presets import build

counter = CompileCounter()
cuda_graphs.BACKEND, cuda_graphs.BUCKET = counter, 32
found = []
for name in ("first", "llama", "gpt2"):
    torch._dynamo.reset()
    counter.frame_count = 0
    model = build(name, layers=2, width=48, heads=4, vocab=64, context=64).eval()
    config = GenerationConfig(max_tokens=20, compile="on")
    pairs = ([[1], [2, 3, 4]], [[3], [2, 5, 4]])
    mine = [generate(model, pair, config) for pair in pairs]
    plain = [generate(model, pair, replace(config, compile="off")) for pair in pairs]
    found.append([name, mine == plain, counter.frame_count])
    counter.frame_count = 0
    for pair, wanted in zip(pairs, plain):
        rows = [[], []]
        for step in speculate(model, make_requests(pair), config, LookupDraft()):
            rows[step.row].append(step.id)
        found.append([name + " with guesses", rows == wanted, counter.frame_count])
print(json.dumps(found))
"""


def test_the_step_is_one_graph_that_serves_all_lengths() -> None:
    done = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    for name, same, graphs in json.loads(done.stdout.splitlines()[-1]):
        assert same, f"{name}: other ids than plain steps"
        assert graphs == 1, f"{name}: compiled {graphs} times"

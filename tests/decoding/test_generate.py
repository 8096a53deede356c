"""Generation ends where it should, refuses what it cannot read, and leaves the model as it was."""

import pytest
import torch
from laws.cases import CONTEXT, VOCAB, of_presets

from heddle.core import UsageError, replace
from heddle.decoding import How, Reason, Windows, complete, generate, nll_of, opening, stream
from heddle.decoding.reach import grows
from heddle.models import LanguageModel, LanguageModelConfig
from heddle.nn import SinusoidalPositionConfig

CONFIGS = {
    case.name.removeprefix("preset="): case.config
    for case in of_presets()
    if isinstance(case.config, LanguageModelConfig) and case.stepwise
}


def model(name: str) -> LanguageModel:
    return CONFIGS[name].build(3).double().eval()


def test_the_stop_is_the_last_id() -> None:
    how = How(max_tokens=40, temperature=1.0)
    free = generate(model("first"), [[1]], how)[0]
    stop = free[5]
    found = complete(model("first"), [[1]], How(max_tokens=40, temperature=1.0, stop=(stop,)))[0]
    assert found.ids == free[: free.index(stop) + 1]
    assert found.reason is Reason.STOP


@pytest.mark.parametrize("name", CONFIGS)
def test_learned_positions_end_and_others_go_on(name: str) -> None:
    prompts, how = [[1], [1, 2, 3]], How(max_tokens=2 * CONTEXT)
    found = complete(model(name), prompts, how)
    if model(name).longest is not None:
        # the last token needs no position of its own: nothing is read after it
        assert [len(c.ids) for c in found] == [CONTEXT, CONTEXT - 2]
        assert {c.reason for c in found} == {Reason.CONTEXT}
    else:
        assert [len(c.ids) for c in found] == [2 * CONTEXT] * 2
        assert {c.reason for c in found} == {Reason.LENGTH}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_prompt_may_fill_the_context_and_attention_takes_no_more(name: str) -> None:
    full = [1] * CONTEXT
    assert len(generate(model(name), [full], How(max_tokens=1))[0]) == 1
    if not grows(model(name)):
        assert len(generate(model(name), [[*full, 1]], How(max_tokens=1))[0]) == 1
    else:
        with pytest.raises(UsageError, match=f"{CONTEXT + 1} tokens are more than the model's context of {CONTEXT}"):
            generate(model(name), [full, [*full, 1]], How(max_tokens=1))


def test_an_empty_prompt_begins_from_the_begin_id() -> None:
    how = How(max_tokens=5, begin=4)
    assert generate(model("first"), [[], [4]], how) == [generate(model("first"), [[4]], how)[0]] * 2
    with pytest.raises(UsageError, match="empty prompt"):
        generate(model("first"), [[]], How())


@pytest.mark.parametrize("name", CONFIGS)
def test_room_grows_as_rows_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, how = [[1], [1, 2, 3]], How(max_tokens=2 * CONTEXT, temperature=1.0)
    wanted = generate(model(name), prompts, how)
    monkeypatch.setattr(opening, "SPARE", 1)
    assert generate(model(name), prompts, how) == wanted


def test_a_long_wish_costs_nothing_by_itself() -> None:
    free = generate(model("first"), [[1]], How(max_tokens=9, temperature=1.0))[0]
    found = generate(model("first"), [[1]], How(max_tokens=10**12, temperature=1.0, stop=(free[8],)))[0]
    assert found == free[: free.index(free[8]) + 1]


def test_no_prompts_give_no_rows() -> None:
    assert generate(model("first"), [], How()) == []


@pytest.mark.parametrize("wrong", [-1, VOCAB])
def test_an_unknown_id_is_refused(wrong: int) -> None:
    with pytest.raises(UsageError, match=f"got {wrong}"):
        generate(model("first"), [[1, wrong]], How())


@pytest.mark.parametrize("name", ["first", "lstm_lm"])
def test_samples_differ_and_the_first_is_the_one_alone(name: str) -> None:
    prompts = [[1], [2, 3]]
    many = generate(model(name), prompts, How(max_tokens=12, temperature=1.5, samples=3))
    alone = generate(model(name), prompts, How(max_tokens=12, temperature=1.5))
    assert [many[0], many[3]] == alone
    assert len({tuple(row) for row in many}) == 6


def test_a_halt_ends_its_row_only() -> None:
    seen: dict[int, list[int]] = {0: [], 1: []}

    def halt(row: int, id: int) -> bool:
        seen[row].append(id)
        return row == 0 and len(seen[0]) == 2

    found = complete(model("first"), [[1], [2]], How(max_tokens=6), halt=halt)
    assert [c.ids for c in found] == [seen[0], seen[1]]
    assert [len(c.ids) for c in found] == [2, 6]
    assert [c.reason for c in found] == [Reason.STOP, Reason.LENGTH]


def test_dropout_is_off_while_generating_and_back_afterwards() -> None:
    config = CONFIGS["gpt2"]
    made = config.build(0).double()
    noisy = made.train()
    assert noisy.training
    assert generate(noisy, [[1]], How(max_tokens=4)) == generate(made.eval(), [[1]], How(max_tokens=4))
    made.train()
    rows = stream(made, [1], How(max_tokens=4))
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert made.training


def test_streaming_leaves_gradients_on_for_the_one_who_listens() -> None:
    for _ in stream(model("first"), [1], How(max_tokens=3)):
        assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("name", ["first", "sinusoidal", "lstm_lm"])
def test_a_model_still_learns_after_generating_past_its_context(name: str) -> None:
    sinusoidal = replace(CONFIGS["gpt2"], position=SinusoidalPositionConfig())
    made = (sinusoidal if name == "sinusoidal" else CONFIGS[name]).build(0)
    generate(made, [[1]], How(max_tokens=3 * CONTEXT))
    list(nll_of(made, [[1] * 5 * CONTEXT], Windows(length=5 * CONTEXT, stride=1), 0))
    made.logits(torch.ones(1, 4, dtype=torch.long)).sum().backward()
    assert all(weight.grad is not None for weight in made.parameters())


def test_generating_within_the_context_grows_no_table() -> None:
    made = model("first")
    before = {name: buffer.shape for name, buffer in made.named_buffers()}
    generate(made, [[1]], How(max_tokens=4))
    assert {name: buffer.shape for name, buffer in made.named_buffers()} == before

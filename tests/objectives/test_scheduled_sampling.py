"""Scheduled sampling: the paper's schedules, whose tokens are fed when, and a gradient through the whole state."""

import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from laws.cases import CHANNEL, SMALL, VOCAB, ids, small
from laws.test_training import resumes_in_the_same_bits, run_of
from reliability.harness import write_text
from tasks.pair_runs import CONTEXT, TOKENIZER, tiny_pairs
from torch import Tensor

from heddle.core import ConfigError, decode, encode, replace
from heddle.data.rows import Batch, StreamRows
from heddle.models.networks import EncoderDecoder, pre_norm
from heddle.models.presets import PresetConfig, preset
from heddle.nn.attention import AttentionConfig
from heddle.nn.base import Context
from heddle.nn.layers import RMSNormConfig
from heddle.nn.recurrent import ActivationPenaltyConfig, LSTMConfig
from heddle.nn.stack import RepeatConfig
from heddle.nn.state import State
from heddle.objectives import (
    ExponentialSamplingConfig,
    InverseSigmoidSamplingConfig,
    LinearSamplingConfig,
    NextTokenConfig,
    ObjectiveConfig,
    SamplingConfig,
    SequenceConfig,
    TeacherForcingConfig,
)
from heddle.objectives.scheduled_sampling import choose_tokens, is_fully_recurrent, mix_predictions

LENGTH, BATCH = 7, 5
SCHEDULES: list[Any] = [LinearSamplingConfig(max_rate=1.0), ExponentialSamplingConfig(), InverseSigmoidSamplingConfig()]
ALL = torch.ones(())


def lively(name: str, seed: int = 0) -> Any:
    """Build a small preset in double precision with weights large enough for the model to have opinions."""
    model = preset(name).config(**SMALL[name] | {"vocab": VOCAB, "context": 16}).build(seed).double()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.5 * torch.randn(weight.shape, generator=draw, dtype=torch.float64)
    return model


def batch_of_pairs() -> Batch:
    rows = ids(BATCH, LENGTH + 1)
    lengths = torch.tensor([6, 3, 1, 4, 6])
    return Batch(
        rows[:, :-1],
        rows[:, 1:],
        (torch.arange(LENGTH) < torch.tensor([[7], [2], [5], [7], [1]])).double(),
        torch.arange(BATCH),
        source=ids(BATCH, 6, seed=3),
        source_lengths=lengths,
    )


def context(model: Any, batch: Batch) -> Context:
    if isinstance(model, EncoderDecoder):
        assert batch.source is not None
        return Context(memory=model.encode(batch.source, batch.source_lengths))
    return Context()


# --- schedules --------------------------------------------------------------------------------------------------------


def test_schedules_are_those_of_the_paper() -> None:
    steps, half = 1000, 300
    linear = LinearSamplingConfig(max_rate=0.8, ramp=0.5)
    assert [linear.share_at(step, steps) for step in (0, 250, 500, 900)] == pytest.approx([0, 0.4, 0.8, 0.8])
    k = 0.5 ** (1 / half)
    exponential = ExponentialSamplingConfig(half=half / steps)
    assert exponential.share_at(77, steps) == pytest.approx(1 - k**77)
    sigmoid = InverseSigmoidSamplingConfig(half=half / steps)
    share = sigmoid.share_at(0, steps)
    assert share is not None
    k = 1 / share - 1  # at the first step k / (k + 1) of the tokens are true
    assert k * math.log(k) == pytest.approx(half)
    for step in (0, 10, 300, 999):
        assert sigmoid.share_at(step, steps) == pytest.approx(1 - k / (k + math.exp(step / k)))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.kind)
def test_the_share_grows_and_stays_within_its_bounds(schedule: Any) -> None:
    for steps in (1, 7, 100_000):
        shares = [schedule.share_at(step, steps) for step in range(0, steps, max(1, steps // 50))]
        assert shares == sorted(shares)
        assert 0 <= shares[0] <= shares[-1] <= 1
    assert schedule.share_at(500, 1000) == pytest.approx(0.5)
    assert replace(schedule, max_rate=0.3).share_at(999, 1000) == pytest.approx(0.3, abs=1e-3)


def test_teacher_forcing_has_no_dial() -> None:
    assert SequenceConfig().scheduled_value(3, 10) is None
    assert NextTokenConfig().scheduled_value(3, 10) is None
    assert SequenceConfig(sampling=LinearSamplingConfig(max_rate=1.0)).scheduled_value(3, 10) == pytest.approx(0.3)


def test_bad_fields_are_refused_by_name() -> None:
    for made, field in (
        (lambda: LinearSamplingConfig(max_rate=1.5), "max_rate"),
        (lambda: LinearSamplingConfig(ramp=0.0), "ramp"),
        (lambda: ExponentialSamplingConfig(half=0.0), "half"),
        (lambda: InverseSigmoidSamplingConfig(max_rate=-0.1), "max_rate"),
    ):
        with pytest.raises(ConfigError, match=field):
            made()


def test_the_slot_survives_plain_data_and_old_configs_have_none() -> None:
    config = SequenceConfig(sampling=InverseSigmoidSamplingConfig(draw="best"))
    assert decode(ObjectiveConfig, encode(config)) == config
    assert decode(ObjectiveConfig, {"kind": "next_token"}) == NextTokenConfig(sampling=TeacherForcingConfig())
    assert decode(SamplingConfig, "linear") == LinearSamplingConfig()


# --- who goes how -----------------------------------------------------------------------------------------------------


def test_recurrent_decoders_go_by_step_and_others_by_two_passes() -> None:
    by_step = {"seq2seq_lstm", "seq2seq_lstm_every_step", "seq2seq_attention", "lstm_lm", "gru_lm"}
    for name in (*by_step, "gpt2", "first"):
        assert is_fully_recurrent(lively(name)) is (name in by_step), name
    both = pre_norm(LSTMConfig(), AttentionConfig(heads=2), norm=RMSNormConfig())
    assert not is_fully_recurrent(small(RepeatConfig(body=both, times=1)).build())
    assert not is_fully_recurrent(small(RepeatConfig(body=pre_norm(CHANNEL, norm=RMSNormConfig()), times=1)).build())


RECURRENT = ["seq2seq_lstm", "seq2seq_lstm_every_step", "seq2seq_attention", "lstm_lm", "gru_lm"]


def step_by_step(model: Any, batch: Batch, ctx: Context, own: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nll and the inputs of a loop that keeps the gradient and feeds each likeliest token back."""
    start: State = model.initial_state(ctx.memory, LENGTH) if ctx.memory is not None else model.new_state(BATCH, LENGTH)
    state, said, losses, fed = start, batch.inputs[:, 0], [], []
    for t in range(LENGTH):
        fed.append(torch.where(own[:, t], said, batch.inputs[:, t]) if t else batch.inputs[:, t])
        hidden, state = model.step(fed[-1][:, None], state)
        losses.append(model.head.nll(hidden, batch.targets[:, t : t + 1]))
        said = model.head.logits(hidden[:, 0]).argmax(-1)
    return torch.cat(losses, 1), torch.stack(fed, 1)


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("name", RECURRENT)
def test_loss_and_gradient_are_those_of_true_feeding_step_by_step(name: str, share: float) -> None:
    model, batch = lively(name), batch_of_pairs()
    torch.manual_seed(4)
    own = torch.rand(BATCH, LENGTH) < share
    nll, fed = step_by_step(model, batch, context(model, batch), own)
    want = (nll * batch.weights).sum()
    gradients = torch.autograd.grad(want, list(model.parameters()))
    schedule = LinearSamplingConfig(draw="best")
    objective = SequenceConfig(sampling=schedule) if "seq2seq" in name else NextTokenConfig(sampling=schedule)
    torch.manual_seed(4)
    got = objective(model, batch, None, torch.tensor(share)).total
    assert (fed != batch.inputs).any()
    torch.testing.assert_close(got, want, rtol=1e-12, atol=0)
    for ours, theirs in zip(torch.autograd.grad(got, list(model.parameters())), gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_a_transformer_is_fed_what_it_said_of_the_true_row() -> None:
    model, rows = lively("gpt2"), ids(BATCH, LENGTH)
    said = model.logits(rows).argmax(-1)
    fed = mix_predictions(model, rows, Context(), ALL, "best")
    assert torch.equal(fed[:, 1:], said[:, :-1])
    assert torch.equal(fed[:, 0], rows[:, 0])


@pytest.mark.parametrize("name", ["gpt2", "lstm_lm", "seq2seq_attention"])
def test_the_share_is_kept_and_nothing_else_changes(name: str) -> None:
    model, batch = lively(name), batch_of_pairs()
    ctx = context(model, batch)
    assert torch.equal(mix_predictions(model, batch.inputs, ctx, torch.zeros(()), "sample"), batch.inputs)
    torch.manual_seed(0)
    own = torch.rand(BATCH, LENGTH) < 0.4
    torch.manual_seed(0)
    fed = mix_predictions(model, batch.inputs, ctx, torch.tensor(0.4), "sample")
    assert torch.equal(fed[~own], batch.inputs[~own])
    assert (fed != batch.inputs).any()


@pytest.mark.parametrize("name", ["gpt2", "lstm_lm", "seq2seq_lstm"])
def test_draws_repeat_with_the_generator(name: str) -> None:
    model, batch = lively(name), batch_of_pairs()
    ctx, fed = context(model, batch), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        fed.append(mix_predictions(model, batch.inputs, ctx, ALL, "sample"))
    assert torch.equal(fed[0], fed[1])
    assert not torch.equal(fed[0], fed[2])


def test_drawn_tokens_follow_the_odds() -> None:
    model = lively("gpt2")
    hidden = model(ids(1, 1)).expand(20_000, 1, -1)
    torch.manual_seed(0)
    counts = torch.bincount(choose_tokens(model, hidden, "sample").flatten(), minlength=VOCAB) / 20_000
    odds = model.head.logits(hidden[0, 0]).softmax(-1)
    assert (counts - odds).abs().max() < 0.015
    assert choose_tokens(model, hidden[:1], "best").item() == odds.argmax()


def test_many_logits_are_made_a_chunk_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = lively("gpt2"), ids(BATCH, LENGTH)
    whole = choose_tokens(model, model(rows), "best")
    monkeypatch.setattr("heddle.objectives.scheduled_sampling.LOGITS", 3 * VOCAB)
    assert torch.equal(choose_tokens(model, model(rows), "best"), whole)


# --- documents, states, training --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "lstm_lm", "gru_lm"])
def test_packed_documents_are_fed_as_if_each_were_alone(name: str) -> None:
    model, rows = lively(name), ids(BATCH, LENGTH)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1]] * BATCH)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3]] * BATCH)
    packed = mix_predictions(model, rows, Context(documents=documents, positions=positions), ALL, "best")
    alone = [mix_predictions(model, piece, Context(), ALL, "best") for piece in (rows[:, :3], rows[:, 3:])]
    assert torch.equal(packed, torch.cat(alone, 1))


def test_a_carried_state_is_where_feeding_begins() -> None:
    model, rows = lively("lstm_lm"), ids(BATCH, 2 * LENGTH)
    _, after = model.run(rows[:, :LENGTH], Context(state=State.empty(BATCH, LENGTH)))
    fed = mix_predictions(model, rows[:, LENGTH:], Context(state=after.state), ALL, "best")
    first = model.logits(rows[:, : LENGTH + 1])[:, -1].argmax(-1)
    assert torch.equal(fed[:, 1], first)


@pytest.mark.parametrize("name", ["gpt2", "lstm_lm", "seq2seq_attention"])
def test_outside_training_the_truth_is_fed(name: str) -> None:
    model, batch = lively(name).eval(), batch_of_pairs()
    plain, sampled = (
        SequenceConfig(sampling=s) if isinstance(model, EncoderDecoder) else NextTokenConfig(sampling=s)
        for s in (TeacherForcingConfig(), LinearSamplingConfig())
    )
    want = plain(model, batch).total
    assert torch.equal(sampled(model, batch, None, ALL).total, want)
    assert torch.equal(sampled(model.train(), batch).total, want)
    assert not torch.equal(sampled(model, batch, None, ALL).total, want)


def test_the_pass_that_chooses_tokens_adds_no_penalty() -> None:
    body = pre_norm(LSTMConfig(), ActivationPenaltyConfig(size=1.0), norm=RMSNormConfig())
    model, inputs = small(RepeatConfig(body=body, times=1)).build().train(), ids(BATCH, LENGTH)
    model(inputs)
    before = model.auxiliary_loss()
    assert before is not None
    mix_predictions(model, inputs, Context(), ALL, "best")
    after = model.auxiliary_loss()
    assert after is not None
    assert torch.equal(before, after)


@pytest.mark.parametrize("name", ["first", "lstm_lm"])
def test_a_resumed_run_with_sampling_ends_in_the_same_bits(name: str, tmp_path: Path) -> None:
    config = run_of(name, write_text(tmp_path / "text.txt"))
    config = dataclasses.replace(config, objective=NextTokenConfig(sampling=LinearSamplingConfig(max_rate=1.0)))
    if name == "lstm_lm":
        config = dataclasses.replace(config, rows=StreamRows(length=8, lanes=4))
    resumes_in_the_same_bits(config, tmp_path, cut=4)


@pytest.mark.parametrize("name", ["seq2seq_attention", "transformer"])
def test_a_resumed_run_on_pairs_with_sampling_ends_in_the_same_bits(name: str, tmp_path: Path) -> None:
    config = tiny_pairs(tmp_path, training__steps=6, every__save=100)
    if name != "transformer":  # the model of these runs as it is
        dials = {"layers": 1, "width": 16, "vocab": TOKENIZER.vocab, "context": CONTEXT}
        config = dataclasses.replace(config, model=PresetConfig(name=name, dropout=0.2, **dials))
    objective = SequenceConfig(sampling=InverseSigmoidSamplingConfig())
    resumes_in_the_same_bits(dataclasses.replace(config, objective=objective), tmp_path, cut=4)


# In a process of its own, for the shape checks that tests switch on cannot be traced.
COMPILED = """
import torch
from heddle.models.presets import build
from heddle.nn.base import Context
from heddle.objectives.scheduled_sampling import mix_predictions

model = build("gpt2", layers=1, width=16, heads=2, vocab=23, context=8).train()
rows, graphs = torch.arange(14).view(2, 7), []

def count(graph, inputs):
    graphs.append(graph)
    return graph.forward

compiled = torch.compile(lambda r, s: mix_predictions(model, r, Context(), s, "best"), fullgraph=True, backend=count)
for share in (0.0, 0.5, 1.0):
    torch.manual_seed(0)
    fed = compiled(rows, torch.tensor(share))
    torch.manual_seed(0)
    assert torch.equal(fed, mix_predictions(model, rows, Context(), torch.tensor(share), "best"))
print(len(graphs))
"""


def test_two_passes_are_one_graph_whatever_the_share() -> None:
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["1"]

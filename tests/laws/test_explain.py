"""What `explain` shows is what the model computes: laws over every kind of part and every preset."""

import contextlib
import dataclasses
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws.cases import Case, every
from torch import Tensor

import heddle.explain.observers.attention as attention
import heddle.nn.recurrent.cells as cells
from heddle.core import UsageError, find
from heddle.explain import ExplainOptions
from heddle.explain.attribution.attribution import attribution, embed, frozen, score_of
from heddle.explain.attribution.integrated_gradients import integrated_gradients
from heddle.explain.inputs.encode import read
from heddle.explain.inputs.forward import EncoderReading, Reading, replaced_embeddings
from heddle.explain.inputs.watch import Observer, PartCall, observe, watch_parts
from heddle.explain.observers.attention import ATTENDING, AttentionObserver, attention_weights
from heddle.explain.observers.experts import ExpertsObserver
from heddle.explain.observers.gates import GatesObserver
from heddle.explain.observers.lens import LensObserver
from heddle.explain.observers.residual import ResidualObserver
from heddle.explain.observers.trace import TraceObserver
from heddle.models import build_meta
from heddle.nn.attention import Synthesizer
from heddle.nn.channels import ExpertsConfig
from heddle.nn.convolution import Convolution
from heddle.nn.recurrent import AttentionRNN, SegmentRecurrence
from heddle.nn.stack import Branch

IDS, OUTPUT = [1, 5, 3, 7, 2, 9], (1, 4, 8, 3)
OBSERVERS = (AttentionObserver, GatesObserver, LensObserver, ResidualObserver, ExpertsObserver, TraceObserver)
CASES = [case for case in every() if build_meta(case.config).reads == "ids"]
EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@torch.no_grad()
def reading_of(case: Case, double: bool = False) -> Reading:
    """Return a short text as a small model reads it; each of its weights has its say."""
    model, draw = case.config.build(0), torch.Generator().manual_seed(0)
    model = model.double() if double else model
    for weight in model.parameters():
        weight += 0.1 * torch.randn(weight.shape, generator=draw, dtype=weight.dtype)
    return read(model, None, IDS, ExplainOptions(output=OUTPUT if model.reads_source else None))


def observers_of(reading: Reading, *kinds: Callable[[Reading], Observer]) -> list[Any]:
    """Return the observers that the model does not refuse; a refusal is one line."""
    found = []
    for kind in kinds:
        try:
            found.append(kind(reading))
        except UsageError as error:
            assert "\n" not in str(error) and ": want " in str(error)
    return found


@EACH
def test_looking_changes_no_bit_of_the_logits(case: Case) -> None:
    reading = reading_of(case)
    alone = reading.logits()
    assert torch.equal(observe(reading, observers_of(reading, *OBSERVERS)), alone)
    assert torch.equal(reading.logits(), alone)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in reading.model.modules())


def outputs_of(reading: Reading) -> dict[str, tuple[PartCall, Tensor, Tensor]]:
    """Return each attention's call, weights and true output, by name."""
    found: dict[str, tuple[PartCall, Tensor, Tensor]] = {}

    def see(call: PartCall) -> None:
        if isinstance(call.part, ATTENDING):
            y = call.part(call.x, call.ctx) if call.slot is None else call.part.step(call.x, call.ctx, call.slot)[0]
            found[call.name] = call, attention_weights(call), y

    with contextlib.ExitStack() as hooks, reading.looking():
        watch_parts(reading, hooks, see)
        reading.forward()
    return found


def output_from(call: PartCall, weights: Tensor) -> Tensor:
    """Return what a layer gives if these are its attention weights: times the values, through its projection."""
    part: Any = call.part
    if isinstance(part, Convolution):
        values = part.gated(call.x).unflatten(-1, (part.heads, -1)).transpose(1, 2)
        return part.output(part.inner((weights[None] @ values).transpose(1, 2).flatten(-2) + part.bias))
    if isinstance(part, Synthesizer):
        heads = weights[None] @ part.value_and_key(call.x)[0]
    elif isinstance(part, SegmentRecurrence):
        heads = weights[None] @ part.values(call.x)
    else:
        heads = part.attention_inputs(call.x, call.ctx).weigh_values(weights[None])
    return part.output(heads.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]


@EACH
def test_attention_rows_sum_to_one_and_times_values_give_the_layers_output(case: Case) -> None:
    reading = reading_of(case)
    shown = {one.name: one for each in observers_of(reading, AttentionObserver) for one in _maps(reading, each)}
    calls = outputs_of(reading)
    assert shown.keys() == calls.keys()
    for name, (call, weights, y) in calls.items():
        sink = shown[name].sink
        total = weights.sum(-1) + (0 if sink is None else sink)
        assert torch.allclose(total, torch.ones_like(total), atol=1e-6, rtol=0)
        assert torch.equal(weights, shown[name].weights)
        if not isinstance(call.part, AttentionRNN):  # its values go into the gates, whose law covers them
            with torch.no_grad():
                torch.testing.assert_close(output_from(call, weights), y, atol=1e-5, rtol=1e-5)


def _maps(reading: Reading, observer: AttentionObserver) -> Any:
    observe(reading, [observer])
    return observer.result().maps


@EACH
def test_recomputed_gates_give_the_state_of_the_fused_cell(case: Case) -> None:
    reading = reading_of(case, double=True)
    for observer in observers_of(reading, GatesObserver):
        observe(reading, [observer])
        for cell in observer.cells:
            assert cell.error < 1e-6, cell.name
            gates = [v for name, v in cell.values.items() if name in ("input", "forget", "output", "update", "reset")]
            assert all(0 <= float(g.min()) <= float(g.max()) <= 1 for g in gates)


@EACH
def test_the_last_layer_of_the_lens_is_the_output_to_the_bit(case: Case) -> None:
    reading = reading_of(case)
    for observer in observers_of(reading, LensObserver):
        layers: list[Tensor] = []
        observer.keep = lambda _name, logits, layers=layers: layers.append(logits)
        assert torch.equal(observe(reading, [observer]), layers[-1])


@EACH
def test_contributions_sum_to_the_residual_stream(case: Case) -> None:
    reading = reading_of(case, double=True)
    for observer in observers_of(reading, ResidualObserver):
        true: dict[str, Tensor] = {}
        with contextlib.ExitStack() as hooks:
            for name, branch in ((n, m) for n, m in reading.model.named_modules() if isinstance(m, Branch)):

                def see(branch: Any, inputs: Any, output: Any, name: str = name, true: Any = true) -> None:
                    if inputs[1].state is None:  # what the join adds to a stream of its own, from the part alone
                        ctx = dataclasses.replace(inputs[1], values=output[1].values)
                        y = branch.dropout(branch.part(branch.norm(inputs[0]), ctx))
                        true[name + inputs[1].turn] = (branch.join(inputs[0], y) - inputs[0])[0]

                hooks.callback(branch.register_forward_hook(see).remove)
            observe(reading, [observer])
        found = observer.result()
        assert found.error < 1e-5
        shares = sum(one.shares for one in found.contributions)
        torch.testing.assert_close(shares, torch.ones_like(shares), atol=1e-5, rtol=0)
        for one in found.contributions:
            if one.name in true:
                torch.testing.assert_close(one.norms, true[one.name].norm(dim=-1), atol=1e-5, rtol=1e-5)


@EACH
def test_experts_shown_are_those_whose_outputs_are_summed(case: Case) -> None:
    reading = reading_of(case)
    found = observers_of(reading, ExpertsObserver)
    assert bool(found) == any(True for _ in find(case.config, ExpertsConfig)) or isinstance(reading, EncoderReading)
    for observer in found:
        observe(reading, [observer])
        assert observer.layers
        for layer in observer.layers:
            used = layer.chosen < layer.experts
            assert bool(used.any()) and bool((layer.gates[used] >= 0).all())
            total = layer.probabilities.sum(-1)
            torch.testing.assert_close(total, torch.ones_like(total), atol=1e-5, rtol=0)


def test_every_thing_is_shown_by_some_model_and_refused_by_another() -> None:
    for kind in OBSERVERS[:-1]:
        shown = {bool(observers_of(reading_of(case), kind)) for case in CASES[::8]}
        assert shown == {True, False}, kind


# --- attribution ------------------------------------------------------------------------------------------------------

SMOOTH = ("preset=first", "preset=gpt2", "preset=lstm_lm", "preset=seq2seq_attention", "preset=llama", "mixer=qrnn")


def named(name: str) -> Case:
    (found,) = [case for case in CASES if case.name == name]
    return found


@pytest.mark.parametrize("name", SMOOTH)
def test_integrated_gradients_are_complete(name: str) -> None:
    found = attribution(reading_of(named(name)), ExplainOptions(target=None))
    assert found.completeness <= 1e-3
    assert "integrated_gradients" in found.methods


@pytest.mark.full
@EACH
def test_integrated_gradients_are_complete_or_refused(case: Case) -> None:
    reading = reading_of(case)
    if isinstance(reading, EncoderReading):
        return
    found = attribution(reading, ExplainOptions())
    assert (found.completeness <= 1e-3) == ("integrated_gradients" in found.methods)
    assert all("\n" not in line for line in found.refused.values())


@pytest.mark.parametrize("name", ("preset=gpt2", "preset=gru_lm", "preset=lstm_lm", "preset=bart"))
def test_integrated_gradients_equal_captums(name: str) -> None:
    captum = pytest.importorskip("captum.attr", reason="captum is not installed (pip install captum --no-deps)")
    reading = reading_of(named(name), double=True)
    sequence, target = reading.sequences[0], reading.target(None)
    with frozen(reading), reading.looking(), torch.enable_grad():
        embedded = {sequence: embed(reading)[sequence]}
        mine, points, _ = integrated_gradients(embedded, score_of(reading, target, None), 200)
        assert points == 200
    inputs = captum.IntegratedGradients(lambda vectors: _from(reading, sequence, vectors, target))
    their = inputs.attribute(embedded[sequence], baselines=torch.zeros_like(embedded[sequence]), n_steps=200).sum(-1)[0]
    torch.testing.assert_close(mine[sequence], their, atol=1e-5, rtol=0)


def _from(reading: Reading, sequence: Any, vectors: Tensor, target: Any) -> Tensor:
    with replaced_embeddings({sequence: vectors}):
        return reading.logprob(target, len(vectors))


# --- long texts -------------------------------------------------------------------------------------------------------

LONG = """
import resource, sys, torch
from heddle.explain import ExplainOptions, explain
from heddle.explain.inputs.encode import read
from heddle.models.presets import build
torch.manual_seed(0)
model = build("llama", layers=2, width=64, heads=4, kv_heads=2, hidden=128, vocab=512, context=4096).eval()
ids = torch.randint(512, (4096,)).tolist()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
read(model, None, ids[:64], ExplainOptions()).logits()
start = peak()
read(model, None, ids, ExplainOptions()).logits()
forward = peak()
found = explain(model, None, ids, ExplainOptions())
shown = sum(one.weights.nbytes for one in found["attention"].maps)
print(start, forward, peak(), shown)
"""


@pytest.mark.slow
def test_a_long_text_costs_at_most_twice_the_forwards_memory_and_what_is_shown() -> None:
    done = subprocess.run([sys.executable, "-c", LONG], check=True, capture_output=True, text=True)
    start, forward, whole, shown = (int(number) for number in done.stdout.split())
    assert shown == 2 * 4 * 4096 * 4096 * 4
    assert whole - start <= 2 * (forward - start) + 1.1 * shown, (start, forward, whole, shown)


# --- planted bugs -----------------------------------------------------------------------------------------------------


def test_the_laws_notice_a_mask_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    true = attention.query_rows
    monkeypatch.setattr(attention, "query_rows", lambda *given: dataclasses.replace(true(*given), allowed=None))
    with pytest.raises(AssertionError):
        test_attention_rows_sum_to_one_and_times_values_give_the_layers_output(named("preset=gpt2"))


def test_the_laws_notice_gates_that_change_places(monkeypatch: pytest.MonkeyPatch) -> None:
    true = cells.lstm_gates
    monkeypatch.setattr(cells, "lstm_gates", lambda gates, cell: true(gates.roll(1, -1), cell))
    with pytest.raises(AssertionError):
        test_recomputed_gates_give_the_state_of_the_fused_cell(named("preset=lstm_lm"))


def test_the_laws_notice_a_hook_that_changes_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LensObserver, "see", lambda self, name, stream: stream.mul_(1.001))
    with pytest.raises(AssertionError):
        test_looking_changes_no_bit_of_the_logits(named("preset=gpt2"))

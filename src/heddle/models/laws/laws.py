"""Laws of a model and of its state (DESIGN §3), each a function that fails on the model that breaks it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from heddle.core import UsageError, decode, encode
from heddle.models.laws.small_models import CONTEXT, VOCAB, built, idle, ids, loud
from heddle.models.networks import ModelConfig
from heddle.nn.base import Context
from heddle.nn.state import State

Law = Callable[[Any], None]  # takes the config of a small model; raises BrokenLaw
NEAR = 1e-10  # in double precision


class BrokenLaw(AssertionError):
    """A model breaks a law; the message says how."""


def require(holds: object, message: str) -> None:
    """Raise unless something holds; unlike `assert`, under `python -O` too."""
    if not holds:
        raise BrokenLaw(message)


def agree(left: Tensor, right: Tensor, what: str, within: float = NEAR) -> None:
    """Hold two results against each other."""
    require(left.shape == right.shape, f"{what}: {tuple(left.shape)} is not {tuple(right.shape)}")
    worst = (left - right).abs().max().item() if left.numel() else 0.0
    require(worst <= within, f"{what}: {worst:.3g} apart")  # false for NaN too


@contextmanager
def embedded(model: Any) -> Iterator[list[Tensor]]:
    """Catch what the embedding hands on, with a gradient."""
    caught: list[Tensor] = []

    def catch(_module: object, _inputs: object, output: Tensor) -> Tensor:
        caught.append(output.detach().requires_grad_())
        return caught[-1]

    handle = model.embedding.register_forward_hook(catch)
    try:
        yield caught
    finally:
        handle.remove()


# --- the model --------------------------------------------------------------------------------------------------------


def keeps_shape(config: Any) -> None:
    """Every length up to the context, and every batch, comes out as it went in."""
    model = built(config)
    for batch, length in ((1, 1), (3, 5), (2, CONTEXT)):
        inputs = ids(batch, length)
        hidden = model(inputs)
        shape = model.head.vectors(hidden).shape
        require(shape == (batch, length, config.width), f"{tuple(inputs.shape)} becomes {tuple(shape)}")
        require(model.head.logits(hidden).shape == (batch, length, VOCAB), "the logits have another shape")
        losses = model.head.nll(hidden, inputs)
        require(losses.shape == inputs.shape, "the losses have another shape")
        require(losses.isfinite().all(), "a loss is not finite")


def never_sees_the_future(config: Any) -> None:
    """What stands before a changed token does not change, and owes it no gradient."""
    model, inputs = loud(config), ids(2, CONTEXT)
    before = model(inputs)
    for j in range(1, CONTEXT):
        changed = inputs.clone()
        changed[:, j] = (changed[:, j] + 1) % VOCAB
        after = model(changed)
        agree(after[:, :j], before[:, :j], f"outputs before the changed token {j}", within=1e-12)
        require(not torch.equal(after[:, j], before[:, j]), f"output {j} does not see its own token")
    with embedded(model) as caught:
        outputs = model(inputs)
    direction = torch.randn(outputs.shape[-1], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for i in range(CONTEXT):
        (gradient,) = torch.autograd.grad((outputs[:, i] @ direction).sum(), caught[0], retain_graph=True)
        require(gradient[:, i].count_nonzero() > 0, f"output {i} has no gradient from its own token")
        require(gradient[:, i + 1 :].count_nonzero() == 0, f"output {i} has a gradient from a later token")


def every_weight_gets_gradient(config: Any, steps: int = 3) -> None:
    """From its own first values, each weight has a gradient within three steps, but for those idle by nature or frozen.

    A frozen weight has none, for it would cost time and memory.
    """
    model = built(config).double()
    inputs, targets = ids(4, CONTEXT), ids(4, CONTEXT, seed=1)
    largest = {name: 0.0 for name, weight in model.named_parameters() if weight.requires_grad}
    require(largest, "nothing learns")
    for _ in range(steps):
        model.zero_grad()
        loss = model.head.nll(model(inputs), targets).mean()
        penalty = model.auxiliary_loss()
        (loss if penalty is None else loss + penalty).backward()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if not weight.requires_grad:
                    require(weight.grad is None, f"{name} is frozen, and has a gradient")
                    continue
                require(weight.grad is not None, f"{name} is not part of the loss")
                require(weight.grad.isfinite().all(), f"{name} has a gradient that is not finite")
                largest[name] = max(largest[name], weight.grad.abs().max().item())
                weight -= 0.5 * weight.grad
    for name, most in largest.items():
        if idle(config, name):
            require(most < 1e-14, f"{name} was said to be idle, and is not: {most:.3g}")
        else:
            require(most > 1e-10, f"{name} gets no gradient")


def overfits_eight_sentences(config: Any, steps: int = 250) -> None:
    """Eight sentences are learned by heart: below 0.1 nats a token, or above beside random weights."""
    model = built(config)
    enough = 0.1 if all(weight.requires_grad for weight in model.parameters()) else 0.25
    rows = ids(8, 8, seed=2)
    rows[:, 0] = torch.arange(8)  # the first word tells which sentence it is
    inputs, targets = rows[:, :-1], rows[:, 1:]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss = torch.tensor(float("inf"))
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model.head.nll(model(inputs), targets).mean()
        loss.backward()
        optimizer.step()
        if loss < enough:
            return
    raise BrokenLaw(f"after {steps} steps still {loss.item():.3f} nats")


def survives_encoding(config: Any) -> None:
    """A config goes to JSON and comes back the same."""
    back = decode(ModelConfig, json.loads(json.dumps(encode(config))))
    require(back == config, "the config changes on its way through JSON")


def builds_the_same_twice(config: Any) -> None:
    """The seed alone decides the weights; other randomness is neither read nor moved."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = built(config, seed=5)
    require(torch.equal(before, torch.get_rng_state()), "building moved the global random state")
    torch.manual_seed(2)
    again, other = built(config, seed=5), built(config, seed=6)
    inputs = ids(2, 6)
    require(torch.equal(first.eval()(inputs), again.eval()(inputs)), "the same seed builds another model")
    weights, same = first.weights(), again.weights()
    require(all(torch.equal(weights[name], same[name]) for name in weights), "the same seed draws other weights")
    require(
        any(not torch.equal(weights[name], other.weights()[name]) for name in weights),
        "another seed draws the same weights",
    )


# --- documents --------------------------------------------------------------------------------------------------------


def packed_is_apart(config: Any) -> None:
    """Documents packed in one row come out as if each were alone."""
    model = loud(config)
    lengths = ((5, 1, 4), (2, 7, 1))
    rows = torch.stack([ids(1, sum(cut), seed=i)[0] for i, cut in enumerate(lengths)])
    documents = torch.tensor([[n for n, count in enumerate(cut) for _ in range(count)] for cut in lengths])
    positions = torch.tensor([[p for count in cut for p in range(count)] for cut in lengths])
    packed = model(rows, Context(documents=documents, positions=positions))
    for row, cut in enumerate(lengths):
        start = 0
        for length in cut:
            alone = model(rows[row : row + 1, start : start + length])
            agree(packed[row : row + 1, start : start + length], alone, f"row {row}, document at {start}")
            start += length


def padded_is_unpadded(config: Any) -> None:
    """Padding, a document of its own, changes nothing, whatever tokens it is made of."""
    model, lengths = loud(config), (6, 9, 1)
    documents = torch.tensor([[0] * n + [1] * (9 - n) for n in lengths])
    rows = ids(3, 9)
    for filler in (0, VOCAB - 1):
        padded = rows.where(documents == 0, filler)
        outputs = model(padded, Context(documents=documents))
        for row, length in enumerate(lengths):
            agree(outputs[row : row + 1, :length], model(rows[row : row + 1, :length]), f"row {row}")


# --- the state --------------------------------------------------------------------------------------------------------


def refuses_to_step(config: Any) -> None:
    """A model that sees the future says that it cannot go step by step."""
    try:
        built(config).new_state(1, CONTEXT)
    except UsageError as error:
        require(str(error).startswith("sight"), f"refused for another reason: {error}")
        return
    raise BrokenLaw("a model that sees all took a state")


@torch.no_grad()
def stepwise_is_full(config: Any) -> None:
    """Token by token gives what the whole row gives."""
    model, inputs = loud(config), ids(2, CONTEXT)
    state, outputs = model.new_state(2, CONTEXT), []
    for i in range(CONTEXT):
        output, state = model.step(inputs[:, i : i + 1], state)
        outputs.append(output)
    agree(torch.cat(outputs, dim=1), model(inputs), "stepwise and full")
    require(state.lengths.tolist() == [CONTEXT] * 2, "the state has other lengths than were read")


@torch.no_grad()
def chunked_is_whole(config: Any) -> None:
    """A prefill in chunks of any size gives what one prefill gives, and so do the steps after it."""
    model, inputs = loud(config), ids(2, CONTEXT)
    for sizes in ((4, 4, 4), (1, 7, 3, 1), (11, 1)):
        state, outputs = model.new_state(2, CONTEXT), []
        for chunk in inputs.split(sizes, dim=1):
            output, state = model.step(chunk, state)
            outputs.append(output)
        agree(torch.cat(outputs, dim=1), model(inputs), f"chunks of {sizes}")


@torch.no_grad()
def batched_is_alone(config: Any) -> None:
    """Rows of unequal length, going on by unequal counts (none, too), give what each gives alone."""
    model, rows = loud(config), ids(3, CONTEXT)
    counts = torch.tensor([[5, 4, 3], [8, 0, 4], [1, 3, 0]])  # real tokens by row and step
    state, seen = model.new_state(3, CONTEXT), torch.zeros(3, dtype=torch.long)
    alone = [model(rows[i : i + 1, : counts[i].sum()]) for i in range(3)]
    for step in range(counts.shape[1]):
        new = counts[:, step]
        block = ids(3, int(new.max()), seed=9 + step)  # padding is anything
        for i in range(3):
            block[i, : new[i]] = rows[i, seen[i] : seen[i] + new[i]]
        output, state = model.step(block, state, lengths=new)
        for i in range(3):
            want = alone[i][:, seen[i] : seen[i] + new[i]]
            agree(output[i : i + 1, : new[i]], want, f"row {i}, step {step}")
        seen = seen + new
        require(torch.equal(state.lengths, seen), "the state has other lengths than were read")


@torch.no_grad()
def selected_rows_go_on(config: Any) -> None:
    """Rows chosen from a state, twice or in another order, go on as if they had run alone."""
    model, prompts = loud(config), ids(3, 5)
    for rows in (torch.tensor([2, 0, 0]), torch.tensor([1, 2, 0, 1, 1]), torch.tensor([1])):
        _, state = model.step(prompts, model.new_state(3, CONTEXT))
        chosen, more = state.select(rows), ids(len(rows), 4, seed=1)
        outputs = []
        for i in range(4):
            output, chosen = model.step(more[:, i : i + 1], chosen)
            outputs.append(output)
        whole = model(torch.cat((prompts[rows], more), dim=1))
        agree(torch.cat(outputs, dim=1), whole[:, 5:], f"rows {rows.tolist()}")


@torch.no_grad()
def reset_rows_begin_anew(config: Any) -> None:
    """A row that is reset remembers nothing; the others remember all."""
    model, prompts, more = loud(config), ids(2, 5), ids(2, 4, seed=1)
    _, state = model.step(prompts, model.new_state(2, CONTEXT))
    output, state = model.step(more, state.reset(torch.tensor([True, False])))
    agree(output[:1], model(more[:1]), "the reset row")
    agree(output[1:], model(torch.cat((prompts, more), dim=1))[1:, 5:], "the other row")
    require(state.lengths.tolist() == [4, 9], "the state has other lengths than were read")


@torch.no_grad()
def grown_state_goes_on(config: Any) -> None:
    """A state that was resized beyond its capacity continues as before, with padding on both sides of the move."""
    model, inputs = loud(config), ids(2, CONTEXT)
    state, new = model.new_state(2, 5), torch.tensor([5, 3])
    _, state = model.step(inputs[:, :5], state, lengths=new)
    state = state.resize(CONTEXT)
    rest = torch.stack([inputs[0, 5:10], inputs[1, 3:8]])
    output, state = model.step(rest, state, lengths=torch.tensor([5, 2]))
    whole = model(inputs)
    agree(output[:1], whole[:1, 5:10], "the full row")
    agree(output[1:, :2], whole[1:, 3:5], "the padded row")
    output, state = model.step(inputs[:, 5:7], state, lengths=torch.tensor([0, 2]))
    agree(output[1:], whole[1:, 5:7], "the padded row, later")


@torch.no_grad()
def tokens_taken_back_leave_no_trace(config: Any) -> None:
    """A state that was rewound continues as if the removed tokens had never been."""
    model, inputs, other = loud(config), ids(2, CONTEXT), ids(2, CONTEXT, seed=1)
    _, state = model.step(inputs[:, :8], model.new_state(2, CONTEXT))
    if not state.can_rewind(3):
        require(state.can_rewind(0), "the state cannot even take back nothing")
        return
    kept = torch.tensor([7, 5])
    rows = torch.stack([torch.cat((inputs[i, :n], other[i, : CONTEXT - n])) for i, n in enumerate(kept.tolist())])
    state, whole = state.rewind(kept), model(rows)
    for new in (3, 1, 1):
        block = torch.stack([row[n : n + new] for row, n in zip(rows, state.lengths.tolist(), strict=True)])
        start = state.lengths
        output, state = model.step(block, state)
        for i, n in enumerate(start.tolist()):
            agree(output[i : i + 1], whole[i : i + 1, n : n + new], f"row {i} from {n}")


@torch.no_grad()
def joined_rows_go_on(config: Any) -> None:
    """Rows that were read apart, and in rooms of unlike size, go on side by side as each does alone."""
    model, rows, lengths = loud(config), ids(3, CONTEXT), (5, 2, 7)
    apart = [model.step(rows[i : i + 1, :n], model.new_state(1, n + i))[1] for i, n in enumerate(lengths)]
    state = State.join(apart).resize(CONTEXT)
    require(state.lengths.tolist() == list(lengths), "the state has other lengths than were read")
    for step in range(4):
        newest = torch.stack([rows[i, n + step : n + step + 1] for i, n in enumerate(lengths)])
        output, state = model.step(newest, state)
        for i, n in enumerate(lengths):
            agree(output[i : i + 1], model(rows[i : i + 1, : n + step + 1])[:, -1:], f"row {i}, step {step}")


OF_MODELS = (
    keeps_shape,
    every_weight_gets_gradient,
    overfits_eight_sentences,
    survives_encoding,
    builds_the_same_twice,
    packed_is_apart,
    padded_is_unpadded,
)
OF_THE_PAST = (never_sees_the_future,)
OF_STATES = (
    stepwise_is_full,
    chunked_is_whole,
    batched_is_alone,
    selected_rows_go_on,
    reset_rows_begin_anew,
    grown_state_goes_on,
    tokens_taken_back_leave_no_trace,
    joined_rows_go_on,
)
OF_DOCUMENTS = (packed_is_apart, padded_is_unpadded)  # where a row may hold several
OF_FRESH_STARTS = (reset_rows_begin_anew,)  # where a row may begin again within a state
ALL = OF_MODELS + OF_THE_PAST + OF_STATES

"""Any position with any attention in any model form: the laws hold, or the pair is refused and the page says so."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from laws.cases import (
    ATTENTION,
    CHANNEL,
    CROSS,
    HEADS,
    around,
    example,
    ids,
    loud,
    own,
    pair,
    tower,
)
from laws.laws import agree, packed_is_apart

from heddle.core import Config, ConfigError, replace
from heddle.models.networks import ModelConfig
from heddle.nn.attention import AttentionConfig, AttentionPart, ScoreConfig
from heddle.nn.base import Context, MixerConfig, SelfAttentionConfig
from heddle.nn.layers import SlidingWindowConfig
from heddle.nn.positions import (
    AlibiPositionConfig,
    NTKScalingConfig,
    PositionConfig,
    RelativePositionConfig,
    RotaryPositionConfig,
    SinusoidalPositionConfig,
    T5PositionConfig,
    YarnScalingConfig,
)
from heddle.nn.recurrent import LSTMConfig
from heddle.nn.state import State

PAGE = Path(__file__).parents[2] / "docs" / "positions.md"
FORMS = ("past", "all", "encoder", "decoder")


def positions() -> dict[str, PositionConfig]:
    """Return every kind of position, and rotary ones that turn a part, or slower."""
    found = {kind: example(cls) for kind, cls in own(PositionConfig).items()}
    found["rotary, a share"] = RotaryPositionConfig(share=0.5)
    found["rotary, neighbours"] = RotaryPositionConfig(order="interleaved")
    found["rotary, yarn"] = RotaryPositionConfig(scaling=YarnScalingConfig(factor=4.0, original=12))
    return found  # type: ignore[return-value]


def mixers() -> dict[str, MixerConfig]:
    """Return attention with every score, with grouped heads and a window, every other self-attention, and none."""
    grouped = replace(ATTENTION, kv_heads=2)
    found: dict[str, Config] = {
        f"attention, {kind}": replace(grouped, score=example(cls)) for kind, cls in own(ScoreConfig).items()
    }
    found["attention, window"] = replace(grouped, mask=SlidingWindowConfig(size=3, sinks=1))
    found |= {kind: example(cls) for kind, cls in own(SelfAttentionConfig).items() if cls is not AttentionConfig}
    found["recurrence alone"] = LSTMConfig(hidden=8)
    return found  # type: ignore[return-value]


def model(position: PositionConfig, mixer: MixerConfig, form: str) -> ModelConfig:
    """Return a small model of one form around a position and a mixer."""
    if form in ("past", "all"):
        return replace(around(mixer, CHANNEL), position=position, sight=form)
    if form == "encoder":
        return pair(encoder=replace(tower(mixer, CHANNEL), position=position))
    return pair(decoder=replace(tower(mixer, CROSS, CHANNEL), position=position))


@torch.no_grad()
def padded_source_is_bare(config: ModelConfig) -> None:
    """A source beside longer ones is read as if it were alone."""
    network, source, lengths = loud(config).model, ids(2, 9), torch.tensor([9, 4])
    memory, bare = network.encode(source, lengths), network.encode(source[1:, :4])
    agree(memory.layers[0][1:, :4], bare.layers[0], "the padded source")


@torch.no_grad()
def steps_are_full_and_alone(config: ModelConfig) -> None:
    """Rows of unequal length, going on token by token, give what each gives whole and alone."""
    network, rows, new = loud(config), ids(2, 9), torch.tensor([5, 2])
    output, state = network.step(rows[:, :5], network.new_state(2, 9), lengths=new)
    outputs = [[output[i : i + 1, : new[i]]] for i in range(2)]
    for step in range(3):
        one = torch.stack([rows[i, new[i] + step] for i in range(2)])
        output, state = network.step(one[:, None], state)
        for i in range(2):
            outputs[i].append(output[i : i + 1])
    for i in range(2):
        agree(torch.cat(outputs[i], dim=1), network(rows[i : i + 1, : new[i] + 3]), f"row {i}")


LAWS = {
    "past": (steps_are_full_and_alone, packed_is_apart),
    "all": (packed_is_apart,),  # padding, too, is a document of its own
    "encoder": (padded_source_is_bare,),
    "decoder": (steps_are_full_and_alone, packed_is_apart),
}


def refused(position: PositionConfig, mixer: MixerConfig) -> bool:
    """Tell whether a pair is refused at build, in every form and in one line that names the field."""
    answers = set()
    for form in FORMS:
        if isinstance(mixer, LSTMConfig) and form == "all":
            continue
        try:
            with torch.device("meta"):
                model(position, mixer, form).build()
            answers.add(False)
        except ConfigError as error:
            assert "\n" not in str(error)
            assert error.field == "position"
            answers.add(True)
    assert len(answers) == 1, "refused in one form and not in another"
    return answers.pop()


def written() -> Iterator[tuple[str, str]]:
    """Yield the pairs that the page lists as refused."""
    table = PAGE.read_text().partition("## Refused pairs")[2].partition("\n## ")[0]
    for row in re.findall(r"^\| `([^`]+)` \| (.+?) \|", table, flags=re.MULTILINE):
        yield from ((row[0], mixer) for mixer in re.findall(r"`([^`]+)`", row[1]))


def test_the_page_lists_exactly_the_pairs_that_are_refused() -> None:
    kinds = {name: config for name, config in positions().items() if name == config.kind}
    found = {(p, m) for p, position in kinds.items() for m, mixer in mixers().items() if refused(position, mixer)}
    assert found == set(written())


def product() -> Iterator[Any]:
    """Yield every form, position and mixer that are not refused; `make test` leaves out what it knows of already.

    Attention cannot tell one position that is added to the stream from another: all mixers meet one of them, and one
    mixer meets them all. The rest of the product is for `make reliability`.
    """
    gone = set(written())
    for form in FORMS:
        for p, position in positions().items():
            for m in mixers():
                if m == "recurrence alone" or (position.kind, m) in gone:
                    continue
                known = position.provides == "stream" and p != "learned" and m != "attention, dot"
                yield pytest.param(form, p, m, marks=pytest.mark.full if known else ())


@pytest.mark.parametrize(("form", "position", "mixer"), list(product()))
def test_a_pair_that_is_not_refused_keeps_the_laws(form: str, position: str, mixer: str) -> None:
    config = model(positions()[position], mixers()[mixer], form)
    for law in LAWS[form]:
        law(config)


@pytest.mark.parametrize("mixer", [name for name in mixers() if name != "recurrence alone"])
@pytest.mark.parametrize("position", ["none", "rotary", "relative", "t5", "alibi"])
@pytest.mark.parametrize("sight", ["past", "all"])
@torch.no_grad()
def test_weights_times_values_are_what_attention_gives(sight: str, position: str, mixer: str) -> None:
    if (position, mixer) in set(written()):
        return
    network = loud(model(positions()[position], mixers()[mixer], sight))
    attention = network.get_submodule("stack.1.mixer.part")
    if not isinstance(attention, AttentionPart):
        return
    documents = torch.tensor([[0] * 5 + [1] * 4])
    caught: list[tuple[torch.Tensor, Context, torch.Tensor]] = []
    attention.register_forward_hook(lambda _, given, out: caught.append((*given, out)))
    for ctx in (Context(), Context(documents=documents)):
        network(ids(1, 9), ctx)
        x, seen, fast = caught.pop()
        weights = attention.attention_weights(x, seen)
        assert weights.shape == (1, HEADS, 9, 9)
        assert (weights.sum(-1) <= 1 + 1e-12).all()
        mixed = attention.attention_inputs(x, seen).weigh_values(weights)
        agree(attention.output(mixed.transpose(1, 2).flatten(-2)), fast, "weights times values and the fast path")
        if sight == "past":
            assert weights.triu(1).count_nonzero() == 0
        if ctx.documents is not None:
            assert weights[:, :, 5:, :5].count_nonzero() == 0


@pytest.mark.parametrize(
    "position",
    [
        SinusoidalPositionConfig(),
        RotaryPositionConfig(),
        RotaryPositionConfig(scaling=NTKScalingConfig(factor=4.0)),
        AlibiPositionConfig(),
        T5PositionConfig(),
        RelativePositionConfig(),
    ],
    ids=lambda p: p.kind,
)
@torch.no_grad()
def test_a_model_runs_past_its_context(position: PositionConfig) -> None:
    network = loud(model(position, ATTENTION, "past"))
    assert network.max_length is None
    inputs = ids(2, 50)  # four times what it was made for
    whole = network(inputs)
    assert whole.isfinite().all()
    state: State = network.new_state(2, 50)
    first, state = network.step(inputs[:, :30], state)
    outputs = [first]
    for i in range(30, 50):
        output, state = network.step(inputs[:, i : i + 1], state)
        outputs.append(output)
    agree(torch.cat(outputs, dim=1), whole, "stepwise and full, past the context")


def test_a_position_that_moves_nothing_would_be_noticed() -> None:
    """The laws above also hold for no position at all, so each kind must show that it tells orders apart."""
    inputs = ids(1, 9)
    swapped = inputs[:, [1, 0, *range(2, 9)]]
    for name, position in positions().items():
        network = loud(model(position, ATTENTION, "all"))
        same = torch.allclose(network(inputs)[:, 2:], network(swapped)[:, 2:])
        assert same == (name == "none"), name

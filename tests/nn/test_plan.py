"""Plans and blocks: fresh or shared weights, a state for each turn, names that are a promise."""

import pytest
import torch

from heddle.core import ConfigError, UsageError, encode
from heddle.nn.attention import AttentionConfig
from heddle.nn.base import Context, MixerConfig, PartConfig, Place
from heddle.nn.channels import FeedForwardConfig, IdentityConfig
from heddle.nn.layers import ElementDropoutConfig, LayerNormConfig
from heddle.nn.positions import RotaryPositionConfig
from heddle.nn.recurrent import LSTMConfig
from heddle.nn.stack import (
    BlockConfig,
    BranchConfig,
    ChainConfig,
    LoopConfig,
    Plan,
    PlanConfig,
    PoolConfig,
    RepeatConfig,
    ReplaceConfig,
    SteppedLoopConfig,
)
from heddle.nn.state import State

WIDTH = 8
ATTENTION, CHANNEL = AttentionConfig(heads=2), FeedForwardConfig(hidden=12)


def block(*parts: PartConfig) -> BlockConfig:
    return BlockConfig(branches=tuple(BranchConfig(part=p, norm=LayerNormConfig()) for p in parts))


def build(config: PlanConfig) -> Plan:
    torch.manual_seed(0)
    plan = config.build(WIDTH, Place(depth=config.depth(), context=16))
    for name, weight in plan.named_parameters():
        torch.nn.init.normal_(weight, mean=1.0 if ".norm." in name else 0.0, std=0.3)
    return plan.double()


def x() -> torch.Tensor:
    return torch.randn(2, 5, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def names(config: PlanConfig) -> set[str]:
    return {name for name, _ in build(config).named_parameters()}


def test_names_in_the_state_dict_are_as_promised() -> None:
    assert names(RepeatConfig(body=block(ATTENTION, CHANNEL), times=2)) == {
        f"{layer}.{rest}"
        for layer in (0, 1)
        for rest in (
            "mixer.norm.weight",
            "mixer.norm.bias",
            "mixer.part.query.weight",
            "mixer.part.key.weight",
            "mixer.part.value.weight",
            "mixer.part.output.weight",
            "channel.norm.weight",
            "channel.norm.bias",
            "channel.part.up.weight",
            "channel.part.down.weight",
        )
    }


def test_branches_of_one_slot_are_numbered_from_the_second() -> None:
    found = {name.split(".")[0] for name in names(block(CHANNEL, ATTENTION, CHANNEL, CHANNEL))}
    assert found == {"channel", "mixer", "channel_2", "channel_3"}


def test_a_norm_branch_is_called_norm() -> None:
    post = BlockConfig(branches=(BranchConfig(part=IdentityConfig(), norm=LayerNormConfig(), join=ReplaceConfig()),))
    assert names(post) == {"norm.norm.weight", "norm.norm.bias"}


def test_post_norm_norms_the_sum() -> None:
    plain = BlockConfig(branches=(BranchConfig(part=CHANNEL),))
    post = BlockConfig(
        branches=(
            BranchConfig(part=CHANNEL),
            BranchConfig(part=IdentityConfig(), norm=LayerNormConfig(), join=ReplaceConfig()),
        )
    )
    normed, bare = build(post), build(plain)
    bare.load_state_dict({k: v for k, v in normed.state_dict().items() if k.startswith("channel")})
    want = normed.get_submodule("norm.norm")(bare(x(), Context())[0])
    torch.testing.assert_close(normed(x(), Context())[0], want)


def test_repeat_has_fresh_weights_and_chain_of_the_same_is_repeat() -> None:
    repeat = build(RepeatConfig(body=block(CHANNEL), times=3))
    chain = build(ChainConfig(bodies=(block(CHANNEL),) * 3))
    assert repeat.state_dict().keys() == chain.state_dict().keys()
    assert len(list(repeat.parameters())) == 3 * len(list(build(block(CHANNEL)).parameters()))
    assert torch.equal(repeat(x(), Context())[0], chain(x(), Context())[0])


def test_loop_equals_repeat_with_equal_weights() -> None:
    loop = build(LoopConfig(body=block(ATTENTION, CHANNEL), turns=3))
    repeat = build(RepeatConfig(body=block(ATTENTION, CHANNEL), times=3))
    body = {k.removeprefix("body."): v for k, v in loop.state_dict().items()}
    repeat.load_state_dict({f"{i}.{k}": v for i in range(3) for k, v in body.items()})
    torch.testing.assert_close(loop(x(), Context())[0], repeat(x(), Context())[0])


def test_every_turn_of_every_loop_remembers_for_itself() -> None:
    config = RepeatConfig(body=LoopConfig(body=block(LSTMConfig()), turns=2), times=2)
    plan = build(LoopConfig(body=config, turns=2))
    _, ctx = plan(x(), Context(state=State.empty(2, 8)))
    assert ctx.state is not None
    assert set(ctx.state.slots) == {f"body.{i}.body.mixer@{a}@{b}" for i in (0, 1) for a in (0, 1) for b in (0, 1)}
    assert ctx.turn == ""


def test_depth_counts_the_blocks_a_token_passes() -> None:
    one = block(CHANNEL)
    assert ChainConfig(bodies=(RepeatConfig(body=one, times=3), LoopConfig(body=one, turns=2), one)).depth() == 6


class Surveyor(MixerConfig):
    """Writes down where it is built."""

    seen: list[Place] = []

    def build(self, width: int, place: Place) -> "torch.nn.Module":  # type: ignore[override]
        self.seen.append(place)
        return IdentityConfig().build(width, place)


def test_places_number_the_layers_in_order() -> None:
    Surveyor.seen.clear()
    spy = BlockConfig(branches=(BranchConfig(part=Surveyor()),))
    build(ChainConfig(bodies=(RepeatConfig(body=spy, times=2), LoopConfig(body=spy, turns=3), spy)))
    assert [(p.path, p.layer, p.depth) for p in Surveyor.seen] == [
        ("0.0.mixer", 0, 6),
        ("0.1.mixer", 1, 6),
        ("1.body.mixer", 2, 6),
        ("2.mixer", 5, 6),
    ]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: RepeatConfig(body=block(CHANNEL), times=0), "times"),
        (lambda: LoopConfig(body=block(CHANNEL), turns=0), "turns"),
        (lambda: ChainConfig(bodies=()), "bodies"),
        (lambda: SteppedLoopConfig(body=block(CHANNEL), turns=0), "turns"),
        (lambda: SteppedLoopConfig(body=block(CHANNEL), turns=1, before=-1), "before"),
        (lambda: PoolConfig(size=1), "size"),
        (lambda: build(PoolConfig()), "sight"),
        (lambda: ElementDropoutConfig(rate=1.0), "dropout"),
    ],
)
def test_an_empty_plan_is_refused(make: object, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()  # type: ignore[operator]
    assert caught.value.field == field


def test_dropout_falls_on_the_branch_not_on_the_stream() -> None:
    plan = build(BlockConfig(branches=(BranchConfig(part=CHANNEL, dropout=ElementDropoutConfig(rate=0.9)),)))
    torch.manual_seed(0)
    added = plan.train()(x(), Context())[0] - x()
    assert 0.7 < (added == 0).double().mean() < 1.0
    assert (plan.eval()(x(), Context())[0] - x()).count_nonzero() == x().numel()


def test_a_note_is_written_once() -> None:
    ctx = Context().note("first", torch.ones(1))
    assert set(ctx.notes) == {"first"}
    with pytest.raises(ConfigError, match="first: want a note that is written only once"):
        ctx.note("first", torch.zeros(1))


def test_a_plan_reads_as_a_tree() -> None:
    assert encode(LoopConfig(body=block(IdentityConfig()), turns=2))["kind"] == "loop"


# --- Universal's loop -------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_stepped_loop_adds_its_vectors_before_the_middle_turns_only() -> None:
    plan = build(SteppedLoopConfig(body=block(ATTENTION, CHANNEL), turns=2, before=1, after=2))
    body, want = plan.get_submodule("body"), x()
    for step in (None, 0, 1, None, None):
        want = want if step is None else want + plan.get_parameter("steps")[step]
        want, _ = body(want, Context())
    torch.testing.assert_close(plan(x(), Context())[0], want)


def test_every_turn_of_a_stepped_loop_remembers_for_itself() -> None:
    config = SteppedLoopConfig(body=block(LSTMConfig()), turns=2, before=1)
    plan = build(config)
    _, ctx = plan(x(), Context(state=State.empty(2, 8)))
    assert ctx.state is not None
    assert set(ctx.state.slots) == {f"body.mixer@{turn}" for turn in range(3)}
    assert (plan.repeats, config.depth(), ctx.turn) == (3, 3, "")


def test_steps_cost_one_vector_each() -> None:
    with torch.device("meta"):
        plan = SteppedLoopConfig(body=block(CHANNEL), turns=24, before=2, after=2).build(768, Place())
    assert plan.get_parameter("steps").numel() == 24 * 768
    assert plan.repeats == 28


# --- Funnel's pool ----------------------------------------------------------------------------------------------------


def pooled(ctx: Context, size: int = 2) -> tuple[torch.Tensor, Context]:
    return PoolConfig(size=size).build(WIDTH, Place(sight="all"))(x(), ctx)


def test_pool_takes_the_mean_of_neighbours_and_of_what_is_left() -> None:
    y, ctx = pooled(Context())
    want = torch.stack((x()[:, 0:2].mean(1), x()[:, 2:4].mean(1), x()[:, 4]), dim=1)
    torch.testing.assert_close(y, want)
    assert ctx.allowed is None
    assert ctx.lengths is None


def test_pool_takes_the_mean_of_real_tokens_only() -> None:
    y, ctx = pooled(Context(lengths=torch.tensor([3, 5])), size=2)
    torch.testing.assert_close(y[0, :2], torch.stack((x()[0, 0:2].mean(0), x()[0, 2])))
    assert y[0, 2].count_nonzero() == 0
    assert ctx.lengths is not None
    assert ctx.allowed is not None
    assert ctx.lengths.tolist() == [2, 3]
    assert ctx.allowed.tolist() == [[[[True, True, False]]], [[[True, True, True]]]]


def test_positions_of_pooled_rows_count_from_zero_again() -> None:
    bias = torch.randn(1, 2, 5, 5)
    _, ctx = RotaryPositionConfig().build(WIDTH, Place(context=8, head_width=4))(x(), Context(bias={2: bias}))
    _, short = pooled(ctx)
    assert ctx.rotation is not None
    assert short.rotation is not None
    assert short.bias is not None
    assert torch.equal(short.bias[2], bias[:, :, :3, :3])
    assert torch.equal(short.rotation.cos, ctx.rotation.cos[:, :3])
    assert torch.equal(short.rotation.sin, ctx.rotation.sin[:, :3])


def test_pool_refuses_packed_documents_and_a_state() -> None:
    with pytest.raises(UsageError, match="one document a row"):
        pooled(Context(documents=torch.zeros(2, 5, dtype=torch.long)))
    with pytest.raises(UsageError, match="cannot continue from a state"):
        pooled(Context(state=State.empty(2, 8)))


def test_pool_has_no_weights_no_depth_and_shorter_rows() -> None:
    assert PoolConfig().depth() == 0
    plan = PoolConfig(size=3).build(WIDTH, Place(sight="all"))
    assert list(plan.parameters()) == []
    assert plan.pooling_factor == 3

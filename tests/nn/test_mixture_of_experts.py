"""Experts equal their formula token by token, spend nothing on padding, and tell how the work is spread."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.core import ConfigError, UsageError
from heddle.nn.base import Context, Place, Sight
from heddle.nn.channels import (
    ROUTER_BIAS_RATE,
    BiasLoadBalancingConfig,
    ExpertChoiceConfig,
    Experts,
    ExpertsConfig,
    FactorConfig,
    FeedForwardConfig,
    FixupFeedForwardConfig,
    GatedFeedForwardConfig,
    LoadBalancingLossConfig,
    NarangFactorConfig,
    NoLoadBalancingConfig,
    PerDocumentCapacityConfig,
    SigmoidChoiceConfig,
    TokenChoiceConfig,
)
from heddle.nn.layers import activation

WIDTH, EXPERTS = 16, 4
GATED = GatedFeedForwardConfig(hidden=24, bias=True)
PLAIN = FeedForwardConfig(hidden=24, activation="gelu", bias=True)


def build(config: ExpertsConfig, sight: Sight = "past", dtype: torch.dtype = torch.float64) -> Experts:
    made = config.build(WIDTH, Place(sight=sight))
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(0.5 * torch.randn(weight.shape, generator=draw))
        for bias in (p for name, p in made.named_parameters() if name == "balance.bias"):
            bias.zero_()
    return made.to(dtype)


def x(batch: int = 2, length: int = 6, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(dtype)


def one_expert(made: Experts, number: int, token: Tensor) -> Tensor:
    """Compute one expert on one token, by the formula."""
    bank = made.bank
    maps = {name: (m.weight[number], 0 if m.bias is None else m.bias[number]) for name, m in bank.named_children()}
    raised = {name: weight @ token + bias for name, (weight, bias) in maps.items() if name != "down"}
    inner = bank.activation(raised["gate"]) * raised["up"] if "gate" in raised else bank.activation(raised["up"])
    weight, bias = maps["down"]
    return weight @ inner + bias


def by_hand(made: Experts, stream: Tensor, ctx: Context) -> Tensor:
    """Send token by token to the experts that the router names."""
    routing = made.router(stream, ctx, made.balance.selection_bias())
    out = torch.zeros_like(stream)
    for row, places in enumerate(zip(routing.experts.tolist(), routing.gates, strict=True)):
        for place, (chosen, gates) in enumerate(zip(*places, strict=True)):
            for number, gate in zip(chosen, gates, strict=True):
                if number < made.experts:
                    out[row, place] += gate * one_expert(made, number, stream[row, place])
    return out


@pytest.mark.parametrize("expert", [GATED, PLAIN], ids=lambda e: e.kind)
@pytest.mark.parametrize("router", [TokenChoiceConfig(top_k=1, normalized=False), TokenChoiceConfig(top_k=3)])
def test_experts_equal_their_formula(expert: FeedForwardConfig, router: TokenChoiceConfig) -> None:
    made = build(ExpertsConfig(experts=EXPERTS, expert=expert, router=router))
    torch.testing.assert_close(made(x(), Context()), by_hand(made, x(), Context()))


def test_experts_that_choose_equal_their_formula() -> None:
    config = ExpertsConfig(experts=EXPERTS, expert=PLAIN, router=ExpertChoiceConfig(), balance=NoLoadBalancingConfig())
    made, ctx = build(config, "all"), Context(lengths=torch.tensor([6, 3]))
    out = made(x(), ctx)
    torch.testing.assert_close(out, by_hand(made, x(), ctx))
    assert out[1, 3:].count_nonzero() == 0


def test_a_shared_expert_sees_every_token() -> None:
    config = ExpertsConfig(experts=EXPERTS, expert=PLAIN, shared=GATED)
    made = build(config)
    alone = by_hand(made, x(), Context())
    torch.testing.assert_close(made(x(), Context()), alone + made.shared(x(), Context()))


def test_one_expert_is_a_feed_forward() -> None:
    made = build(ExpertsConfig(experts=1, expert=PLAIN, router=TokenChoiceConfig(top_k=1)))
    bank = made.bank
    want = F.linear(activation("gelu")(F.linear(x(), bank.up.weight[0], bank.up.bias[0])), bank.down.weight[0])
    torch.testing.assert_close(made(x(), Context()), want + bank.down.bias[0])


def test_padding_reaches_no_expert_and_changes_nothing() -> None:
    made = build(ExpertsConfig(experts=EXPERTS, expert=GATED, capacity=FactorConfig(group=4, min_capacity=1)))
    new, ignored = torch.tensor([6, 2]), torch.arange(6) >= torch.tensor([[6], [2]])
    outputs = []
    for filler in (0.0, 1e3):
        stream = x().masked_fill(ignored[..., None], filler)
        for ctx in (Context(lengths=new), Context(ignored=ignored)):
            outputs.append(made(stream, ctx))
            penalty, metrics = made.penalties[-1], made.metrics[-1]
            assert outputs[-1][1, 2:].count_nonzero() == 0
            outputs.append(torch.stack((penalty, *metrics.values())))
    for one, other in ((0, 2), (0, 4), (0, 6), (1, 3), (1, 5), (1, 7)):
        assert torch.equal(outputs[one], outputs[other])


def test_gradients_do_not_see_what_kernels_leave_in_empty_rows() -> None:
    made = build(ExpertsConfig(experts=EXPERTS, expert=GATED), dtype=torch.float32)
    stream = x(dtype=torch.bfloat16).requires_grad_()
    out = made(stream, Context(lengths=torch.tensor([4, 0])))
    assert out.dtype == torch.bfloat16
    out.float().square().sum().backward()
    assert stream.grad is not None
    assert stream.grad[0, 4:].count_nonzero() == stream.grad[1].count_nonzero() == 0
    assert all(p.grad is None or p.grad.isfinite().all() for p in made.parameters())


def test_half_precision_stays_near() -> None:
    made = build(ExpertsConfig(experts=EXPERTS, expert=GATED))
    narrow = made.float()
    want = build(ExpertsConfig(experts=EXPERTS, expert=GATED))(x(dtype=torch.bfloat16).double(), Context())
    got = narrow(x(dtype=torch.bfloat16), Context())
    assert (got.double() - want).abs().max() < 0.03 * want.abs().max()


# --- capacity and figures ---------------------------------------------------------------------------------------------


def test_dropless_drops_nothing_and_says_how_the_load_is_spread() -> None:
    made = build(ExpertsConfig(experts=EXPERTS, expert=PLAIN))
    with torch.no_grad():
        made.router.scores.weight.zero_()
        made.router.scores.weight[0, 0] = made.router.scores.weight[1, 0] = 100.0
    made(x().abs(), Context())
    metrics = made.metrics[-1]
    assert metrics["expert_dropped"] == metrics["tokens_without_expert"] == 0
    assert metrics["expert_load_imbalance"] == EXPERTS / 2
    assert made.eval()(x(), Context()) is not None
    assert len(made.metrics) == 1, "figures are of training"


def test_capacity_drops_in_training_and_never_in_evaluation() -> None:
    limited = ExpertsConfig(experts=EXPERTS, expert=PLAIN, capacity=FactorConfig(factor=1.0, min_capacity=1))
    made, free = build(limited), build(ExpertsConfig(experts=EXPERTS, expert=PLAIN))
    with torch.no_grad():
        for one in (made, free):
            one.router.scores.weight[1] = 0
            one.router.scores.weight[0] = 0
            one.router.scores.weight[0, 0] = 100.0
    stream = x().abs()
    assert not torch.allclose(made(stream, Context()), free(stream, Context()))
    assert made.metrics[-1]["expert_dropped"] > 0.4
    torch.testing.assert_close(made.eval()(stream, Context()), free.eval()(stream, Context()))


def test_places_of_a_row_hold_for_an_encoder_in_use_and_not_for_a_decoder() -> None:
    limited = ExpertsConfig(experts=EXPERTS, expert=PLAIN, capacity=PerDocumentCapacityConfig(max_capacity=2))
    free = build(ExpertsConfig(experts=EXPERTS, expert=PLAIN), "all").eval()
    past, both = build(limited, "past").eval(), build(limited, "all").eval()
    assert torch.equal(past(x(), Context()), free(x(), Context()))
    whole = both(x(), Context())
    assert not torch.allclose(whole, free(x(), Context()))
    torch.testing.assert_close(whole[1:], both(x()[1:], Context()))  # a row is its own
    padded = F.pad(x(), (0, 0, 0, 3), value=1.0)
    torch.testing.assert_close(whole, both(padded, Context(lengths=torch.tensor([6, 6])))[:, :6])


def test_paper_ops_of_the_experts_of_narang() -> None:
    """Their table says 11.7 T for both rows; the facts file gives the sums."""
    base, width = 11.07e12, 768
    plain = 2 * width * 3072
    for factor, hidden, want in ((2.0, 1536, 11.69e12), (1.2, 3072, 11.73e12)):
        total = base
        for capacity, tokens in ((factor, 128 * 512), (1.25, 128 * 114)):
            config = ExpertsConfig(
                experts=32,
                expert=FeedForwardConfig(hidden=hidden),
                capacity=NarangFactorConfig(factor=capacity),
                balance=LoadBalancingLossConfig(counted="first"),
            )
            with torch.device("meta"):
                made = config.build(width, Place())
            total += 3 * (made.narang_lookup_ops(tokens) + tokens * width * 32 - tokens * plain)
        assert total == pytest.approx(want, rel=1e-3)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"router\.top_k: want at most 4"):
        build(ExpertsConfig(experts=4, expert=PLAIN, router=TokenChoiceConfig(top_k=5)))
    with pytest.raises(ConfigError, match="expert: want feed_forward or gated_feed_forward, got 'fixup_feed_forward'"):
        build(ExpertsConfig(expert=FixupFeedForwardConfig()))
    with pytest.raises(ConfigError, match="balance: want none"):
        ExpertsConfig(router=ExpertChoiceConfig())
    chosen = ExpertsConfig(expert=PLAIN, router=ExpertChoiceConfig(), balance=NoLoadBalancingConfig())
    with pytest.raises(ConfigError, match="router: expert_choice is not causal"):
        build(chosen, "past")
    with pytest.raises(UsageError, match="one document a row"):
        build(chosen, "all")(x(), Context(documents=torch.zeros(2, 6, dtype=torch.long)))


# --- balance ----------------------------------------------------------------------------------------------------------


def loads(made: Experts, stream: Tensor) -> Tensor:
    chosen = made.router(stream, Context(), made.balance.selection_bias()).experts
    return F.one_hot(chosen, made.experts).sum((0, 1, 2)).double()


@pytest.mark.parametrize("router", [TokenChoiceConfig(), SigmoidChoiceConfig()], ids=lambda r: r.kind)
def test_a_bias_balances_without_touching_the_loss(router: TokenChoiceConfig) -> None:
    made = build(ExpertsConfig(experts=8, expert=PLAIN, router=router, balance=BiasLoadBalancingConfig()))
    draw = torch.Generator().manual_seed(5)

    def tokens(rows: int) -> Tensor:  # with a common direction, which makes some experts popular
        return torch.randn(rows, 64, WIDTH, generator=draw, dtype=torch.float64) + 1.0

    others, optimizer = tokens(16), torch.optim.SGD([made.balance.bias], lr=ROUTER_BIAS_RATE)
    before = loads(made, others)
    for _ in range(100):
        made.clear()
        made(tokens(8), Context())
        assert made.penalties[-1] == 0
        optimizer.zero_grad()
        made.penalties[-1].backward()
        optimizer.step()
    after = loads(made, others)
    assert before.max() / before.mean() > 2
    assert after.max() / after.mean() < 1.3


def test_a_load_loss_balances() -> None:
    made = build(ExpertsConfig(experts=8, expert=PLAIN, balance=LoadBalancingLossConfig(weight=1.0)))
    stream = x(8, 64) + 1.0
    optimizer = torch.optim.Adam(made.router.parameters(), lr=1e-2)
    for _ in range(100):
        made.clear()
        made(stream, Context())
        optimizer.zero_grad()
        made.penalties[-1].backward()
        optimizer.step()
    assert made.metrics[-1]["expert_load_imbalance"] < 1.5


# --- compilation ------------------------------------------------------------------------------------------------------

TRACE = """
import torch
from heddle.nn.base import *
from heddle.nn.channels import *
for dtype in (torch.float32, torch.bfloat16):
    config = ExpertsConfig(experts=4, expert=GatedFeedForwardConfig(hidden=32), z_loss=0.1)
    made = config.build(16, Place())
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    stream, new = torch.randn(2, 6, 16).to(dtype), torch.tensor([6, 2])
    def run(s, n):
        return made(s, Context(lengths=n)), made.penalties[-1]

    whole = torch.compile(run, fullgraph=True, backend="aot_eager")
    for one, other in zip(whole(stream, new), run(stream, new)):
        assert torch.allclose(one, other), dtype
    (whole(stream, new)[0].float().sum() + made.penalties[-1]).backward()
    meta = config.build(16, Place()).to("meta")
    assert meta(stream.to("meta"), Context()).shape == stream.shape
print("traced")
"""


def test_experts_are_one_graph_and_run_on_the_meta_device() -> None:
    """In a process of its own, for the shape checks that tests switch on cannot be traced."""
    done = subprocess.run([sys.executable, "-c", TRACE], capture_output=True, text=True, check=False, timeout=240)
    assert done.stdout == "traced\n", done.stderr[-2000:]

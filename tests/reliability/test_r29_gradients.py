"""R29, gradients: every own op and loss, and every weight of every preset, against finite differences in fp64."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from laws.cases import SMALL, idle, loud, preset_functions
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError, gradcheck
from torch.nn import functional as F

from heddle.core import replace, swap
from heddle.models.networks import EncoderDecoderConfig, LanguageModel, LanguageModelConfig
from heddle.models.presets import PRESETS
from heddle.nn.attention import (
    AdditiveScoreConfig,
    AlphaConfig,
    AttentionConfig,
    BranchedAttentionConfig,
    ClippedBranchWeightsConfig,
    ConstantPatternConfig,
    DensePatternConfig,
    DotScoreConfig,
    FactorizedPatternConfig,
    GeneralScoreConfig,
    LatentAttentionConfig,
    LatentWidthsConfig,
    ProjectionsConfig,
    RandomPatternConfig,
    SinkScoreConfig,
    SynthesizerConfig,
)
from heddle.nn.base import Context, MixerConfig, PartConfig, Place, SelfAttentionConfig
from heddle.nn.channels import (
    Experts,
    ExpertsConfig,
    FeedForwardConfig,
    FixupFeedForwardConfig,
    GatedFeedForwardConfig,
    NoLoadBalancingConfig,
    ProductKeysConfig,
    SigmoidChoiceConfig,
    TokenChoiceConfig,
)
from heddle.nn.convolution import (
    DynamicConvolutionConfig,
    EvolvedDecoderConvolutionConfig,
    EvolvedEncoderConvolutionConfig,
    GatedLinearUnitConfig,
    LightweightConvolutionConfig,
)
from heddle.nn.ends import (
    AdaptiveHeadConfig,
    ClusterConfig,
    ClusteredHeadConfig,
    FactorizedHeadConfig,
    MixtureHeadConfig,
    SoftmaxHeadConfig,
    TransformedHeadConfig,
    head,
)
from heddle.nn.layers import (
    ACTIVATIONS,
    LayerNormConfig,
    OffsetRMSNormConfig,
    PartialRMSNormConfig,
    RMSNormConfig,
    ShiftScaleConfig,
    SlidingWindowConfig,
    base_mask,
)
from heddle.nn.positions import (
    AlibiPositionConfig,
    NoPositionConfig,
    PositionConfig,
    RelativePositionConfig,
    RotaryPositionConfig,
    T5PositionConfig,
    apply_rotary,
)
from heddle.nn.recurrent import (
    GRUConfig,
    LSTMConfig,
    MogrifierConfig,
    NGramConfig,
    QRNNConfig,
    RecurrentConfig,
    RNNConfig,
    StackedCellsConfig,
)
from heddle.nn.stack import GatedConfig, HighwayConfig, LayerScaleConfig, NarangGateConfig, SumConfig
from heddle.nn.state import HiddenState

TOLERANCE = 1e-6
WIDTH, LENGTH, VOCAB = 8, 5, 7
DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])
Op = Callable[..., Tensor]


def shaken(module: nn.Module) -> nn.Module:
    """Fill every weight with normal numbers, in double precision."""
    draw = torch.Generator().manual_seed(0)
    module = module.double()
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(0.5 * torch.randn(weight.shape, generator=draw, dtype=torch.float64))
    return module


def x(*shape: int) -> Tensor:
    made = torch.randn(*(shape or (2, LENGTH, WIDTH)), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return made.requires_grad_()


@dataclass(frozen=True)
class Checker:
    """Holds gradients against finite differences: entry by entry, or (fast) along one random direction each."""

    fast: bool

    def __call__(self, op: Op, module: nn.Module, *inputs: Tensor) -> bool:
        """Check an op by its inputs and by all weights of its module."""
        weights = tuple(module.parameters())

        def run(*leaves: Tensor) -> Tensor:
            return op(*leaves[: len(inputs)])

        return gradcheck(run, (*inputs, *weights), rtol=TOLERANCE, atol=1e-8, fast_mode=self.fast)


# --- ops --------------------------------------------------------------------------------------------------------------


def parts() -> Iterator[tuple[str, PartConfig, Context]]:
    """Yield every own part in every context that changes what it computes."""
    packed = Context(
        documents=DOCUMENTS, allowed=base_mask(Context(documents=DOCUMENTS), LENGTH, "past", DOCUMENTS.device)
    )
    normed = ProjectionsConfig(bias=True, output_bias=True, norm=RMSNormConfig())
    for kv_heads in (4, 2, 1):
        for name, ctx in (("plain", Context()), ("packed", packed)):
            yield f"attention, {kv_heads} kv, {name}", AttentionConfig(heads=4, kv_heads=kv_heads), ctx
    yield "attention, window", AttentionConfig(heads=2, mask=SlidingWindowConfig(size=2)), Context()
    yield "attention, normed", AttentionConfig(heads=2, projections=normed), Context()
    across = ProjectionsConfig(across=RMSNormConfig())
    yield "attention, normed across", AttentionConfig(heads=4, kv_heads=2, projections=across), Context()
    for name in ACTIVATIONS:
        yield f"feed-forward, {name}", FeedForwardConfig(hidden=6, activation=name, bias=True), Context()
        yield f"gated feed-forward, {name}", GatedFeedForwardConfig(hidden=6, activation=name, bias=True), Context()
    for cell in (
        *(kind(hidden=hidden) for kind in (RNNConfig, LSTMConfig, GRUConfig) for hidden in (None, 3)),
        MogrifierConfig(hidden=3, rounds=3),
        MogrifierConfig(rounds=2, rank=2),
        QRNNConfig(),
        QRNNConfig(hidden=3, window=1),
        NGramConfig(n=3, hidden=3, direct=True),
    ):
        for where, ctx in (
            ("plain", Context()),
            ("packed", Context(documents=DOCUMENTS)),
            ("unequal", Context(lengths=torch.tensor([5, 2]))),
        ):
            yield f"{cell.kind}, {cell.hidden or WIDTH} hidden, {where}", cell, ctx
    deep = StackedCellsConfig(cells=(QRNNConfig(hidden=3), MogrifierConfig(hidden=2, rounds=2), GRUConfig()))
    yield "deep, packed", deep, Context(documents=DOCUMENTS)


def of_narang() -> Iterator[tuple[str, PartConfig, Context]]:
    """Yield convolutions, synthesizers and branches in every context that changes what they compute."""
    positions = torch.tensor([[0, 1, 0, 1, 2], [0, 0, 1, 0, 1]])
    allowed = base_mask(Context(documents=DOCUMENTS), LENGTH, "past", DOCUMENTS.device)
    contexts = {
        "plain": Context(),
        "packed": Context(documents=DOCUMENTS, positions=positions, allowed=allowed),
        "unequal": Context(lengths=torch.tensor([5, 2])),
    }
    patterns = (RandomPatternConfig(), FactorizedPatternConfig(rank=2), ConstantPatternConfig(rank=2))
    mixers: tuple[MixerConfig, ...] = (
        LightweightConvolutionConfig(taps=3, heads=2),
        DynamicConvolutionConfig(taps=3, heads=4, maps=2),
        EvolvedEncoderConvolutionConfig(hidden=10, long=4),
        EvolvedDecoderConvolutionConfig(hidden=10, short=2, long=3),
        *(SynthesizerConfig(heads=2, head_width=3, pattern=pattern) for pattern in patterns),
        SynthesizerConfig(heads=2, pattern=DensePatternConfig(), blend=AlphaConfig()),
        BranchedAttentionConfig(attention=AttentionConfig(heads=2), shares=ClippedBranchWeightsConfig()),
    )
    for mixer in mixers:
        for name, ctx in contexts.items():
            yield f"{mixer}, {name}", mixer, ctx
    yield "gated linear unit", GatedLinearUnitConfig(), Context()


def of_experts() -> Iterator[tuple[str, PartConfig, Context]]:
    """Yield experts of every form behind every router, a memory of product keys, and a sum of parts."""
    plain, gated = FeedForwardConfig(hidden=6, activation="gelu", bias=True), GatedFeedForwardConfig(hidden=6)
    for router in (TokenChoiceConfig(), TokenChoiceConfig(top_k=1, normalized=False), SigmoidChoiceConfig(scale=2.5)):
        for form in (plain, gated):
            config = ExpertsConfig(experts=3, expert=form, router=router, balance=NoLoadBalancingConfig(), shared=gated)
            yield f"experts, {router}, {form.kind}", config, Context()
            yield f"experts, {router}, {form.kind}, unequal", config, Context(lengths=torch.tensor([5, 2]))
    yield "product keys", ProductKeysConfig(keys=4, heads=2, top_k=3, key_width=4), Context()
    yield "sum", SumConfig(parts=(AttentionConfig(heads=2), plain)), Context()
    norms = (LayerNormConfig(), RMSNormConfig())
    yield "sum, normed", SumConfig(parts=(AttentionConfig(heads=2), plain), norms=norms), Context()
    yield "fixup feed-forward", FixupFeedForwardConfig(hidden=6, activation="gelu"), Context()


def check_parts(check: Checker) -> int:
    count = 0
    for name, config, ctx in (*parts(), *of_narang(), *of_experts()):
        module = shaken(config.build(WIDTH, Place(context=LENGTH)))
        assert check(lambda stream, m=module, c=ctx: m(stream, c), module, x()), name
        count += 1
    return count


def check_carried(check: Checker) -> int:
    """Check recurrence from a carried state, by that state too."""
    cells: tuple[tuple[RecurrentConfig, int], ...] = ((LSTMConfig(), 2), (GRUConfig(), 1))
    for config, carried in cells:
        module = shaken(config.build(WIDTH, Place()))

        def run(stream: Tensor, *start: Tensor, m: nn.Module = module) -> Tensor:
            y, slot = m.step(stream, Context(documents=DOCUMENTS), HiddenState(start))
            return torch.cat((y.flatten(), *(v.flatten() for v in slot.vectors)))

        assert check(run, module, x(), *(x(2, WIDTH) for _ in range(carried)))
    return len(cells)


def check_attention(check: Checker) -> int:
    """Check every score and latent attention with positions that act on them, by the positions' tables too."""
    scores = (DotScoreConfig(softcap=2.0), GeneralScoreConfig(), AdditiveScoreConfig(), SinkScoreConfig())
    positions = (NoPositionConfig(), RelativePositionConfig(clip=2), T5PositionConfig(buckets=4, farthest=4))
    pairs: list[tuple[SelfAttentionConfig, PositionConfig]] = [
        (AttentionConfig(heads=4, kv_heads=2, head_width=4, score=score), position)
        for score in scores
        for position in positions
    ]
    latent = LatentAttentionConfig(
        heads=4, latent=5, query_latent=3, widths=LatentWidthsConfig(key=3, rotary=4, value=2)
    )
    pairs += [(latent, RotaryPositionConfig()), (latent, AlibiPositionConfig())]
    allowed = base_mask(Context(documents=DOCUMENTS), LENGTH, "past", DOCUMENTS.device)
    for config, position in pairs:
        place = Place(context=LENGTH, head_width=4, heads=(4,))
        module = nn.ModuleList((position.build(WIDTH, place), config.build(WIDTH, place)))
        for ctx in (Context(), Context(documents=DOCUMENTS, allowed=allowed)):
            order, attention = shaken(module)
            assert check(lambda s, o=order, a=attention, c=ctx: a(*o(s, c)), module, x()), f"{config}, {position}"
    return 2 * len(pairs)


def check_norms_and_rotation(check: Checker) -> int:
    norms = (
        LayerNormConfig(),
        RMSNormConfig(),
        OffsetRMSNormConfig(),
        PartialRMSNormConfig(share=0.3),
        ShiftScaleConfig(),
    )
    for config in norms:
        module = shaken(config.build(WIDTH))
        assert check(module, module, x())
    joins = LayerScaleConfig(), HighwayConfig(), GatedConfig(), NarangGateConfig()
    for join in joins:
        module = shaken(join.build(WIDTH, Place()))
        assert check(module, module, x(), (2 * x()).detach().requires_grad_())
    rotaries = RotaryPositionConfig(), RotaryPositionConfig(order="interleaved")
    for rotary in rotaries:
        position = rotary.build(WIDTH, Place(context=LENGTH, head_width=WIDTH)).double()
        _, ctx = position(x(), Context())
        assert ctx.rotation is not None
        assert check(lambda q, r=ctx.rotation: apply_rotary(q, r), position, x(2, 3, LENGTH, WIDTH))
    return len(norms) + len(joins) + len(rotaries)


CLUSTERS = (ClusterConfig(size=3), ClusterConfig(size=2, width=4), ClusterConfig(width=3))
HEADS = (
    SoftmaxHeadConfig(),
    SoftmaxHeadConfig(bias=True, power=-0.5, softcap=2.0),
    TransformedHeadConfig(inner=5),
    FactorizedHeadConfig(inner=3),
    MixtureHeadConfig(components=3),
    ClusteredHeadConfig(clusters=CLUSTERS),
    AdaptiveHeadConfig(clusters=CLUSTERS),
)


def check_losses(check: Checker, monkeypatch: pytest.MonkeyPatch) -> int:
    targets = torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(2))
    count = 0
    for chunk in (1 << 27, 3 * VOCAB):
        monkeypatch.setattr(head, "CHUNK", chunk)
        for smoothing in (0.0, 0.1):
            for config in HEADS:
                module = shaken(config.build(VOCAB, WIDTH))
                assert check(lambda h, m=module, s=smoothing: m.nll(h, targets, s), module, x())
                count += 1
    return count


# --- whole models -----------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What was compared, and the worst of it."""

    compared: int = 0
    without: int = 0
    worst: float = 0.0


def tiny(name: str) -> Any:
    """Return a preset small enough to move each weight by itself."""
    make = {named.make.__name__: named.make for named in PRESETS.values()}[name]
    dials = {"heads": 2, "kv_heads": 1, "hidden": 6, "width": 4, "layers": 2, "dropout": 0.0}
    config = make(
        vocab=VOCAB,
        context=LENGTH,
        **{scheduled: dials.get(scheduled, size) for scheduled, size in SMALL[name].items()},
    )
    return swap(FeedForwardConfig, smooth)(config)


def smooth(channel: FeedForwardConfig) -> FeedForwardConfig:
    """Bend without a kink, across which no slope can be measured."""
    return replace(channel, activation="gelu") if channel.activation == "relu" else channel


def slope(loss: Callable[[], Tensor], weight: Tensor, direction: Tensor, step: float = 1e-4) -> float:
    """Measure a derivative along a direction by five points, good to the fourth power of the step."""
    kept, values = weight.clone(), {}
    for k in (-2, -1, 1, 2):
        weight.copy_(kept + k * step * direction)
        values[k] = loss().item()
    weight.copy_(kept)
    return (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * step)


def directions(weight: Tensor, every: bool, draw: torch.Generator) -> list[Tensor]:
    """Return each entry as a direction, or one in which all of them move."""
    if every:
        return list(torch.eye(weight.numel(), dtype=weight.dtype).view(-1, *weight.shape))
    drawn = torch.randn(weight.shape, dtype=weight.dtype, generator=draw)
    return [drawn / drawn.norm()]


def compare(model: LanguageModel, ctx: Context, every: bool, tally: Tally) -> None:
    """Compare each weight's gradient with measured slopes: of every entry, or along one direction of all."""
    draw = torch.Generator().manual_seed(3)
    inputs, targets = (torch.randint(VOCAB, (2, LENGTH), generator=draw) for _ in range(2))

    def loss() -> Tensor:
        return model.head.nll(model(inputs, ctx), targets).mean()

    names, weights = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss(), weights)
    with torch.no_grad():
        for name, weight, gradient in zip(names, weights, gradients, strict=True):
            ways = directions(weight, every, draw)
            apart = max(abs(slope(loss, weight, way) - (gradient * way).sum().item()) for way in ways)
            size = gradient.abs().max().item()
            tally.compared += len(ways)
            if idle(model.config, name):
                assert max(size, apart) < 1e-10, name
                continue
            tally.without += size == 0.0
            tally.worst = max(tally.worst, apart / size)


def run(every: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    check = Checker(fast=not every)
    ops = check_parts(check) + check_carried(check) + check_attention(check)
    ops += check_norms_and_rotation(check) + check_losses(check, monkeypatch)
    monkeypatch.undo()
    monkeypatch.setattr(Tensor, "relu", lambda x: F.gelu(x))  # stems bend without a kink
    tally = Tally()
    names = preset_functions(LanguageModelConfig, EncoderDecoderConfig)
    for name in names:
        model = loud(tiny(name))
        model.train(not any(isinstance(m, Experts) for m in model.modules()))  # in training, routers draw and drop
        compare(model, Context(), every, tally)
        if every and isinstance(model, LanguageModel):
            compare(model, Context(documents=DOCUMENTS), every, tally)
    print(
        f"R29: worst relative error {tally.worst:.1e} over {tally.compared:,} slopes of {len(names)} presets; "
        f"{tally.without} weights without a gradient; {ops} ops and losses pass gradcheck"
    )
    assert tally.worst <= TOLERANCE
    assert tally.without == 0


def test_gradients_of_ops_and_of_weights_along_one_direction_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    run(False, monkeypatch)


@pytest.mark.full
def test_gradients_of_ops_and_all_weights_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    run(True, monkeypatch)


def test_a_wrong_gradient_is_found() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, value: Tensor) -> Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return gradient * 1.00001

    for fast in (True, False):
        with pytest.raises(GradcheckError):
            Checker(fast)(Wrong.apply, nn.Identity(), x())

    model, tally = loud(tiny("gpt2")), Tally()
    model.get_submodule("stack.0.channel.part.up").weight.register_hook(lambda g: g * 1.001)
    compare(model, Context(), False, tally)
    assert tally.worst > TOLERANCE

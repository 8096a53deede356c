"""Every head: its loss is that of its logits, chunked or not, compiled or not; each against another's form of it."""

import json
import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.core import ConfigError, encode
from heddle.nn.base import Context, Place
from heddle.nn.ends import (
    AdaptiveEmbeddingConfig,
    AdaptiveHeadConfig,
    ClusterConfig,
    ClusteredHeadConfig,
    FactorizedHeadConfig,
    Head,
    HeadConfig,
    MixtureHeadConfig,
    SoftmaxHeadConfig,
    TransformedHeadConfig,
    head,
)

VOCAB, WIDTH = 29, 6
CLUSTERS = (ClusterConfig(size=9), ClusterConfig(size=8, width=4), ClusterConfig(width=3), ClusterConfig(size=2))
HEADS: dict[str, HeadConfig] = {
    "softmax": SoftmaxHeadConfig(bias=True, scale=2.0, power=-0.5),
    "softcap": SoftmaxHeadConfig(softcap=1.5),
    "transformed": TransformedHeadConfig(inner=5),
    "factorized": FactorizedHeadConfig(inner=3, power=-0.5),
    "mixture": MixtureHeadConfig(components=4, power=-0.25),
    "clustered": ClusteredHeadConfig(clusters=CLUSTERS, power=-0.5),
    "adaptive": AdaptiveHeadConfig(clusters=CLUSTERS, power=-0.5),
}


def filled(config: HeadConfig) -> Any:
    made = config.build(VOCAB, WIDTH).double()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw, dtype=torch.float64))
    return made


def data() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    hidden = torch.randn(4, 7, WIDTH, dtype=torch.float64, generator=draw).requires_grad_()
    return hidden, torch.randint(VOCAB, (4, 7), generator=draw)


def cross_entropy_from_logits(made: Head, hidden: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    scores = made.logits(hidden).flatten(0, -2)
    return F.cross_entropy(scores, targets.flatten(), reduction="none", label_smoothing=smoothing).view_as(targets)


# --- laws of heads ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1 << 27, 1, 3 * VOCAB])
def test_loss_and_gradients_are_those_of_the_logits(
    name: str, smoothing: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "CHUNK", chunk)
    made, (hidden, targets) = filled(HEADS[name]), data()
    weights = torch.rand(4, 7, dtype=torch.float64)
    inputs = [hidden, *made.parameters()]
    got, want = made.nll(hidden, targets, smoothing), cross_entropy_from_logits(made, hidden, targets, smoothing)
    torch.testing.assert_close(got, want)
    grads = [torch.autograd.grad((loss * weights).sum(), inputs) for loss in (got, want)]
    for mine, wanted in zip(*grads, strict=True):
        torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("name", ["mixture", "adaptive"])
def test_logits_are_log_probabilities_already(name: str) -> None:
    logits = filled(HEADS[name]).logits(data()[0])
    torch.testing.assert_close(logits.logsumexp(-1), torch.zeros(4, 7, dtype=torch.float64))


@pytest.mark.parametrize("name", HEADS)
def test_one_vector_no_vector_and_half_precision_have_losses(name: str) -> None:
    made, (hidden, targets) = filled(HEADS[name]), data()
    torch.testing.assert_close(made.nll(hidden[0, 0], targets[0, 0]), made.nll(hidden, targets)[0, 0])
    assert made.nll(hidden[:0], targets[:0]).shape == (0, 7)
    half = made.float().nll(hidden.bfloat16(), targets)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, made.nll(hidden.float(), targets), atol=0.15, rtol=0.05)


@pytest.mark.parametrize("name", HEADS)
def test_a_head_runs_without_memory(name: str) -> None:
    with torch.device("meta"):
        made = HEADS[name].build(VOCAB, WIDTH)
        assert made.nll(torch.empty(2, 3, WIDTH), torch.empty(2, 3, dtype=torch.long)).shape == (2, 3)


def test_every_head_is_one_graph() -> None:
    program = (
        "import json, torch\n"
        "from heddle.core import decode\n"
        "from heddle.nn.ends import HeadConfig\n"
        f"for data in json.loads({json.dumps(json.dumps(plain()))}):\n"
        f"    head = decode(HeadConfig, data).build({VOCAB}, {WIDTH})\n"
        "    [torch.nn.init.normal_(p) for p in head.parameters()]\n"
        f"    x, y = torch.randn(4, 7, {WIDTH}), torch.randint({VOCAB}, (4, 7))\n"
        "    whole = torch.compile(head.nll, fullgraph=True, backend='eager')\n"
        "    torch.testing.assert_close(whole(x, y), head.nll(x, y))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]


def plain() -> list[Any]:
    """Return every head as plain data, for another process."""
    sharing = AdaptiveHeadConfig(clusters=CLUSTERS, share=0.3)
    return [encode(config) for config in (*HEADS.values(), sharing)]


# --- each by itself ---------------------------------------------------------------------------------------------------


def test_softmax_scales_before_the_matrix_and_bends_after() -> None:
    hidden = data()[0]
    scaled = filled(SoftmaxHeadConfig(scale=3.0, power=-0.5))
    torch.testing.assert_close(scaled.logits(hidden), hidden * 3 * WIDTH**-0.5 @ scaled.weight.T)
    capped = filled(SoftmaxHeadConfig(softcap=2.0))
    torch.testing.assert_close(capped.logits(hidden), 2 * torch.tanh(hidden @ capped.weight.T / 2))
    with pytest.raises(ConfigError, match="softcap: want above 0"):
        SoftmaxHeadConfig(softcap=0.0)


def test_factorized_head_is_the_embedding_turned_round() -> None:
    made, hidden = filled(FactorizedHeadConfig(inner=3)), data()[0]
    torch.testing.assert_close(made.logits(hidden), hidden @ (made.weight @ made.map.weight.T).T)


def test_mixture_is_a_weighted_mean_of_softmaxes() -> None:
    made, hidden = filled(MixtureHeadConfig(components=3, power=-0.5)), data()[0]
    x = hidden * WIDTH**-0.5
    shares = (x @ made.prior.weight.T).softmax(-1)
    probabilities = torch.zeros(4, 7, VOCAB, dtype=torch.float64)
    for k, matrix in enumerate(made.component.weight.view(3, WIDTH, WIDTH)):
        probabilities += shares[..., k : k + 1] * (torch.tanh(x @ matrix.T) @ made.weight.T).softmax(-1)
    torch.testing.assert_close(made.logits(hidden).exp(), probabilities)
    assert made.mixing_flops(7) == 2 * 2 * VOCAB * WIDTH


def test_mixture_can_have_a_higher_rank_than_the_width() -> None:
    vectors = torch.randn(200, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    ranks = [
        int(torch.linalg.matrix_rank(filled(config).logits(vectors).log_softmax(-1)))
        for config in (SoftmaxHeadConfig(), MixtureHeadConfig(components=5))
    ]
    assert ranks == [WIDTH + 1, VOCAB]  # of log odds: one more than the width for the sum


def test_adaptive_equals_the_one_of_torch() -> None:
    clusters = (ClusterConfig(size=9), ClusterConfig(size=8, width=3), ClusterConfig(width=1))
    ours, (hidden, targets) = filled(AdaptiveHeadConfig(clusters=clusters)), data()
    theirs = nn.AdaptiveLogSoftmaxWithLoss(WIDTH, VOCAB, cutoffs=[9, 17], div_value=2.0).double()
    with torch.no_grad():
        theirs.head.weight.copy_(torch.cat((ours.clusters[0].weight, ours.tails)))
        for tail, cluster in zip(theirs.tail, list(ours.clusters)[1:], strict=True):
            tail[0].weight.copy_(cluster.map.weight.T)
            tail[1].weight.copy_(cluster.weight)
    flat = hidden.flatten(0, 1)
    torch.testing.assert_close(ours.logits(flat), theirs.log_prob(flat))
    torch.testing.assert_close(ours.nll(hidden, targets).flatten(), -theirs(flat, targets.flatten()).output)


def test_clustered_head_is_the_adaptive_input_turned_round() -> None:
    made, hidden = filled(ClusteredHeadConfig(clusters=CLUSTERS)), data()[0]
    table = AdaptiveEmbeddingConfig(clusters=CLUSTERS).build(VOCAB, WIDTH, Place()).double()
    for mine, other in zip(table.clusters, made.clusters, strict=True):
        mine.load_state_dict(other.state_dict())
    vectors = table(torch.arange(VOCAB)[None], Context())[0]
    torch.testing.assert_close(made.logits(hidden), hidden @ vectors.T)


def test_adaptive_never_meets_a_cluster_that_no_target_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    made, met = filled(HEADS["adaptive"]), []
    for i, cluster in enumerate(made.clusters):
        scores = cluster.scores
        monkeypatch.setattr(cluster, "scores", lambda x, i=i, scores=scores: met.append((i, len(x))) or scores(x))
    made.nll(data()[0].flatten(0, 1)[:5], torch.tensor([0, 8, 9, 3, 27]))
    assert met == [(0, 5), (1, 1), (2, 0), (3, 1)]


def test_with_a_share_each_tail_learns_from_the_first_of_a_row_only() -> None:
    whole, some = (filled(AdaptiveHeadConfig(clusters=CLUSTERS, share=s)) for s in (None, 0.25))
    hidden, _ = data()
    targets = torch.tensor([[9, 10, 11, 0, 20, 12, 21]] * 4)  # tails 1 1 1 - 2 1 2; two of seven are kept
    full = whole.nll(hidden, targets)
    assert math.ceil(0.25 * 7) == 2
    kept = torch.tensor([True, True, False, True, True, False, True])
    got = some.train().nll(hidden, targets)
    torch.testing.assert_close(got[:, kept], full[:, kept])
    first_tail = -some.shortlist(hidden).log_softmax(-1)[..., 9]  # a dropped target still costs finding its cluster
    torch.testing.assert_close(got[:, ~kept], first_tail[:, ~kept])
    torch.testing.assert_close(some.eval().nll(hidden, targets), full)
    with pytest.raises(ConfigError, match="share: want above 0"):
        AdaptiveHeadConfig(clusters=CLUSTERS, share=0.0)

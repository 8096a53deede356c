"""Pointer-generator head: its mixture is the formula's, its loss that of its logits, and it copies unseen tokens."""

import json
from typing import Any

import pytest
import torch
from laws.cases import ATTENTION, BLOCK, CHANNEL, VOCAB, around, encoder, ids, loud, pair, tower
from torch import Tensor
from torch.nn import functional as F

from heddle.core import ConfigError, decode, encode, replace
from heddle.decoding import generation_config
from heddle.decoding.generation import generate
from heddle.models.networks import EncoderDecoder, EncoderDecoderConfig, ModelConfig
from heddle.models.presets import PresetConfig
from heddle.nn.base import Context
from heddle.nn.ends import HeadConfig, PointerGeneratorHeadConfig, SoftmaxHeadConfig, head
from heddle.nn.outputs import MaskedTokenOutputConfig
from heddle.nn.stack import ChainConfig, PoolConfig

LENGTHS = torch.tensor([9, 4, 1])
COPYING = PointerGeneratorHeadConfig(bias=True, inner=5)


def pointed(config: HeadConfig = COPYING) -> tuple[EncoderDecoder, Tensor, Tensor, Tensor]:
    """Return a model, sources, targets and the outputs that its head reads."""
    model: EncoderDecoder = loud(pair(head=config)).model
    source, target = ids(3, 9), ids(3, 6, seed=1)
    return model, source, target, model(target, Context(memory=model.encode(source, LENGTHS)))


def mixture(model: Any, source: Tensor, target: Tensor, row: int) -> Tensor:
    """Return the distribution after the last token of a row, by the paper's formula, one source position at a time."""
    length = int(LENGTHS[row])
    memory = model.encode(source[row : row + 1, :length])
    plain = EncoderDecoder(replace(model.config, head=SoftmaxHeadConfig()))  # the same towers, without the pointer
    plain.double().eval().load_weights(
        {n: w for n, w in model.weights().items() if not n.startswith("head.")}
        | {"head.weight": model.head.weight.data}
    )
    h = plain(target[row : row + 1], Context(memory=plain.encode(source[row : row + 1, :length])))[0, -1]
    m, own = memory.layers[-1][0], model.head
    scores = [(own.query.weight @ h) @ (own.key.weight @ one) / 5**0.5 for one in m]
    a = torch.stack(scores).softmax(0)
    g = torch.sigmoid(own.gate.weight[0] @ torch.cat((h, a @ m)) + own.gate.bias[0])
    p: Tensor = g * (own.weight @ h + own.bias).softmax(0)
    for i in range(length):
        p[source[row, i]] += (1 - g) * a[i]
    return p


@torch.no_grad()
def test_the_distribution_is_that_of_the_paper() -> None:
    model, source, target, outputs = pointed()
    logits = model.head.logits(outputs)
    torch.testing.assert_close(logits.logsumexp(-1), torch.zeros(3, 6, dtype=torch.float64))
    for row in range(3):
        torch.testing.assert_close(logits[row, -1].exp(), mixture(model, source, target, row))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1 << 27, 200])
def test_loss_and_gradients_are_those_of_the_logits(
    smoothing: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "CHUNK", chunk)
    model, source, target, _ = pointed()
    weights = list(model.trainable().values())
    grads = []
    for own in (True, False):
        outputs = model(target, Context(memory=model.encode(source, LENGTHS)))
        if own:
            loss = model.head.nll(outputs, target, smoothing)
        else:
            logits = model.head.logits(outputs).flatten(0, 1)
            loss = F.cross_entropy(logits, target.flatten(), reduction="none", label_smoothing=smoothing).view(3, 6)
        grads.append((loss, torch.autograd.grad(loss.sin().sum(), weights, allow_unused=True)))
    torch.testing.assert_close(grads[0][0], grads[1][0])
    torch.testing.assert_close(grads[0][1], grads[1][1])


@torch.no_grad()
def test_a_token_that_neither_way_makes_likely_has_a_finite_loss() -> None:
    model, source, target, _ = pointed()
    model.head.get_submodule("gate").bias.fill_(-1e4)  # copies always
    outputs = model(target, Context(memory=model.encode(source, LENGTHS)))
    absent = torch.full_like(target, next(n for n in range(VOCAB) if not (source == n).any()))
    assert model.head.nll(outputs, absent).isfinite().all()


@torch.no_grad()
def test_half_precision_keeps_ids_exact() -> None:
    config = replace(pair(head=COPYING), vocab=70_001)
    model = config.build().eval()
    model.compute = torch.bfloat16
    source = torch.tensor([[69_999, 70_000, 4_097]])
    outputs = model(source, Context(memory=model.encode(source)))
    assert outputs.dtype == torch.float32
    assert (model.head.split(outputs).ids == source).all()  # type: ignore[operator]


def test_it_fits_a_preset_by_one_edit_and_keeps_its_tied_table() -> None:
    for name in ("transformer_pre_norm", "seq2seq_attention"):
        preset = PresetConfig(name=name, layers=1, width=16, vocab=30, context=8)
        config = preset.with_override("head", "pointer_generator")
        model: Any = config.build()
        assert model.head.weight is model.encoder.embedding.weight
        assert decode(ModelConfig, json.loads(json.dumps(encode(model.config)))) == model.config


def test_a_head_that_copies_is_refused_where_there_is_no_source() -> None:
    with pytest.raises(ConfigError, match="head: want one that does not copy, because there is no source"):
        replace(around(ATTENTION, CHANNEL), head=PointerGeneratorHeadConfig())
    with pytest.raises(ConfigError, match="head: want one that does not copy, because there is no source"):
        encoder(outputs=(MaskedTokenOutputConfig(head=PointerGeneratorHeadConfig()),)).build()
    pooled = replace(tower(ATTENTION), plan=ChainConfig(bodies=(BLOCK, PoolConfig(), BLOCK)))
    with pytest.raises(ConfigError, match="head: want one that does not copy, because an encoder that pools"):
        pair(pooled, head=PointerGeneratorHeadConfig())


# --- it copies what it never learned to write -------------------------------------------------------------------------

TOKENS, RARE, LENGTH = 1000, 50, 4
SEPARATOR, END = TOKENS, TOKENS + 1


def edits(rows: int, low: int, high: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return sources (a token, the separator, a prototype) and targets: the prototype, its first token replaced.

    A prototype has two kinds of tokens, so that what comes next is known by its position, not by the token before it.
    """
    wanted = torch.randint(8, (rows, 1), generator=draw)
    kinds = torch.randint(low, high, (rows, 2), generator=draw)
    prototype = kinds.gather(1, torch.randint(2, (rows, LENGTH), generator=draw))
    separator, end = torch.full((rows, 1), SEPARATOR), torch.full((rows, 1), END)
    source = torch.cat((wanted, separator, prototype, end), 1)
    return source, torch.cat((wanted, prototype[:, 1:], end), 1)


def editor(family: str, own: HeadConfig) -> EncoderDecoderConfig:
    heads = 4 if family == "transformer_pre_norm" else None
    preset = PresetConfig(name=family, layers=1, width=32, heads=heads, vocab=TOKENS + 2, context=16, dropout=0.0)
    return replace(preset.expand(), head=own)  # type: ignore[return-value]


def learned(config: EncoderDecoderConfig, steps: int = 300) -> EncoderDecoder:
    """Train an editor on prototypes of frequent tokens alone."""
    model: EncoderDecoder = config.build(seed=1)
    optimizer, draw = torch.optim.Adam(model.parameters(), lr=5e-3), torch.Generator().manual_seed(0)
    for _ in range(steps):
        source, target = edits(64, 0, TOKENS - RARE, draw)
        inputs = torch.cat((torch.full((64, 1), END), target[:, :-1]), 1)
        loss = model.head.nll(model(inputs, Context(memory=model.encode(source))), target).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def exact(model: EncoderDecoder, low: int, high: int, beams: int = 1) -> float:
    """Return the share of prototypes of some tokens that are edited without a fault."""
    source, target = edits(60, low, high, torch.Generator().manual_seed(7))
    config = generation_config({"max_tokens": LENGTH + 1, "beams": beams}).with_special_tokens(END, (END,))
    found = generate(model, [[END]] * len(source), config, source.tolist())
    return sum(row == wanted for row, wanted in zip(found, target.tolist(), strict=True)) / len(found)


@pytest.mark.parametrize("family", ["transformer_pre_norm", "seq2seq_attention"])
def test_only_an_editor_that_copies_writes_tokens_that_it_has_never_seen(family: str) -> None:
    copying, plain = (learned(editor(family, own)) for own in (PointerGeneratorHeadConfig(), SoftmaxHeadConfig()))
    assert exact(copying, 0, TOKENS - RARE) > 0.9
    assert exact(copying, TOKENS - RARE, TOKENS) > 0.5
    assert exact(copying, TOKENS - RARE, TOKENS, beams=3) > 0.5
    assert exact(plain, TOKENS - RARE, TOKENS) == 0.0

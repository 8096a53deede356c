"""Quantization: int8 and int4 matrices are close to the floats by their own rounding, and cannot be trained."""

import pytest
import torch
from laws.cases import own_presets, small_preset
from torch import Tensor
from torch.nn import functional as F

from heddle.core import UsageError
from heddle.models.networks import Model
from heddle.models.presets import build
from heddle.models.surgery import lora
from heddle.nn.base.linear import FusedLinear
from heddle.nn.channels.routing import Router
from heddle.nn.quantization import Int8Linear, QuantizedLinear, is_quantized, quantize_model
from heddle.nn.quantization.quantized_linear import (
    GROUP,
    CpuInt4Linear,
    Int4Linear,
    PortableInt4Linear,
    dequantize_int4,
    int4_linear,
    quantize_int4,
)

BF16 = 2**-8  # the largest relative step of bfloat16
KINDS = ["int8", "int4"]


def matrix(outputs: int = 48, inputs: int = 96, seed: int = 0) -> Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))


def llama(vocab: int = 2048) -> Model:
    model = build("llama", layers=2, width=64, heads=4, kv_heads=2, hidden=96, vocab=vocab, context=64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)  # probabilities that are not nearly uniform
    return model.eval()


def test_eight_bits_lie_within_half_a_step_of_each_row() -> None:
    weight = matrix()
    step = weight.abs().amax(1, keepdim=True) / 127
    assert ((Int8Linear(weight).dequantize() - weight).abs() <= step * (0.5 + 127 * BF16 / 2)).all()


def test_four_bits_lie_within_half_a_step_of_each_group() -> None:
    weight = matrix()
    groups = weight.unflatten(1, (-1, GROUP))
    least, most = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    off = (dequantize_int4(quantize_int4(weight)).unflatten(1, (-1, GROUP)) - groups).abs()
    slack = torch.maximum(least.abs(), most.abs()) * BF16  # scales and zeros are bfloat16
    assert (off <= (most - least) / 15 * 0.5 + slack).all()


def test_codes_of_four_bits_come_back_from_what_they_stand_for() -> None:
    codes = torch.randint(0, 16, (32, 64), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    codes[:, ::GROUP], codes[:, 1::GROUP] = 0, 15  # as blocks of ggml have them
    scale, floor = torch.rand(32, 2).half().float() + 0.01, torch.randn(32, 2).half().float()
    weight = (codes.unflatten(1, (-1, GROUP)) * scale[..., None] + floor[..., None]).flatten(1)
    assert torch.equal(quantize_int4(weight).codes, codes)


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_int4_kernel_computes_what_is_dequantized(rows: int) -> None:
    of, x = quantize_int4(matrix()), torch.randn(rows, 96, generator=torch.Generator().manual_seed(2))
    fast, plain = CpuInt4Linear(of).matmul(x), PortableInt4Linear(of).matmul(x.bfloat16().float())
    assert (fast.float() - plain).abs().max() <= plain.abs().max() * BF16


@pytest.mark.parametrize("inputs", [8, 24, 96, 100])  # torch's kernel is right for multiples of 16 only
@pytest.mark.parametrize("rows", [1, 3, 16, 17])
def test_int8_product_computes_what_is_dequantized(rows: int, inputs: int) -> None:
    quantized = Int8Linear(matrix(inputs=inputs))
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(2))
    plain = F.linear(x.bfloat16().float(), quantized.dequantize())
    assert (quantized.matmul(x).float() - plain).abs().max() <= plain.abs().max() * 2 * BF16


def test_one_row_for_a_compiler_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    quantized, x = Int8Linear(matrix()), torch.randn(1, 96, generator=torch.Generator().manual_seed(2))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    compiled = quantized.matmul(x)
    plain = F.linear(x.bfloat16().float(), quantized.dequantize())
    assert (compiled - plain).abs().max() <= plain.abs().max() * 1e-5


def test_bias_is_added_and_shape_kept() -> None:
    quantized, x, bias = Int8Linear(matrix()), torch.randn(2, 5, 96), torch.randn(48)
    y = quantized(x, torch.empty(0), bias)
    assert y.shape == (2, 5, 48)
    assert torch.allclose(y - bias, quantized(x, torch.empty(0), None), atol=1e-5)


def test_four_bits_need_groups_and_rows_that_fit() -> None:
    assert isinstance(int4_linear(matrix(48, 96)), Int4Linear)
    assert isinstance(int4_linear(matrix(40, 96)), Int8Linear)
    assert isinstance(int4_linear(matrix(48, 80)), Int8Linear)


def test_a_row_of_zeros_stays_zero() -> None:
    weight = matrix()
    weight[3] = 0
    for quantized in (Int8Linear(weight), int4_linear(weight)):
        assert quantized.dequantize()[3].abs().max() == 0


# --- whole models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_quantized_model_is_close_to_the_float_one(kind: str) -> None:
    model, ids = llama(), torch.arange(40)[None] * 7
    with torch.no_grad():
        want = model.logits(ids).double().log_softmax(-1)
        quantize_model(model, kind)
        got = model.logits(ids).double().log_softmax(-1)
    divergence = (want.exp() * (want - got)).sum(-1).mean()
    assert 0 < divergence < (2e-3 if kind == "int8" else 3e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_quantized_model_decodes_from_a_state_as_it_reads_whole_rows(kind: str) -> None:
    model, ids = llama(), torch.randint(0, 2048, (2, 24), generator=torch.Generator().manual_seed(3))
    quantize_model(model, kind)
    with torch.no_grad():
        whole = model.logits(ids)
        state, found = model.new_state(2, 24), []
        for start, stop in ((0, 17), *((i, i + 1) for i in range(17, 24))):
            vectors, state = model.step(ids[:, start:stop], state)
            found.append(model.head.logits(vectors))
    assert (torch.cat(found, dim=1) - whole).abs().max() <= whole.abs().max() * 4 * BF16


def test_packing_frees_the_floats_and_packs_a_tied_matrix_once() -> None:
    model = build("gpt2", layers=2, width=64, heads=4, vocab=2048, context=32)
    before = sum(p.untyped_storage().nbytes() for p in model.parameters())
    count = quantize_model(model, "int8")
    held = {id(m): m.nbytes() for m in model.modules() if isinstance(m, QuantizedLinear)}
    after = sum(held.values()) + sum(p.untyped_storage().nbytes() for p in model.parameters())
    assert count == 2 * 6 + 1  # maps of each layer, and the table that the head shares
    assert len(held) == 2 * 4 + 1  # queries, keys and values lie fused
    assert after < 0.3 * before
    assert model.embedding.table.int8 is model.head.kernel


def test_quantized_weights_keep_shape_and_device() -> None:
    model = llama()
    shapes = {name: p.shape for name, p in model.named_parameters()}
    quantize_model(model, "int4")
    assert {name: p.shape for name, p in model.named_parameters()} == shapes
    assert all(p.device.type == "cpu" for p in model.parameters())


def test_untied_tables_are_quantized_and_small_ones_are_not() -> None:
    model = build("gpt2", layers=1, width=64, heads=4, vocab=512, context=32)
    quantize_model(model, "int8")
    assert model.head.kernel is None  # a table of few ids is left, and the head with it
    assert not model.embedding.weight.isnan().any()


def test_routers_are_not_quantized() -> None:
    model = small_preset(own_presets()["mixtral"] if "mixtral" in own_presets() else own_presets()["switch"]).build()
    quantize_model(model, "int8")
    routers = [m for m in model.modules() if isinstance(m, Router)]
    assert routers
    assert all(router.scores.kernel is None for router in routers)


def test_linears_fused_before_are_freed_too() -> None:
    from heddle.nn.base import fuse_linears

    model = llama()
    fuse_linears(model)
    quantize_model(model, "int8")
    assert all(module.fused_weight is None for module in model.modules() if isinstance(module, FusedLinear))


def test_quantized_model_refuses_training() -> None:
    model = llama()
    quantize_model(model, "int8")
    with pytest.raises(UsageError, match="cannot be trained"):
        model.train()
    assert not any(p.requires_grad for p in model.parameters())


def test_quantized_model_refuses_to_be_saved() -> None:
    model = llama()
    quantize_model(model, "int8")
    assert is_quantized(model)
    for saving in (model.weights, model.state_dict):
        with pytest.raises(UsageError, match="cannot be saved"):
            saving()


def test_adapters_must_be_merged_first() -> None:
    model = lora(rank=2)(llama().config.expand()).build()
    with pytest.raises(UsageError, match="merge adapters before quantizing"):
        quantize_model(model, "int8")


@pytest.mark.parametrize("kind", KINDS)
def test_a_cast_of_the_model_keeps_codes_and_scales(kind: str) -> None:
    model, ids = llama(), torch.arange(12)[None] * 7
    quantize_model(model, kind)
    before = [
        buffer for module in model.modules() if isinstance(module, QuantizedLinear) for buffer in module.buffers()
    ]
    with torch.no_grad():
        want = model.logits(ids)
        model.bfloat16().float()
        assert (model.logits(ids) - want).abs().max() <= want.abs().max() * 4 * BF16  # norms alone were rounded
    after = [buffer for module in model.modules() if isinstance(module, QuantizedLinear) for buffer in module.buffers()]
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert sum(p.untyped_storage().nbytes() for p in model.parameters()) < 5000  # what was freed stays so


def test_four_bits_for_a_cpu_do_not_leave_it() -> None:
    with pytest.raises(UsageError, match="quantize the model on meta"):
        int4_linear(matrix()).to("meta")
    assert Int8Linear(matrix()).to("meta").codes.device.type == "meta"


def test_a_warning_tells_where_four_bits_fit_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    quantize_model(build("gpt2", layers=1, width=40, heads=2, vocab=2048, context=32), "int4")
    quantize_model(build("lstm_lm", layers=1, width=40, vocab=64, context=32), "int8")
    quantize_model(llama(), "int4")
    assert [record.message.split(";")[0] for record in caplog.records] == [
        "weights: no matrix of this model fits 4 bits (inputs by 32, outputs by 16)",
        "weights: no matrix of this model can be quantized",
    ]

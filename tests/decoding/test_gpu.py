"""On a GPU: captured and compiled steps choose the ids of plain ones, kernels of our own compute what torch's do."""

import json
import subprocess
import sys

import pytest
import torch
from cli.runs import config
from torch.nn import functional as F

from heddle.core import replace
from heddle.decoding.generation import GenerationConfig, MultinomialSampling, complete, generate
from heddle.decoding.runtime import cuda_graphs, make_requests
from heddle.decoding.speculative import LookupDraft, ModelDraft, speculate
from heddle.models.presets import build, preset
from heddle.nn.kernels import dispatch as kernels
from heddle.nn.quantization import Bits, Int8Linear, quantize_model
from heddle.nn.quantization.quantized_linear import PortableInt4Linear, int4_linear

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
FAMILIES = ["first", "gpt2", "window_lm", "rnn_lm", "gru_lm", "lstm_lm", "awd_lstm", "mogrifier_lm", "qrnn_lm"]
GPU = torch.device("cuda")
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
WINDOW = {"layers": 2, "width": 16, "heads": 2, "kv_heads": 1, "hidden": 32, "vocab": 50, "context": 64, "window": 5}


@pytest.mark.parametrize("name", FAMILIES)
def test_captured_steps_choose_the_ids_of_plain_ones(name: str) -> None:
    model = config(name).build(1).eval().to(GPU)
    for generation in (
        GenerationConfig(max_tokens=40),
        GenerationConfig(max_tokens=40, strategy=MultinomialSampling(seed=2), samples=2),
    ):
        plain = complete(model, make_requests(PROMPTS), replace(generation, compile="off"))
        assert complete(model, make_requests(PROMPTS), generation) == plain
        stop = plain[0].ids[7]
        ended = complete(model, make_requests(PROMPTS), replace(generation, compile="off", stop=(stop,)))
        assert complete(model, make_requests(PROMPTS), replace(generation, stop=(stop,))) == ended


@pytest.mark.parametrize("name", ["first", "gpt2", "lstm_lm"])
def test_steps_of_these_families_are_graphs(name: str) -> None:
    model = config(name).build(1).eval().to(GPU)
    generate(model, PROMPTS, GenerationConfig(max_tokens=40))
    (kept,) = cuda_graphs._CACHED[model].values()
    assert all(graph.graph is not None for graph in kept.graphs)


def test_steps_are_captured_anew_where_weights_have_moved() -> None:
    model, generation = config("first").build(1).eval().to(GPU), GenerationConfig(max_tokens=40)
    generate(model, PROMPTS, generation)
    with torch.no_grad():
        for weight in model.parameters():
            weight.data = weight.data * 1.5  # elsewhere
    assert generate(model, PROMPTS, generation) == generate(model, PROMPTS, replace(generation, compile="off"))


@pytest.mark.parametrize("name", ["first", "gpt2", "mistral-7b", "lstm_lm"])
def test_captured_readings_of_proposals_write_what_plain_steps_write(name: str) -> None:
    made = preset(name).config(**WINDOW) if name == "mistral-7b" else config(name)
    model, other = (made.build(seed).eval().to(GPU) for seed in (1, 2))
    generation = GenerationConfig(max_tokens=40)
    plain = generate(model, PROMPTS, replace(generation, compile="off"))
    for draft in (LookupDraft(), ModelDraft(model=other, ahead=3)):
        rows: list[list[int]] = [[] for _ in PROMPTS]
        for step in speculate(model, make_requests(PROMPTS), generation, draft):
            assert step.id is not None
            rows[step.row].append(step.id)
        assert rows == plain
    graphs = [graph.graph for kept in cuda_graphs._CACHED.get(model, {}).values() for graph in kept.graphs]
    assert all(graph is not None for graph in graphs) and bool(graphs) == (name != "lstm_lm")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(1, 32, 8, 1024, 64), (3, 12, 12, 100, 64), (2, 8, 2, 70, 80), (64, 32, 8, 300, 64)])
@torch.inference_mode()
def test_one_query_over_the_filled_part_equals_masked_attention(dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    batch, heads, kv, places, width = sizes
    query = torch.randn(batch, heads, 1, width, device=GPU).to(dtype)
    key, value = torch.randn(2, batch, kv, places + 1, width, device=GPU).to(dtype)[..., :-1, :]
    lengths = torch.randint(places, (batch,), device=GPU)
    lengths[0], lengths[-1] = places - 1, 0
    key[-1, :, 1:], value[-1, :, 1:] = torch.nan, torch.nan  # what is not filled is not read
    assert kernels.supports_flash_decoding(query, key, value)
    found = kernels.flash_decode(query, key, value, lengths, width**-0.5)
    allowed = (torch.arange(places, device=GPU) <= lengths[:, None])[:, None, None]
    clean = [t.nan_to_num(0).double().repeat_interleave(heads // kv, 1) for t in (key, value)]
    wanted = F.scaled_dot_product_attention(query.double(), *clean, attn_mask=allowed)
    assert (found.double() - wanted).norm() / wanted.norm() < (1e-6 if dtype is torch.float32 else 5e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(3072, 2048), (100, 768), (2048, 8192), (31, 11_008)])
@torch.inference_mode()
def test_products_of_few_vectors_equal_torch(dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    matrix = torch.randn(sizes, device=GPU).to(dtype)
    for few in (1, 2):
        x = torch.randn(few, 1, sizes[1], device=GPU).to(dtype)
        assert kernels.uses_gemv(x, matrix)
        wanted = F.linear(x.double(), matrix.double())
        found = kernels.gemv_linear(x, matrix).double()
        assert (found - wanted).norm() / wanted.norm() < (1e-6 if dtype is torch.float32 else 5e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(3072, 2048), (112, 768), (112, 576), (2048, 8192), (48, 11_008), (64, 96)])
@torch.inference_mode()
def test_products_with_packed_matrices_equal_those_written_out(dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    weight = torch.randn(sizes, device=GPU)
    for packed in (Int8Linear(weight), int4_linear(weight)):
        for count in (1, 2, 3, 16, 64, 200):
            x = torch.randn(count, sizes[1], device=GPU).to(dtype)
            wanted = F.linear(x.double(), packed.dequantize().double())
            found = packed.matmul(x).double()
            assert (found - wanted).norm() / wanted.norm() < (1e-5 if dtype is torch.float32 else 5e-3)


@torch.inference_mode()
def test_packed_matrices_have_kernels_for_few_vectors_and_for_many() -> None:
    weight = torch.randn(256, 512, device=GPU)
    eight, four = Int8Linear(weight), int4_linear(weight)
    assert isinstance(four, PortableInt4Linear)
    for count in (1, 2, 3, 64):
        x = torch.randn(count, 512, device=GPU, dtype=torch.bfloat16)
        assert kernels.uses_quantized_gemm(x, eight.codes, eight.scales)
        assert kernels.uses_quantized_gemm(x, four.codes, four.scales)
    x = torch.randn(kernels.MAX_GEMM_ROWS + 1, 512, device=GPU, dtype=torch.bfloat16)
    assert not kernels.uses_quantized_gemm(x, eight.codes, eight.scales)


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("rows", [1, 6])
def test_captured_steps_of_packed_models_choose_the_ids_of_plain_ones(weights: Bits, rows: int) -> None:
    model = build("llama", layers=2, width=256, heads=8, kv_heads=2, hidden=512, vocab=2048, context=512)
    model = model.eval().to(GPU, torch.bfloat16)
    quantize_model(model, weights)
    prompts, generation = [[7, 8, 9 + row] for row in range(rows)], GenerationConfig(max_tokens=60)
    assert generate(model, prompts, generation) == generate(model, prompts, replace(generation, compile="off"))


COMPILED = """
import json
import torch
from heddle.core import replace
from heddle.decoding.generation import GenerationConfig, generate
from heddle.models.presets import build, preset

found = []
for rows in (1, 6):
    model = build("llama", layers=2, width=256, heads=8, kv_heads=2, hidden=512, vocab=500, context=512).eval().cuda()
    prompts, config = [[7, 8, 9 + row] for row in range(rows)], GenerationConfig(max_tokens=200, compile="on")
    found.append(generate(model, prompts, config) == generate(model, prompts, replace(config, compile="off")))
print(json.dumps(found))
"""


def test_compiled_steps_choose_the_ids_of_plain_ones() -> None:
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [True, True]


def test_generation_in_half_precision_runs_as_a_graph() -> None:
    model = build("llama", layers=2, width=256, heads=8, kv_heads=2, hidden=512, vocab=500, context=512)
    model = model.eval().to(GPU, torch.bfloat16)
    assert [len(ids) for ids in generate(model, [[1]] * 5, GenerationConfig(max_tokens=300))] == [300] * 5

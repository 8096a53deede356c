"""The law of families, over every case of every one that writes: logits, greedy continuations and beams as
`transformers` gives them, and a way back without a word. What is particular to a family has a file of its own."""

from pathlib import Path

import pytest
import transformers as hf
from checkpoints.hf.harness import (
    CONTEXT,
    END,
    VOCAB,
    Case,
    Pair,
    check_back,
    check_generation,
    check_logits,
    meet,
    variants,
)
from checkpoints.hf.pair_cases import PAIRS
from checkpoints.hf.test_families_decoders import CASES as MORE_DECODERS
from checkpoints.hf.test_families_deepseek import CASES as DEEPSEEKS
from checkpoints.hf.test_families_experts import CASES as EXPERTS
from checkpoints.hf.test_families_gemma import CASES as GEMMAS

GPT2 = {
    "vocab_size": VOCAB, "n_positions": CONTEXT, "n_embd": 30, "n_layer": 2, "n_head": 5, "bos_token_id": 0,
    "eos_token_id": END,
}  # fmt: skip
LLAMA = {
    "vocab_size": VOCAB, "hidden_size": 36, "intermediate_size": 50, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 3, "max_position_embeddings": CONTEXT, "bos_token_id": 0, "eos_token_id": END,
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}

DECODERS = [
    *variants(
        hf.OpenAIGPTLMHeadModel, GPT2,
        five_heads={},
        relu={"n_head": 3, "afn": "relu", "layer_norm_epsilon": 1e-3},
        one_head={"n_head": 1, "n_layer": 3, "n_embd": 60, "afn": "silu"},
    ),
    *variants(
        hf.GPT2LMHeadModel, GPT2,
        five_heads={},
        inner={"n_inner": 44, "n_head": 3, "activation_function": "relu", "layer_norm_epsilon": 1e-3},
        one_head={"n_head": 1, "n_layer": 3, "activation_function": "gelu"},
    ),
    *variants(
        hf.LlamaForCausalLM, LLAMA,
        first={"num_key_value_heads": 6, "rms_norm_eps": 1e-6},
        second={"rms_norm_eps": 1e-5, "num_key_value_heads": 1, "tie_word_embeddings": True},
        third={"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "head_dim": 10},
        scaled={"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 16}, "mlp_bias": True},
        linear={"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}, "attention_bias": True},
        yarn={"rope_parameters": YARN},
        yarn_told={"rope_parameters": YARN | {"beta_fast": 8.0, "beta_slow": 2.0, "attention_factor": 1.2}},
    ),
    *variants(
        hf.MistralForCausalLM, LLAMA,
        window={"sliding_window": 7, "head_dim": 10},
        narrow={"sliding_window": 20, "tie_word_embeddings": True, "num_key_value_heads": 1},
        whole={"sliding_window": None, "num_key_value_heads": 6},
    ),
    *variants(
        hf.Qwen3ForCausalLM, LLAMA,
        wide_heads={"head_dim": 10, "tie_word_embeddings": True},
        biased={"attention_bias": True, "head_dim": 6},
        scaled={"rope_parameters": YARN, "num_key_value_heads": 1, "head_dim": 8},
    ),
]  # fmt: skip
CASES = [*DECODERS, *MORE_DECODERS, *GEMMAS, *EXPERTS, *DEEPSEEKS, *PAIRS]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    case: Case = request.param
    return meet(case, tmp_path_factory.mktemp(case.name))


def test_logits_equal_transformers(pair: Pair) -> None:
    check_logits(pair)


def test_greedy_continuation_with_a_cache_equals_transformers(pair: Pair) -> None:
    check_generation(pair)


def test_they_load_what_is_saved_here_without_a_word(pair: Pair, tmp_path: Path) -> None:
    check_back(pair, tmp_path)


@pytest.mark.parametrize("pair", PAIRS, indirect=True, ids=lambda case: case.name)
def test_four_beams_equal_transformers(pair: Pair) -> None:
    check_generation(pair, beams=4, tokens=10)

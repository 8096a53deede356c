"""GPT-NeoX, OPT, Qwen2, Phi-3, OLMo 2 and Apertus: logits and greedy decoding as in `transformers`, and saved again."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers as hf
from checkpoints.hf.harness import (
    CONTEXT,
    END,
    VOCAB,
    Case,
    check_close,
    check_logits,
    ids_of,
    meet,
    our_logits,
    retold,
    their_logits,
    variants,
)
from safetensors.torch import load_file, save_file

from heddle.checkpoints.hf import load_model, save_model
from heddle.core import ConfigError, DamageError, UsageError
from heddle.models.presets import build

SIZES = {
    "vocab_size": VOCAB, "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 6,
    "max_position_embeddings": CONTEXT, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": END,
}  # fmt: skip
LLAMA = SIZES | {"intermediate_size": 50, "num_key_value_heads": 3}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}


def rope(share: float, base: float = 1e4) -> dict[str, object]:
    return {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": share}


CASES = [
    *variants(
        hf.GPTNeoXForCausalLM, SIZES | {"intermediate_size": 50},
        beside={"rope_parameters": rope(0.34)},
        in_turn={"use_parallel_residual": False, "tie_word_embeddings": True, "rope_parameters": rope(1.0, 500.0)},
        unbiased={
            "attention_bias": False, "hidden_act": "relu", "num_attention_heads": 1, "layer_norm_eps": 1e-3,
            "rope_parameters": rope(0.5),
        },
    ),
    *variants(
        hf.OPTForCausalLM, SIZES | {"ffn_dim": 50, "word_embed_proj_dim": 36},
        before={"num_attention_heads": 3},
        behind={"do_layer_norm_before": False, "word_embed_proj_dim": 20, "tie_word_embeddings": False},
        unbiased={"enable_bias": False, "activation_function": "gelu", "num_attention_heads": 1},
        narrow={"word_embed_proj_dim": 12},
    ),
    *variants(
        hf.Qwen2ForCausalLM, LLAMA,
        grouped={},
        tied={"tie_word_embeddings": True, "num_key_value_heads": 1, "rms_norm_eps": 1e-5},
        scaled={"rope_parameters": YARN, "num_key_value_heads": 6},
    ),
    *variants(
        hf.Phi3ForCausalLM, LLAMA,
        grouped={},
        part_rotary={"rope_parameters": rope(0.67, 500.0), "tie_word_embeddings": True},
        window={"sliding_window": 7, "num_key_value_heads": 6, "hidden_act": "gelu"},
    ),
    *variants(
        hf.Olmo2ForCausalLM, LLAMA,
        grouped={},
        biased={"attention_bias": True, "num_key_value_heads": 6, "rms_norm_eps": 1e-6},
        tied={"tie_word_embeddings": True, "num_key_value_heads": 1, "rope_parameters": YARN},
    ),
    *variants(
        hf.ApertusForCausalLM, LLAMA | {"hidden_act": "relu2", "rope_parameters": rope(1.0)},
        grouped={"num_key_value_heads": 3, "head_dim": 8},
        biased={"attention_bias": True, "rms_norm_eps": 1e-6, "hidden_act": "gelu", "num_key_value_heads": 6},
        tied={"tie_word_embeddings": True, "num_key_value_heads": 1, "rope_parameters": YARN},
    ),
]  # fmt: skip


NEOX, OPT, QWEN2, PHI3, APERTUS = CASES[0], CASES[3], CASES[7], CASES[10], CASES[-1]
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 3, "long_factor": [2.0] * 3}


def test_older_configs_of_gpt_neox_say_the_same(tmp_path: Path) -> None:
    now = meet(NEOX, tmp_path)
    gone = ("rope_parameters", "attention_bias", "tie_word_embeddings")
    retold(tmp_path, gone, rotary_pct=0.34, rotary_emb_base=10000, rope_scaling=None)
    assert load_model(tmp_path).config == now.ours.config


def test_a_body_saved_without_its_head_is_known_by_the_rest_of_its_names(tmp_path: Path) -> None:
    tied = {"vocab_size": VOCAB, "n_positions": CONTEXT, "n_embd": 30, "n_layer": 1, "n_head": 5}
    whole = hf.GPT2LMHeadModel(hf.GPT2Config(**tied)).eval()
    whole.transformer.save_pretrained(tmp_path)
    ids = ids_of(12)
    check_close(their_logits(whole, ids), our_logits(load_model(tmp_path), ids))


def test_tables_that_older_files_hold_are_left_out(tmp_path: Path) -> None:
    now = meet(NEOX, tmp_path)
    path, inner = tmp_path / "model.safetensors", "gpt_neox.layers.1.attention"
    old = {
        f"{inner}.bias": torch.ones(1),
        f"{inner}.masked_bias": torch.ones(1),
        f"{inner}.rotary_emb.inv_freq": torch.ones(3),
    }
    save_file(load_file(path) | old, path)
    check_logits(replace(now, ours=load_model(tmp_path)))
    save_file(load_file(path) | {f"{inner}.other": torch.ones(1)}, path)
    with pytest.raises(DamageError, match=r"unexpected tensor .*layers\.1\.attention\.other"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("case", "key", "value", "said"),
    [
        (PHI3, "rope_parameters", LONG, "rope_type: want one of default, linear, yarn, llama3, got 'longrope'"),
        (PHI3, "rope_parameters", YARN, "rope_type: want default, got 'yarn'"),
        (QWEN2, "use_sliding_window", True, "use_sliding_window: want False, got True"),
        (QWEN2, "rope_parameters", rope(0.5), "partial_rotary_factor: want 1, .* got 0.5"),
        (APERTUS, "hidden_act", "xielu", "hidden_act: want one of .*, got 'xielu'"),
        (OPT, "layer_norm_elementwise_affine", False, "layer_norm_elementwise_affine: want True, got False"),
    ],
)
def test_what_has_no_part_here_is_refused_by_name(
    case: Case, key: str, value: object, said: str, tmp_path: Path
) -> None:
    meet(case, tmp_path)
    retold(tmp_path, **{key: value})
    with pytest.raises(ConfigError, match=said):
        load_model(tmp_path)


def test_a_model_is_written_as_the_family_wanted_or_the_first_that_can(tmp_path: Path) -> None:
    model = build("llama", layers=1, width=12, heads=2, hidden=16, vocab=VOCAB, context=CONTEXT)
    assert save_model(model, tmp_path).name == "llama"
    assert save_model(model, tmp_path, wanted="phi3").name == "phi3"
    with pytest.raises(UsageError, match=r"the nearest, olmo2, has no counterpart for plan\.body\.branches\.0"):
        save_model(model, tmp_path, wanted="olmo2")
    with pytest.raises(ConfigError, match=r"family: want one of gpt2, .*, got 'phi'; did you mean 'phi3'"):
        save_model(model, tmp_path, wanted="phi")

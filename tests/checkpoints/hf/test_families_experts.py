"""Mixtral and Qwen3-MoE: as in `transformers`, and saved again without a warning."""

from pathlib import Path

import pytest
import torch
import transformers as hf
from checkpoints.hf.harness import (
    CONTEXT,
    END,
    VOCAB,
    Pair,
    check_close,
    check_logits,
    ids_of,
    our_logits,
    retold,
    their_logits,
    variants,
)
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from heddle.checkpoints.hf import load_model, save_model
from heddle.core import DamageError
from heddle.models.networks import AutoregressiveModel
from heddle.models.presets import build

SIZES = {
    "vocab_size": VOCAB, "hidden_size": 36, "intermediate_size": 52, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 3, "max_position_embeddings": CONTEXT, "pad_token_id": 0, "bos_token_id": 0,
    "eos_token_id": END,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}


CASES = [
    *variants(
        hf.MixtralForCausalLM, SIZES,
        two_of_five={"num_local_experts": 5},
        window={"num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 9, "tie_word_embeddings": True},
        all_of_four={"num_local_experts": 4, "num_experts_per_tok": 4, "head_dim": 8, "num_key_value_heads": 1},
    ),
    *variants(
        hf.Qwen3MoeForCausalLM, SIZES | {"moe_intermediate_size": 20, "num_experts": 6, "num_experts_per_tok": 3},
        odds={"head_dim": 10},
        normalized={"norm_topk_prob": True, "decoder_sparse_step": 2, "attention_bias": True, "head_dim": 6},
        some_dense={"mlp_only_layers": [0, 2], "tie_word_embeddings": True, "head_dim": 8, "num_key_value_heads": 1,
                    "rope_parameters": YARN},
    ),
]  # fmt: skip


@pytest.mark.parametrize("name", ["mixtral-two_of_five", "qwen3_moe-normalized"])
def test_experts_in_stacks_are_read_as_those_that_stand_alone(name: str, tmp_path: Path) -> None:
    (case,) = [case for case in CASES if case.name == name]
    theirs = case.build()
    theirs.save_pretrained(tmp_path, save_original_format=False)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert any(key.endswith("mlp.experts.gate_up_proj") for key in file.keys())  # noqa: SIM118 - not a mapping
    ours = load_model(tmp_path)
    assert isinstance(ours, AutoregressiveModel)
    check_logits(Pair(case, theirs, ours))


def test_an_expert_that_is_missing_is_named(tmp_path: Path) -> None:
    theirs = CASES[0].build()
    theirs.save_pretrained(tmp_path)
    path, gone = tmp_path / "model.safetensors", "model.layers.1.block_sparse_moe.experts.2.w3.weight"
    save_file({name: tensor for name, tensor in load_file(path).items() if name != gone}, path)
    with pytest.raises(DamageError, match=f"tensor {gone} is missing"):
        load_model(tmp_path)


def test_a_config_of_an_older_version_is_understood(tmp_path: Path) -> None:
    (case,) = [case for case in CASES if case.name == "qwen3_moe-odds"]
    theirs = case.build()
    theirs.save_pretrained(tmp_path)
    retold(tmp_path, {"num_local_experts"}, num_experts=6)
    ours = load_model(tmp_path)
    assert isinstance(ours, AutoregressiveModel)
    check_logits(Pair(case, theirs, ours))


def test_our_own_presets_go_out_and_come_back(tmp_path: Path) -> None:
    ours = build("mixtral-8x7b", layers=2, width=32, heads=4, kv_heads=2, hidden=24, experts=3, vocab=VOCAB, context=64)
    assert save_model(ours.eval(), tmp_path).name == "mixtral"
    again, ids = load_model(tmp_path), ids_of(20)
    assert isinstance(again, AutoregressiveModel)
    assert torch.equal(our_logits(ours, ids), our_logits(again, ids))
    check_close(our_logits(ours, ids), their_logits(hf.MixtralForCausalLM.from_pretrained(tmp_path).eval(), ids))

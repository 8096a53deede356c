"""DeepSeek-V3: logits and continuations as in `transformers`, and saved again without a warning."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from checkpoints.hf.harness import CONTEXT, END, VOCAB, Case, Pair, check_logits, meet, retold, variants

from heddle.checkpoints.hf import load_model, save_model
from heddle.core import ConfigError, UsageError, replace, swap
from heddle.models.networks import AutoregressiveModel
from heddle.nn.attention import LatentAttentionConfig

SIZES = {
    "vocab_size": VOCAB, "hidden_size": 36, "intermediate_size": 52, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 3, "max_position_embeddings": CONTEXT, "pad_token_id": 0, "bos_token_id": 0,
    "eos_token_id": END,
}  # fmt: skip
DEEPSEEK = SIZES | {
    "num_key_value_heads": 6, "moe_intermediate_size": 20, "n_routed_experts": 8, "n_shared_experts": 2,
    "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3, "first_k_dense_replace": 1, "q_lora_rank": 12,
    "kv_lora_rank": 14, "qk_rope_head_dim": 6, "qk_nope_head_dim": 8, "v_head_dim": 10,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}


class Telling(Case):
    """A case whose routers favour some experts, and whose attention is mild enough for single precision."""

    def build(self) -> hf.PreTrainedModel:
        model = super().build()
        draw = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for name, favour in model.named_buffers():
                if name.endswith("e_score_correction_bias"):
                    favour.copy_(0.3 * torch.randn(favour.shape, generator=draw))
            for name, query in model.named_parameters():
                if ".self_attn.q_" in name:
                    query *= 0.5
        return model


def telling(*arguments: Any, **changes: dict[str, Any]) -> list[Case]:
    """Return such a case for each change."""
    return [Telling(c.name, c.model, c.config, c.settings) for c in variants(*arguments, **changes)]


CASES = [
    *telling(
        hf.DeepseekV3ForCausalLM, DEEPSEEK,
        groups={},
        straight={"q_lora_rank": None, "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "rope_interleave": False,
                  "routed_scaling_factor": 1.5, "n_shared_experts": 1},
        biased={"attention_bias": True, "first_k_dense_replace": 0, "rms_norm_eps": 1e-4, "tie_word_embeddings": True},
        yarn={"first_k_dense_replace": 2, "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}},
        yarn_one={"num_attention_heads": 3, "num_key_value_heads": 3,
                  "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
]  # fmt: skip


def loaded(case: Case, folder: Path, gone: set[str], **new: Any) -> Pair:
    """Load a model of theirs whose config tells some things otherwise."""
    theirs = case.build()
    theirs.save_pretrained(folder)
    retold(folder, gone, **new)
    ours = load_model(folder)
    assert isinstance(ours, AutoregressiveModel)
    return Pair(case, theirs, ours)


def test_a_config_as_released_is_understood(tmp_path: Path) -> None:
    told = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 1.0}
    gone, more = {"rope_parameters", "rope_interleave"}, {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    check_logits(loaded(CASES[-1], tmp_path, gone, rope_scaling=told, rope_theta=10_000, **more))


def test_what_has_no_part_here_is_refused_by_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="scoring_func: want 'sigmoid', got 'softmax'"):
        loaded(CASES[-1], tmp_path, set(), scoring_func="softmax")


def test_experts_in_stacks_are_read_as_those_that_stand_alone(tmp_path: Path) -> None:
    theirs = CASES[0].build()
    theirs.save_pretrained(tmp_path, save_original_format=False)
    ours = load_model(tmp_path)
    assert isinstance(ours, AutoregressiveModel)
    check_logits(Pair(CASES[0], theirs, ours))


def test_a_scale_that_they_cannot_tell_is_refused_by_name(tmp_path: Path) -> None:
    config = meet(CASES[-1], tmp_path / "a").ours.config
    odd = swap(LatentAttentionConfig, lambda a: replace(a, scale=0.123456789123))(config)
    with pytest.raises(UsageError, match=r"deepseek_v3, has no counterpart for .*scale: 0.123"):
        save_model(odd.build(), tmp_path / "b")

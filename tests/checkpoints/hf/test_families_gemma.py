"""Gemma 2 and 3: logits and continuations as in `transformers`, and saved again without a warning."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from checkpoints.hf.harness import CONTEXT, END, VOCAB, Case, Pair, check_logits, ids_of, retold, variants
from safetensors.torch import load_file

from heddle.checkpoints.hf import load_model, load_weights, read_config, save_model
from heddle.core import ConfigError
from heddle.core.system import Hardware
from heddle.models.networks import AutoregressiveModel, LanguageModel
from heddle.nn.base import Context

GEMMA = {
    "vocab_size": VOCAB, "hidden_size": 36, "intermediate_size": 50, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 3, "max_position_embeddings": CONTEXT, "pad_token_id": 0, "bos_token_id": 0,
    "eos_token_id": END, "head_dim": 10, "sliding_window": 7, "query_pre_attn_scalar": 14,
}  # fmt: skip
PLAIN, LOCAL, GLOBAL = {"rope_type": "default", "rope_theta": 1e4}, "sliding_attention", "full_attention"
STRETCHED = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}


class Telling(Case):
    """A case whose layers say more than the id that they stand at."""

    def build(self) -> hf.PreTrainedModel:
        model = super().build()
        with torch.no_grad():
            for name, gain in model.named_parameters():
                if ".post_" in name:
                    gain += 6.0
        return model


def telling(*arguments: Any, **changes: dict[str, Any]) -> list[Case]:
    """Return such a case for each change."""
    return [Telling(c.name, c.model, c.config, c.settings) for c in variants(*arguments, **changes)]


CASES = [
    *telling(
        hf.Gemma2ForCausalLM, GEMMA,
        capped={"attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0},
        uncapped={"attn_logit_softcapping": None, "final_logit_softcapping": None, "query_pre_attn_scalar": 10,
                  "tie_word_embeddings": False, "attention_bias": True},
        one_kv_head={"num_key_value_heads": 1, "layer_types": [LOCAL, LOCAL, GLOBAL], "hidden_activation": "silu",
                     "rope_parameters": {"rope_type": "linear", "rope_theta": 5e4, "factor": 2.0}},
    ),
    *telling(
        hf.Gemma3ForCausalLM, GEMMA,
        stretched={"layer_types": [LOCAL, GLOBAL, LOCAL], "rope_parameters": {
            GLOBAL: STRETCHED, LOCAL: PLAIN}},
        all_near={"tie_word_embeddings": False, "attention_bias": True, "num_key_value_heads": 6},
        far={"layer_types": [GLOBAL] * 3, "final_logit_softcapping": 5.0, "query_pre_attn_scalar": 10,
             "rms_norm_eps": 1e-4},
    ),
]  # fmt: skip


def test_a_gemma_3_of_an_older_version_is_understood(tmp_path: Path) -> None:
    theirs = CASES[3].build()
    theirs.save_pretrained(tmp_path)
    gone = {"rope_parameters", "layer_types", "_sliding_window_pattern"}
    scaling = {"rope_type": "linear", "factor": 8.0}
    new = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": scaling, "sliding_window_pattern": 2}
    retold(tmp_path, gone, **new)
    ours = load_model(tmp_path)
    assert isinstance(ours, AutoregressiveModel)
    check_logits(Pair(CASES[3], theirs, ours))


def test_half_precision_goes_round_to_the_bit_and_embeds_as_transformers_does(tmp_path: Path) -> None:
    theirs = CASES[0].build().bfloat16()
    theirs.save_pretrained(tmp_path / "a")
    ours = load_model(tmp_path / "a", Hardware(torch.device("cpu"), torch.bfloat16))
    assert isinstance(ours, LanguageModel)
    ids = ids_of(20)
    assert torch.equal(ours.embedding(ids, Context()), theirs.get_input_embeddings()(ids))
    save_model(ours, tmp_path / "b")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("new", "line"),
    [
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention: want False, got True"),
        ({"layer_types": [LOCAL]}, "layer_types: want 3 of them, got 1"),
        ({"layer_types": [LOCAL, LOCAL, "chunked_attention"]}, "layer_types: 2: want one of"),
        ({"layer_types": [LOCAL, LOCAL, 3]}, "layer_types: 2: want one of"),
        ({"sliding_window": None}, "sliding_window: want a whole number"),
        ({"attn_logit_softcapping": 3.0}, "attn_logit_softcapping: want None"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_part_here_is_refused_by_key(new: dict[str, Any], line: str, tmp_path: Path) -> None:
    hf.Gemma3TextConfig(**GEMMA).save_pretrained(tmp_path)
    retold(tmp_path, **new)
    with pytest.raises(ConfigError, match=line):
        load_weights(read_config(tmp_path), {}, "config.json")

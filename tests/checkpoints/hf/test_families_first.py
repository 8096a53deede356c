"""What is particular to GPT (2018) and to Switch, beside the law of families."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from checkpoints.hf.harness import (
    BOUND,
    CONTEXT,
    PROMPT,
    VOCAB,
    Case,
    check_back,
    check_close,
    check_logits,
    ids_of,
    meet,
    our_logits,
    retold,
    their_logits,
    variants,
)
from checkpoints.hf.pair_cases import SWITCH as SIZES
from safetensors.torch import load_file, save_file

from heddle.checkpoints.hf import load_model, read_model_config, save_model
from heddle.core import ConfigError, UsageError, find
from heddle.models.networks import AutoregressiveModel, EncoderDecoder
from heddle.models.presets import build
from heddle.nn.base import Context
from heddle.nn.channels import DroplessConfig, ExpertsConfig, PerDocumentCapacityConfig

SMALL = {"vocab_size": VOCAB, "n_positions": CONTEXT, "n_embd": 30, "n_layer": 2, "n_head": 5}
GPT, SWITCH, FEW, APART, DENSE = (
    *variants(hf.OpenAIGPTLMHeadModel, SMALL, small={}),
    *variants(
        hf.SwitchTransformersForConditionalGeneration, SIZES,
        small={},
        few={"expert_capacity": 2},
        apart={"tie_word_embeddings": False},
        dense={"num_sparse_encoder_layers": 4, "num_sparse_decoder_layers": 3},
    ),
)  # fmt: skip
# as they lie on the hub, but for the sizes
OLD_GPT = {
    "afn": "gelu", "architectures": ["OpenAIGPTLMHeadModel"], "attn_pdrop": 0.1, "embd_pdrop": 0.1,
    "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "openai-gpt", "n_ctx": 512, "n_embd": 30,
    "n_head": 5, "n_layer": 2, "n_positions": CONTEXT, "n_special": 0, "predict_special_tokens": True,
    "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
    "summary_type": "cls_index", "summary_use_proj": True, "vocab_size": VOCAB,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
}  # fmt: skip
OLD_SWITCH = {
    "add_router_probs": False, "architectures": ["SwitchTransformersForConditionalGeneration"],
    "batch_prioritized_routing": False, "d_ff": 40, "d_kv": 6, "d_model": 32, "decoder_sparse_step": 2,
    "decoder_start_token_id": 0, "dense_act_fn": "relu", "dropout_rate": 0.1, "encoder_sparse_step": 3,
    "eos_token_id": 1, "expert_capacity": 64, "feed_forward_proj": "relu", "initializer_factor": 1.0,
    "is_encoder_decoder": True, "is_gated_act": False, "layer_norm_epsilon": 1e-06,
    "model_type": "switch_transformers", "n_positions": 512, "num_decoder_layers": 2, "num_experts": 4,
    "num_heads": 5, "num_layers": 3, "num_sparse_decoder_layers": 1, "num_sparse_encoder_layers": 1,
    "output_past": True, "pad_token_id": 0, "relative_attention_max_distance": 128,
    "relative_attention_num_buckets": 32, "router_aux_loss_coef": 0.001, "router_bias": False,
    "router_dtype": "float32", "router_ignore_padding_tokens": False, "router_jitter_noise": 0.01,
    "router_type": "tokens_masked", "router_z_loss_coef": 0.001, "use_cache": True, "vocab_size": VOCAB,
}  # fmt: skip


@pytest.mark.parametrize(("case", "bound"), [(GPT, 1e-12), (SWITCH, BOUND)], ids=["gpt", "switch"])
def test_logits_in_double_precision_equal_transformers(case: Case, bound: float, tmp_path: Path) -> None:
    pair = meet(case, tmp_path)  # router and norms of Switch are in single precision there
    want, got = their_logits(pair.theirs.double(), ids_of(40)), our_logits(pair.ours.double(), ids_of(40))
    assert want.dtype == got.dtype == torch.float64
    assert ((got - want).abs().max() / want.std()).item() <= bound


@pytest.mark.parametrize(("case", "old"), [(GPT, OLD_GPT), (SWITCH, OLD_SWITCH)], ids=["gpt", "switch"])
def test_configs_as_they_lie_on_the_hub_are_understood_without_a_word(
    case: Case, old: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair = meet(case, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(old))
    with caplog.at_level(logging.WARNING, "heddle"):
        assert load_model(tmp_path).config == pair.ours.config
    assert caplog.records == []
    retold(tmp_path, router_temperature=2.0)
    with caplog.at_level(logging.WARNING, "heddle"):
        load_model(tmp_path)
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "unknown keys ignored: router_temperature"
    ]


def test_names_of_gpt_s_first_files_are_known(tmp_path: Path) -> None:
    pair = meet(GPT, tmp_path)
    path = tmp_path / "model.safetensors"
    old = {name.removeprefix("transformer."): tensor for name, tensor in load_file(path).items()}
    old |= {"h.1.attn.bias": torch.ones(1, 1, 3, 3), "lm_head.weight": old["tokens_embed.weight"].clone()}
    save_file(old | {"position_ids": torch.arange(CONTEXT)}, path)
    check_logits(replace(pair, ours=load_model(tmp_path)))


@pytest.mark.parametrize(
    ("case", "key", "value", "said"),
    [
        (GPT, "tie_word_embeddings", False, "tie_word_embeddings: want True, got False"),
        (GPT, "afn", "gelu_new", "afn: want one of gelu, relu, silu, swish, got 'gelu_new'"),
        (SWITCH, "router_bias", True, "router_bias: want False, got True"),
        (SWITCH, "router_dtype", "bfloat16", "router_dtype: want 'float32', got 'bfloat16'"),
        (SWITCH, "router_type", "experts_masked", "router_type: want 'tokens_masked', got 'experts_masked'"),
        (SWITCH, "is_encoder_decoder", False, "is_encoder_decoder: want True, got False"),
        (SWITCH, "dense_act_fn", "gated-gelu", "dense_act_fn: want one of .* got 'gated-gelu'"),
        (SWITCH, "expert_capacity", 0, "expert_capacity: want at least 1, got 0"),
        (SWITCH, "num_experts", 5000, "num_experts: want a whole number of at most 2048, got 5000"),
    ],
)
def test_what_has_no_part_here_is_refused_by_name(
    case: Case, key: str, value: object, said: str, tmp_path: Path
) -> None:
    settings = case.config(**case.settings).to_dict() | {"model_type": case.family, key: value}
    (tmp_path / "config.json").write_text(json.dumps(settings, default=str))
    with pytest.raises(ConfigError, match=said):
        read_model_config(tmp_path)


# --- Switch -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_decoder_of_switch_drops_nothing_as_transformers_does_with_a_cache(tmp_path: Path) -> None:
    pair = meet(FEW, tmp_path)
    ids, row = ids_of(40), ids_of(PROMPT, seed=5)
    past, memory, steps = None, pair.theirs.encoder(ids), []
    for at in range(PROMPT):
        out = pair.theirs(encoder_outputs=memory, decoder_input_ids=row[:, at : at + 1], past_key_values=past)
        past, steps = out.past_key_values, [*steps, out.logits]
    ours = pair.ours
    assert isinstance(ours, EncoderDecoder)
    check_close(torch.cat(steps, dim=1), ours.logits(row, Context(memory=ours.encode(ids))))


def test_a_switch_whose_head_stands_apart_may_have_one_table_for_both_sides(tmp_path: Path) -> None:
    meet(APART, tmp_path)
    path = tmp_path / "model.safetensors"
    held = {name: tensor for name, tensor in load_file(path).items() if "embed_tokens" not in name}
    save_file(held, path)
    own = load_model(tmp_path).weights()
    for side in ("encoder", "decoder"):
        assert torch.equal(own[f"{side}.embedding.weight"], held["shared.weight"])
    assert not torch.equal(own["head.weight"], held["shared.weight"])


def test_a_switch_without_experts_goes_both_ways(tmp_path: Path) -> None:
    pair = meet(DENSE, tmp_path / "in")
    assert not find(pair.ours.config, ExpertsConfig)
    check_logits(pair)
    check_back(pair, tmp_path / "out")


def test_places_for_all_of_a_row_drop_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for places, wanted in ((511, PerDocumentCapacityConfig(max_capacity=511)), (512, DroplessConfig())):
        path.write_text(json.dumps(OLD_SWITCH | {"expert_capacity": places}))
        assert {experts.capacity for experts in find(read_model_config(tmp_path), ExpertsConfig)} == {wanted}


@pytest.mark.parametrize(
    ("name", "dials", "model"),
    [
        ("gpt", {}, hf.OpenAIGPTLMHeadModel),
        ("switch-base-8", {"hidden": 24, "experts": 3}, hf.SwitchTransformersForConditionalGeneration),
    ],
)
def test_our_own_presets_go_out_and_come_back(name: str, dials: dict[str, int], model: Any, tmp_path: Path) -> None:
    ours = build(name, layers=4, width=64, heads=4, vocab=VOCAB, context=64, **dials).eval()
    assert save_model(ours, tmp_path).name == model.config_class.model_type
    again, ids = load_model(tmp_path), ids_of(40)
    assert isinstance(again, AutoregressiveModel) and isinstance(ours, AutoregressiveModel)
    assert torch.equal(our_logits(ours, ids), our_logits(again, ids))  # heads of 16: their factor is exact
    check_close(our_logits(ours, ids), their_logits(model.from_pretrained(tmp_path).eval(), ids))


def test_what_they_cannot_say_is_named(tmp_path: Path) -> None:
    wide = build("switch-base-8", layers=5, width=16, heads=2, hidden=8, experts=2, vocab=VOCAB, context=64)
    assert save_model(wide, tmp_path / "odd", wanted="switch_transformers").name == "switch_transformers"
    narrow = build("t5-base", layers=2, width=16, heads=2, hidden=8, vocab=VOCAB, context=64)
    with pytest.raises(UsageError, match="switch_transformers: cannot express this model: its layers form one chain"):
        save_model(narrow, tmp_path / "t5", wanted="switch_transformers")
    gpt = build("gpt", layers=1, width=16, heads=2, vocab=VOCAB, context=64)
    with pytest.raises(UsageError, match=r"the nearest, gpt2, has no counterpart for"):
        save_model(gpt, tmp_path / "gpt", wanted="gpt2")

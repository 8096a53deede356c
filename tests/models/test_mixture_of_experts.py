"""Mixtral and Switch have the published sizes and give what Hugging Face's give with the same weights."""

import pytest
import torch
from torch import Tensor

from heddle.models import build_meta, forward_flops, summarize
from heddle.models.networks import LanguageModelConfig
from heddle.models.presets import PresetConfig, build, preset
from heddle.nn.base import Context

PUBLISHED = {"mixtral-8x7b": 46_702_792_704, "mixtral-8x22b": 140_620_634_112, "switch-base-8": 619_339_008}
SMALL = {"layers": 2, "width": 32, "heads": 4, "vocab": 50, "context": 16}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_equal_the_published_count(name: str) -> None:
    assert summarize(PresetConfig(name=name)).parameters == PUBLISHED[name]


def test_flops_count_the_experts_that_a_token_meets() -> None:
    many, few = (build("mixtral-8x7b", **SMALL, kv_heads=2, hidden=16, experts=n) for n in (8, 2))
    router = 2 * 2 * 32 * (8 - 2)  # two layers: the router alone grows
    assert forward_flops(many, 16) - forward_flops(few, 16) == router


def ids(batch: int = 3, length: int = 10, seed: int = 0) -> Tensor:
    return torch.randint(50, (batch, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_a_mixtral_gives_what_transformers_gives() -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    theirs = MixtralForCausalLM(
        MixtralConfig(
            vocab_size=50,
            hidden_size=32,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_local_experts=6,
            num_experts_per_tok=2,
            initializer_range=0.3,
        )
    ).eval()
    given, weights = theirs.state_dict(), {}
    for layer in range(2):
        here, there = f"stack.{layer}", f"model.layers.{layer}"
        for ours, name in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")):
            weights[f"{here}.mixer.part.{ours}.weight"] = given[f"{there}.self_attn.{name}_proj.weight"]
        weights[f"{here}.mixer.norm.weight"] = given[f"{there}.input_layernorm.weight"]
        weights[f"{here}.channel.norm.weight"] = given[f"{there}.post_attention_layernorm.weight"]
        weights[f"{here}.channel.part.router.scores.weight"] = given[f"{there}.mlp.gate.weight"]
        gate, up = given[f"{there}.mlp.experts.gate_up_proj"].chunk(2, dim=1)
        weights[f"{here}.channel.part.bank.gate.weight"] = gate
        weights[f"{here}.channel.part.bank.up.weight"] = up
        weights[f"{here}.channel.part.bank.down.weight"] = given[f"{there}.mlp.experts.down_proj"]
    weights["embedding.weight"] = given["model.embed_tokens.weight"]
    weights["norm.weight"], weights["head.weight"] = given["model.norm.weight"], given["lm_head.weight"]
    ours = build("mixtral-8x7b", **SMALL, kv_heads=2, hidden=24, experts=6).eval()
    ours.load_weights(weights)
    base = theirs.config.rope_parameters["rope_theta"]
    assert isinstance(ours.config, LanguageModelConfig)
    assert base == ours.config.position.base == 1e6
    torch.testing.assert_close(ours.logits(ids()), theirs(ids()).logits, rtol=1e-5, atol=1e-5)


def switch_weights(given: dict[str, Tensor], layers: int, head_width: int) -> dict[str, Tensor]:
    """Return a Switch Transformer's weights by our names."""
    weights = {"encoder.embedding.weight": given["shared.weight"]}
    for side in ("encoder", "decoder"):
        weights[f"{side}.norm.weight"] = given[f"{side}.final_layer_norm.weight"]
        bias = given[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        weights[f"{side}.position"] = bias
        for layer in range(layers):
            here, there = f"{side}.stack.{layer}", f"{side}.block.{layer}.layer"
            slots = {"mixer": "SelfAttention", "cross": "EncDecAttention", "channel": "mlp"}
            if side == "encoder":
                del slots["cross"]
            for number, (slot, name) in enumerate(slots.items()):
                weights[f"{here}.{slot}.norm.weight"] = given[f"{there}.{number}.layer_norm.weight"]
                inner = f"{there}.{number}.{name}"
                if slot != "channel":
                    for word, letter in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")):
                        factor = head_width**0.5 if letter == "q" else 1.0
                        weights[f"{here}.{slot}.part.{word}.weight"] = factor * given[f"{inner}.{letter}.weight"]
                elif layer % 2:
                    weights[f"{here}.channel.part.router.scores.weight"] = given[f"{inner}.router.classifier.weight"]
                    for word, letters in (("up", "wi"), ("down", "wo")):
                        each = [given[f"{inner}.experts.expert_{e}.{letters}.weight"] for e in range(4)]
                        weights[f"{here}.channel.part.bank.{word}.weight"] = torch.stack(each)
                else:
                    weights[f"{here}.channel.part.up.weight"] = given[f"{inner}.wi.weight"]
                    weights[f"{here}.channel.part.down.weight"] = given[f"{inner}.wo.weight"]
    return weights


@torch.no_grad()
def test_a_switch_gives_what_transformers_gives() -> None:
    from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

    torch.manual_seed(0)
    theirs = (
        SwitchTransformersForConditionalGeneration(
            SwitchTransformersConfig(
                vocab_size=50,
                d_model=32,
                d_kv=8,
                d_ff=24,
                num_heads=4,
                num_layers=4,
                num_decoder_layers=4,
                num_sparse_encoder_layers=2,
                num_sparse_decoder_layers=2,
                num_experts=4,
                expert_capacity=64,
            )
        )
        .double()
        .eval()
    )
    ours = build("switch-base-8", layers=4, width=32, heads=4, hidden=24, experts=4, vocab=50, context=16)
    ours = ours.double().eval()
    weights = switch_weights(theirs.state_dict(), 4, 8)
    for side in ("encoder", "decoder"):
        (name,) = [n for n in ours.weights() if n.startswith(f"{side}.position.")]
        bias = weights.pop(f"{side}.position")
        weights[name] = bias if ours.weights()[name].shape == bias.shape else bias.T
    ours.load_weights(weights)
    source, target = ids(), ids(length=6, seed=1)
    got = ours.logits(target, Context(memory=ours.encode(source)))
    want = theirs(input_ids=source, decoder_input_ids=target).logits
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_a_mixtral_is_built_without_memory() -> None:
    assert all(p.is_meta for p in build_meta(preset("mixtral-8x7b").config()).parameters())

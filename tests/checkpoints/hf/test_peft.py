"""PEFT adapters: `peft` loads saved ones without a warning and agrees, and its own ones load here."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers as hf
from checkpoints.hf.harness import CONTEXT, VOCAB, Case, case, check_close, ids_of, no_complaint
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from heddle.checkpoints.hf import ADAPTER_CONFIG, load_adapter, load_model, save_adapter, save_model
from heddle.checkpoints.hf.family import NoCounterpart
from heddle.checkpoints.hf.peft import TENSORS
from heddle.core import ConfigError, DamageError, HeddleError, UsageError
from heddle.models.networks import AutoregressiveModel, Encoder, EncoderDecoder, Model
from heddle.models.presets import build
from heddle.models.surgery import add_adapters, merge_adapters
from heddle.nn.adapters import LoraConfig
from heddle.nn.base import Context

SMALL = {"vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "hidden_size": 24, "intermediate_size": 40}
SMALL |= {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
CASES = {
    "gpt2": case(hf.GPT2LMHeadModel, "gpt2", vocab_size=VOCAB, n_positions=CONTEXT, n_embd=24, n_layer=3, n_head=3,
        bos_token_id=1, eos_token_id=2),
    "openai-gpt": case(hf.OpenAIGPTLMHeadModel, "openai-gpt", vocab_size=VOCAB, n_positions=CONTEXT, n_embd=24,
        n_layer=3, n_head=3),
    "llama": case(hf.LlamaForCausalLM, "llama", **SMALL, **ENDS),
    "qwen2": case(hf.Qwen2ForCausalLM, "qwen2", **SMALL, **ENDS, tie_word_embeddings=True),
    "phi3": case(hf.Phi3ForCausalLM, "phi3", **SMALL, **ENDS, sliding_window=7),
    "gpt_neox": case(
        hf.GPTNeoXForCausalLM, "gpt_neox", vocab_size=VOCAB, max_position_embeddings=CONTEXT, hidden_size=24,
        intermediate_size=40, num_hidden_layers=3, num_attention_heads=3, **ENDS,
    ),
    "t5": case(
        hf.T5ForConditionalGeneration, "t5", vocab_size=VOCAB, d_model=24, d_kv=6, d_ff=40, num_layers=2, num_heads=4,
        decoder_start_token_id=0, eos_token_id=2, pad_token_id=0,
    ),
    "bert": case(
        hf.BertForMaskedLM, "bert", vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=40, max_position_embeddings=CONTEXT, pad_token_id=0,
    ),
}  # fmt: skip


class Base:
    """A model of theirs in a folder, which is read anew for each question: `peft` changes what it is given."""

    def __init__(self, made: Case, folder: Path) -> None:
        self.case, self.folder = made, folder
        made.build().save_pretrained(folder)

    def theirs(self) -> hf.PreTrainedModel:
        return self.case.model.from_pretrained(self.folder).eval()

    def ours(self) -> Model:
        return load_model(self.folder)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Base]]:
    hf.logging.disable_progress_bar()
    yield {name: Base(made, tmp_path_factory.mktemp(name)) for name, made in CASES.items()}


@torch.no_grad()
def logits(model: Any) -> Tensor:
    """Return what a model of either side says of the same rows."""
    ids = ids_of(12)
    if isinstance(model, EncoderDecoder):
        return model.logits(ids[:, :5], Context(memory=model.encode(ids)))
    if isinstance(model, Encoder):
        return model.scores("masked_token", ids)
    if isinstance(model, AutoregressiveModel):
        return model.logits(ids)
    if model.config.is_encoder_decoder:
        return model(input_ids=ids, decoder_input_ids=ids[:, :5], use_cache=False).logits  # type: ignore[no-any-return]
    return model(ids).logits  # type: ignore[no-any-return]


@torch.no_grad()
def taught(model: Model, seed: int = 0) -> Model:
    """Give adapters numbers that have their say."""
    draw = torch.Generator().manual_seed(seed)
    for weight in model.trainable().values():
        weight += 0.2 * torch.randn(weight.shape, generator=draw)
    return model


def loaded_by_peft(base: Base, folder: Path) -> Any:
    """Load an adapter as its users do, and hold `peft` and `transformers` to silence."""
    with no_complaint(), warnings.catch_warnings():
        warnings.simplefilter("error")
        model = peft.PeftModel.from_pretrained(base.theirs(), folder).eval()
    held = load_file(folder / TENSORS)
    named = {name.replace(".default.", "."): w for name, w in model.named_parameters() if "lora_" in name}
    assert named.keys() == held.keys(), "nothing is missing, nothing left over"
    assert all(torch.equal(weight, held[name]) for name, weight in named.items())
    return model


# --- out --------------------------------------------------------------------------------------------------------------

HOW = {
    "usual": (LoraConfig(rank=3),),
    "rooted": (LoraConfig(rank=3, alpha=2.0, scaling="root"),),
    "in part": (LoraConfig(rank=2, targets=("value", "down"), layers=(1,)),),
    "unlike": (LoraConfig(rank=2, targets=("query", "up")), LoraConfig(rank=5, alpha=3.0, targets=("key", "output"))),
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", CASES)
def test_peft_loads_our_adapter_and_says_what_we_say(
    bases: dict[str, Base], name: str, how: str, tmp_path: Path
) -> None:
    base = bases[name]
    model = taught(add_adapters(base.ours(), *HOW[how]))
    save_adapter(model, tmp_path, str(base.folder), wanted=base.case.family)
    theirs = loaded_by_peft(base, tmp_path)
    check_close(logits(theirs), logits(model))
    check_close(logits(theirs.merge_and_unload()), logits(merge_adapters(model)))
    assert (logits(base.ours()) - logits(model)).abs().max() > 1e-2, "an adapter without a say proves nothing"


def test_a_factor_that_stands_in_their_weights_stands_in_their_adapter(tmp_path: Path) -> None:
    plain = build("switch-base-8", layers=2, width=24, heads=4, hidden=16, experts=2, vocab=VOCAB, context=CONTEXT)
    save_model(plain.eval(), tmp_path / "base")
    model = taught(add_adapters(plain, LoraConfig(rank=2, targets=("query",))))
    save_adapter(model, tmp_path / "adapter", wanted="switch_transformers")
    theirs = hf.SwitchTransformersForConditionalGeneration.from_pretrained(tmp_path / "base").eval()
    assert (logits(theirs) - logits(model)).abs().max() > 1e-2
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()
    check_close(logits(theirs), logits(model))
    again = load_adapter(load_model(tmp_path / "base"), tmp_path / "adapter")
    check_close(logits(theirs), logits(again))


def test_short_names_are_used_where_they_mean_the_same(bases: dict[str, Base], tmp_path: Path) -> None:
    save_adapter(add_adapters(bases["llama"].ours(), LoraConfig()), tmp_path)
    told = json.loads((tmp_path / ADAPTER_CONFIG).read_text())
    maps = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert sorted(told["target_modules"]) == sorted(maps)
    assert (told["r"], told["lora_alpha"], told["rank_pattern"], told["task_type"]) == (8, 16, {}, "CAUSAL_LM")
    save_adapter(add_adapters(bases["gpt2"].ours(), LoraConfig(rank=2)), tmp_path)
    told = json.loads((tmp_path / ADAPTER_CONFIG).read_text())
    assert told["rank_pattern"] == {"c_attn": 6} and told["alpha_pattern"] == {"c_attn": 48} and told["fan_in_fan_out"]


def test_what_peft_has_no_counterpart_for_is_named(bases: dict[str, Base], tmp_path: Path) -> None:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, **SMALL, **ENDS}
    base = Base(case(hf.MixtralForCausalLM, "mixtral", **experts), tmp_path / "base")
    model = add_adapters(base.ours(), LoraConfig())
    with pytest.raises(NoCounterpart, match=r"PEFT has no LoRA for stack\.0\.channel\.part\.bank\.gate of a mixtral"):
        save_adapter(model, tmp_path / "adapter")
    save_adapter(taught(add_adapters(base.ours(), LoraConfig(targets=("query", "value")))), tmp_path / "adapter")
    loaded_by_peft(base, tmp_path / "adapter")
    with pytest.raises(UsageError, match="this model has no adapters"):
        save_adapter(base.ours(), tmp_path / "adapter")


# --- in ---------------------------------------------------------------------------------------------------------------

THEIRS: dict[str, dict[str, Any]] = {
    "gpt2": {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True, "rank_pattern": {"c_fc": 5}},
    "openai-gpt": {"target_modules": ["c_attn"], "fan_in_fan_out": True},
    "llama": {"target_modules": ["q_proj", "down_proj"], "use_rslora": True, "layers_to_transform": [0, 2]},
    "qwen2": {"target_modules": "all-linear", "alpha_pattern": {r"layers\.1\.mlp\.up_proj": 40}},
    "phi3": {"target_modules": ["qkv_proj", "gate_up_proj"]},
    "gpt_neox": {"target_modules": ["query_key_value", "dense"], "layers_to_transform": 1, "layers_pattern": "layers"},
    "t5": {"target_modules": ["q", "v", "wo"]},
    "bert": {"target_modules": ["query", "output.dense"]},
}


@torch.no_grad()
def theirs_taught(base: Base, **settings: Any) -> Any:
    """Return a model of theirs under an adapter with numbers that have their say."""
    model = peft.get_peft_model(base.theirs(), peft.LoraConfig(**({"r": 3, "lora_alpha": 7} | settings))).eval()
    draw = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        if "lora_" in name:
            weight += 0.2 * torch.randn(weight.shape, generator=draw)
    return model


@pytest.mark.parametrize("name", CASES)
def test_an_adapter_of_peft_says_here_what_it_says_there(bases: dict[str, Base], name: str, tmp_path: Path) -> None:
    base = bases[name]
    theirs = theirs_taught(base, **THEIRS[name])
    theirs.save_pretrained(tmp_path / "theirs")
    plain = base.ours()
    model = load_adapter(plain, tmp_path / "theirs")
    check_close(logits(theirs), logits(model))
    assert all(".adapter." in weight for weight in model.trainable())
    check_close(logits(base.theirs()), logits(plain))
    save_adapter(model, tmp_path / "again", wanted=base.case.family)
    ours, again = (load_file(tmp_path / folder / TENSORS) for folder in ("theirs", "again"))
    assert ours.keys() == again.keys() and all(torch.equal(ours[key], again[key]) for key in ours), "and back, exactly"
    check_close(logits(theirs), logits(loaded_by_peft(base, tmp_path / "again")))


# --- wrong and hostile folders ----------------------------------------------------------------------------------------


@pytest.fixture
def saved(bases: dict[str, Base], tmp_path: Path) -> Path:
    """Return a good adapter of the small Llama."""
    save_adapter(taught(add_adapters(bases["llama"].ours(), LoraConfig(rank=3, targets=("query", "up")))), tmp_path)
    return tmp_path


REFUSED: dict[str, Any] = {
    "peft_type": "IA3",
    "bias": "all",
    "modules_to_save": ["lm_head"],
    "use_dora": True,
    "lora_bias": True,
    "layer_replication": [[0, 2]],
    "trainable_token_indices": [3],
    "init_lora_weights": "pissa",
    "target_parameters": ["experts.down_proj"],
    "alora_invocation_tokens": [1],
    "something_new": 3,
    "r": 0,
    "rank_pattern": {"(a+)+$": 4},
    "lora_alpha": "many",
    "target_modules": [7],
    "layers_to_transform": ["x"],
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_would_change_numbers_is_refused_by_name(bases: dict[str, Base], saved: Path, key: str) -> None:
    told = json.loads((saved / ADAPTER_CONFIG).read_text())
    (saved / ADAPTER_CONFIG).write_text(json.dumps(told | {key: REFUSED[key]}))
    with pytest.raises(ConfigError, match=key) as caught:
        load_adapter(bases["llama"].ours(), saved)
    assert "\n" not in str(caught.value)


FIRST = "base_model.model.model.layers.0.self_attn.q_proj"
HARMS: dict[str, tuple[dict[str, Tensor | None], str]] = {
    "a matrix is gone": ({f"{FIRST}.lora_B.weight": None}, rf"{FIRST}\.lora_B\.weight is missing"),
    "a module is gone": (
        {f"{FIRST}.lora_A.weight": None, f"{FIRST}.lora_B.weight": None},
        rf"{FIRST}\.lora_A\.weight is missing",
    ),
    "another shape": ({f"{FIRST}.lora_A.weight": torch.zeros(3, 25)}, r"want shape \(3, 24\), got \(3, 25\)"),
    "another rank": ({f"{FIRST}.lora_A.weight": torch.zeros(4, 24)}, r"want shape \(3, 24\), got \(4, 24\)"),
    "whole numbers": ({f"{FIRST}.lora_A.weight": torch.zeros(3, 24, dtype=torch.int64)}, "of int64"),
    "a magnitude": ({f"{FIRST}.lora_magnitude_vector": torch.zeros(24)}, "is not part of a plain LoRA"),
    "a head": (
        {"base_model.model.lm_head.lora_A.weight": torch.zeros(3, 24), "base_model.model.lm_head.lora_B.weight":
         torch.zeros(VOCAB, 3)}, "lm_head is not a linear layer of the model",
    ),
    "a module not named": (
        {"base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight": torch.zeros(3, 24),
         "base_model.model.model.layers.0.self_attn.k_proj.lora_B.weight": torch.zeros(12, 3)}, "does not name",
    ),
}  # fmt: skip


@pytest.mark.parametrize("harm", HARMS)
def test_a_missing_strange_or_misshapen_tensor_is_named(bases: dict[str, Base], saved: Path, harm: str) -> None:
    changes, match = HARMS[harm]
    tensors = {**load_file(saved / TENSORS), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, saved / TENSORS)
    with pytest.raises(DamageError, match=match) as caught:
        load_adapter(bases["llama"].ours(), saved)
    assert "\n" not in str(caught.value)


def test_rubbish_is_refused_in_one_line(bases: dict[str, Base], saved: Path) -> None:
    good = (saved / TENSORS).read_bytes()
    told = (saved / ADAPTER_CONFIG).read_text()
    model = bases["llama"].ours()
    for file, content in (
        (TENSORS, b"\xff" * 64), (TENSORS, good[:100]), (TENSORS, b""), (ADAPTER_CONFIG, b"[1]"),
        (ADAPTER_CONFIG, b"{"),
        (ADAPTER_CONFIG, b"{}"), (ADAPTER_CONFIG, b"\xff\xfe"), (ADAPTER_CONFIG, b'{"peft_type": "LORA"}'),
    ):  # fmt: skip
        (saved / file).write_bytes(content)
        with pytest.raises(HeddleError) as caught:
            load_adapter(model, saved)
        assert "\n" not in str(caught.value)
        (saved / TENSORS).write_bytes(good)
        (saved / ADAPTER_CONFIG).write_text(told)
    (saved / TENSORS).rename(saved / "adapter_model.bin")
    with pytest.raises(UsageError, match="pickled"):
        load_adapter(model, saved)


def test_an_adapter_for_another_model_or_over_another_adapter_is_refused(bases: dict[str, Base], saved: Path) -> None:
    with pytest.raises(DamageError, match="is not a linear layer of the model"):
        load_adapter(bases["gpt2"].ours(), saved)
    model = load_adapter(bases["llama"].ours(), saved)
    with pytest.raises(UsageError, match="merge them first"):
        load_adapter(model, saved)
    assert isinstance(merge_adapters(model), nn.Module)

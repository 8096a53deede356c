"""Conversion between Hugging Face folders and Heddle models; an error names the part that no family can express."""

import logging
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

from torch import Tensor

from heddle.checkpoints.hf.families import (
    albert,
    apertus,
    bart,
    bert,
    deepseek,
    distilbert,
    gemma,
    gpt2,
    gpt_neox,
    llama,
    olmo2,
    openai_gpt,
    opt,
    phi3,
    switch,
    t5,
    vit,
)
from heddle.checkpoints.hf.families import mixtral as experts
from heddle.checkpoints.hf.family import Family, NoCounterpart
from heddle.checkpoints.hf.folder import CONFIG, SafetensorsFolder, read_config, write_folder
from heddle.checkpoints.hf.sentence_encoder import add_modules, with_modules, without_modules
from heddle.checkpoints.hf.weights import (
    InMemoryWeights,
    RenamedWeights,
    WeightSource,
    bounded_weight_maps,
    check_buffers,
    check_shapes,
    copy_weights,
    match_weights,
)
from heddle.core import (
    VERSION,
    Change,
    Config,
    ConfigError,
    UsageError,
    brief,
    diff,
    fields_of,
    first_line,
    hint,
    replace,
    swap,
)
from heddle.core.system import Hardware, choose_hardware
from heddle.models import build_meta
from heddle.models.networks import EncoderConfig, EncoderDecoderConfig, LanguageModelConfig, Model, ModelConfig
from heddle.models.surgery import merge_adapters
from heddle.nn.attention import AttentionConfig, CrossAttentionConfig, LatentAttentionConfig, head_width_for
from heddle.nn.base import NormalInitConfig
from heddle.nn.channels import (
    BiasLoadBalancingConfig,
    DroplessConfig,
    ExpertsConfig,
    FeedForwardConfig,
    GatedFeedForwardConfig,
    NoLoadBalancingConfig,
    TokenChoiceConfig,
    hidden_width,
)
from heddle.nn.layers import DropoutConfig, ElementDropoutConfig

FAMILIES = {
    family.name: family
    for family in (
        gpt2.FAMILY,
        openai_gpt.FAMILY,
        gpt_neox.FAMILY,
        opt.FAMILY,
        llama.LLAMA,
        llama.MISTRAL,
        llama.QWEN2,
        llama.QWEN3,
        phi3.FAMILY,
        olmo2.FAMILY,
        gemma.GEMMA2,
        gemma.GEMMA3,
        experts.MIXTRAL,
        experts.QWEN3_MOE,
        deepseek.FAMILY,
        apertus.FAMILY,
        t5.FAMILY,
        switch.FAMILY,
        bert.BERT,
        bert.ROBERTA,
        bert.ELECTRA,
        distilbert.FAMILY,
        albert.FAMILY,
        vit.FAMILY,
        bart.BART,
        bart.MARIAN,
        bart.PEGASUS,
    )
}
EDITS = 4  # that are named in a message
# A preset of each kind of model that has a family.
FITTING = {LanguageModelConfig: "first", EncoderDecoderConfig: "transformer_pre_norm", EncoderConfig: "bert-base"}
log = logging.getLogger("heddle")


def family_of(config: Mapping[str, Any], where: str) -> Family:
    """Return the family of a config; an unknown one is refused with the nearest names."""
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        near = hint(str(name).lower(), FAMILIES)
        raise UsageError(f"{where}: model_type {brief(name)} is not known, want one of {', '.join(FAMILIES)}{near}")
    return FAMILIES[name]


def model_config_from_hf(config: Mapping[str, Any], where: str) -> ModelConfig:
    """Convert a Hugging Face config; keys that were not understood are logged."""
    if config.get("quantization_config"):
        raise UsageError(f"{where}: quantization_config: want unquantized weights, found quantized ones")
    family = family_of(config, where)
    hf = family.reader(config, where)
    model_config = family.read(hf)
    if unread := [key for key in hf.unread() if key not in family.ignored_keys]:
        log.warning("%s: unknown keys ignored: %s", where, ", ".join(unread))
    return model_config


def read_model_config(path: Path) -> ModelConfig:
    """Return the model config of a Hugging Face folder."""
    return with_modules(model_config_from_hf(read_config(path), str(path / CONFIG)), path)


def load_model(path: Path, hardware: Hardware | None = None) -> Model:
    """Load the model of a Hugging Face folder."""
    config, where = read_config(path), str(path / CONFIG)
    family_of(config, where)  # report an unknown family before missing weights
    return add_modules(load_weights(config, SafetensorsFolder(path), where, hardware), path)


def load_weights(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], where: str, hardware: Hardware | None = None
) -> Model:
    """Build the model of a Hugging Face config and load its weights, without a second copy of the model.

    A config is not trusted: memory is allocated once the names and shapes of all tensors agree with it.
    """
    chosen = choose_hardware(dtype="float32") if hardware is None else hardware
    model_config, family = model_config_from_hf(config, where), family_of(config, where)
    source = weights if isinstance(weights, WeightSource) else InMemoryWeights(weights, where)
    weight_maps = bounded_weight_maps(family.weight_maps(model_config), source)
    source = RenamedWeights(source, family.old_suffixes, {name for entry in weight_maps for name in entry.hf_names})
    weight_maps = match_weights(weight_maps, source, family.ignored_weights)
    model = _build_meta(model_config, where).to(chosen.dtype)
    check_shapes(model, weight_maps, source)
    check_buffers(model, where)
    model.materialize(chosen.device)
    copy_weights(model, weight_maps, source)
    model.eval()
    return model


def _build_meta(config: ModelConfig, where: str) -> Model:
    try:
        return build_meta(config)
    except (RuntimeError, TypeError, OverflowError) as error:  # sizes too large for any tensor
        raise UsageError(f"{where}: no model of these sizes can be built: {first_line(error)}") from None


def save_model(model: Model, path: Path, more: Mapping[str, Any] | None = None, wanted: str | None = None) -> Family:
    """Save a model as a Hugging Face folder; `more` is added to the config.

    The first family that can express the model is used, or `wanted`: a Phi-3 without a window is saved as a Llama.
    """
    model, modules = without_modules(merge_adapters(model))  # adapters are merged into the weights
    config = model.config.expand()
    family = family_for(config, wanted)
    own = model.weights()
    hf_config = {"model_type": family.name, "architectures": [family.architectures[0]], **family.write(config)}
    hf_config |= {"dtype": str(next(iter(own.values())).dtype).removeprefix("torch."), "heddle_version": VERSION}
    hf_config |= more or {}
    if changes := diff(canonical(family.as_stored(config)), canonical(family.read(family.reader(hf_config)))):
        raise UsageError(f"the additional keys of the config would change the model: {changes[0]}")
    weights: dict[str, Tensor] = {}
    for entry in family.weight_maps(config):
        made = entry.transform.to_hf([own[name] for name in entry.names])
        weights |= {name: tensor.contiguous() for name, tensor in zip(entry.hf_names, made, strict=True)}
    write_folder(path, hf_config, weights)
    if modules is not None:
        modules.write(path, config.width, model.context)
    return family


def check_family(name: str | None) -> None:
    """Refuse a family that is not known; None: any."""
    if name is not None and name not in FAMILIES:
        raise ConfigError.unknown("family", name, FAMILIES)


def family_for(config: ModelConfig, wanted: str | None = None) -> Family:
    """Return the first family, or the wanted one, that can express a model; else name what the nearest lacks."""
    lacks: dict[str, list[Change]] = {}
    reasons: dict[str, str] = {}
    check_family(wanted)
    among = FAMILIES if wanted is None else {wanted: FAMILIES[wanted]}
    for name, family in among.items():
        if not isinstance(config, family.config_type):
            continue
        try:
            again = family.read(family.reader({"model_type": name, **family.write(config)}))
        except (UsageError, ConfigError) as error:
            reasons[name] = str(error)
            continue
        lacks[name] = diff(canonical(family.as_stored(config)), canonical(again))
        if not lacks[name]:
            return family
    if not lacks:
        near, reason = next(iter(reasons.items()), (wanted or "any", "it has no such model"))
        if wanted is not None:
            raise NoCounterpart(f"{wanted}: cannot express this model: {reason}")
        fits = next((f"; model={name} has a family" for kind, name in FITTING.items() if isinstance(config, kind)), "")
        raise NoCounterpart(f"no Hugging Face family is near this model; {near}: {reason}{fits}")
    near = min(lacks, key=lambda name: len(lacks[name]))
    part = shorten(str(lacks[near][0]).partition(" -> ")[0], 160, placeholder=" …")
    fault = f"the nearest, {near}, has no counterpart for {part}; it would fit with {_edits(lacks[near])}"
    raise NoCounterpart(f"no Hugging Face family has all parts of this model; {fault}")


def _edits(changes: list[Change]) -> str:
    """Return changes of a model as overrides, to train one that fits."""

    def value(found: object) -> object:
        if isinstance(found, dict):
            return found.get("kind", "...")
        return "null" if found is None else str(found).lower() if isinstance(found, bool) else found

    shown = [shorten(f"model.{c.path}={value(c.after)}", 100, placeholder=" …") for c in changes[:EDITS]]
    more = f" and {len(changes) - EDITS} more" if len(changes) > EDITS else ""
    return ", ".join(shown) + more


def _canonical_experts(config: ExpertsConfig) -> ExpertsConfig:
    """Return experts without what only training uses: balancing losses and noise."""
    biased = isinstance(config.balance, BiasLoadBalancingConfig)
    balance = BiasLoadBalancingConfig() if biased else NoLoadBalancingConfig()
    made = swap(TokenChoiceConfig, lambda router: replace(router, jitter=0.0))(config)
    capacity = made.capacity if made.capacity.in_eval else DroplessConfig()
    return replace(made, balance=balance, capacity=capacity, z_loss=0.0)


def canonical(config: ModelConfig) -> ModelConfig:
    """Return a config in canonical form, to compare two models: sizes written out, nothing that only training uses."""
    full, width = config.expand(), config.expand().width

    def attention(a: AttentionConfig) -> AttentionConfig:
        return replace(a, kv_heads=a.kv_heads or a.heads, head_width=head_width_for(a, width), dropout=0.0)

    def cross(a: CrossAttentionConfig) -> CrossAttentionConfig:
        return replace(a, kv_heads=a.kv_heads or a.heads, head_width=head_width_for(a, width), dropout=0.0)

    for edit in (
        swap(AttentionConfig, attention),
        swap(CrossAttentionConfig, cross),
        swap(FeedForwardConfig, lambda c: replace(c, hidden=hidden_width(c, width))),
        swap(GatedFeedForwardConfig, lambda c: replace(c, hidden=hidden_width(c, width))),
        swap(LatentAttentionConfig, lambda a: replace(a, dropout=0.0)),
        swap(ExpertsConfig, _canonical_experts),
        swap(DropoutConfig, ElementDropoutConfig()),
        swap(Config, _without_dropout),
    ):
        full = edit(full)
    return replace(full, init=NormalInitConfig())


def _without_dropout(config: Config) -> Config:
    """Return a part without dropout and without labels, neither of which changes its outputs."""
    found = fields_of(config)
    changes: dict[str, object] = {"dropout": 0.0} if isinstance(found.get("dropout"), float) else {}
    return replace(config, **(changes | ({"labels": ()} if "labels" in found else {})))

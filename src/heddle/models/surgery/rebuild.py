"""Rebuilding: a model of another config that takes over the weights of one that is there, without copying them."""

from torch import nn

from heddle.core import ConfigError
from heddle.models.networks import EncoderConfig, EncoderDecoderConfig, LanguageModelConfig, Model, ModelConfig
from heddle.models.summary import build_meta

NetworkConfig = LanguageModelConfig | EncoderDecoderConfig | EncoderConfig


def expand_config(config: ModelConfig) -> NetworkConfig:
    """Return a config written out in full: as a network, not by a name."""
    full = config.expand()
    if not isinstance(full, LanguageModelConfig | EncoderDecoderConfig | EncoderConfig):
        raise ConfigError("model.kind", want="language_model, encoder_decoder or encoder", got=full.kind)
    return full


def rebuild(model: Model, config: NetworkConfig) -> tuple[Model, dict[str, nn.Parameter]]:
    """Return a model of another config, and those of its weights that the given one cannot fill, by name.

    All others, alike in name and shape, lie in the same memory as the given model's.
    """
    like, own = next(model.parameters()), model.weights()
    made = build_meta(config).to(like.dtype)
    made.materialise(like.device)
    empty: dict[str, nn.Parameter] = {}
    for name, weight in made.named_parameters():
        if name in own and own[name].shape == weight.shape:
            weight.data = own[name]
        else:
            empty[name] = weight
    made.compute = model.compute
    return made.train(model.training), empty

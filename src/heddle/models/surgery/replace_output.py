"""Replace the outputs of a model: other weights stay, new ones are initialized (fine-tuning, Devlin et al. 2018)."""

from heddle.models.networks import Model, NetworkConfig
from heddle.models.surgery.rebuild import rebuild
from heddle.nn.base import initialize


def replace_output(model: Model, config: NetworkConfig, seed: int = 0) -> Model:
    """Return a model of a config that differs in outputs and pooling; weights of the same names and shapes stay."""
    if config == model.config:
        return model
    made, empty = rebuild(model, config)
    initialize(made, config.init, made.depth, seed, only=empty)
    return made

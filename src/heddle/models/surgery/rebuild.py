"""Rebuilding: a model of another config that shares the weights of an existing one, without copying them."""

from torch import nn

from heddle.models.networks import Model, NetworkConfig
from heddle.models.summary import build_meta


def rebuild(model: Model, config: NetworkConfig) -> tuple[Model, dict[str, nn.Parameter]]:
    """Return a model of another config, and by name those of its weights that the given model does not have.

    All others, which have the same name and shape, share memory with the given model's.
    """
    like, own = next(model.parameters()), model.weights()
    made = build_meta(config).to(like.dtype)
    made.materialize(like.device)
    empty: dict[str, nn.Parameter] = {}
    for name, weight in made.named_parameters():
        if name in own and own[name].shape == weight.shape:
            weight.data = own[name]
        else:
            empty[name] = weight
    made.compute = model.compute
    return made.train(model.training), empty

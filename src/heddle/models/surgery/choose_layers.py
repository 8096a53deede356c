"""Choose layers: a shallower model from some layers of another, the start of a student (Sanh et al. 2019)."""

import itertools
from collections.abc import Sequence

from heddle.core import ConfigError, replace
from heddle.models.networks import (
    EncoderConfig,
    EncoderDecoderConfig,
    LanguageModelConfig,
    Model,
    ModelConfig,
    NetworkConfig,
)
from heddle.models.surgery.rebuild import rebuild
from heddle.nn.stack import ChainConfig, PlanConfig, RepeatConfig

Layers = int | Sequence[int]  # how many, spread evenly; or their numbers
Names = dict[str, str]  # how names of weights begin, by how they began before


def spread_layers(depth: int, count: int) -> tuple[int, ...]:
    """Return the numbers of `count` of `depth` layers, spread evenly from the first to the last.

    Of 12 layers, 6 are 0, 2, 4, 7, 9 and 11, those of DistilBERT.
    """
    if count == 1:
        return (0,)
    return tuple(round(number * (depth - 1) / (count - 1)) for number in range(count))


def with_layers(config: ModelConfig, layers: Layers) -> NetworkConfig:
    """Return a config with some of its layers only, of an encoder-decoder the same of both sides."""
    return _chosen(config.expand(), layers)[0]


def choose_layers(model: Model, layers: Layers) -> Model:
    """Return a model with some of the layers of another; all weights are shared with it."""
    config, names = _chosen(model.config, layers)
    own, (made, _) = model.weights(), rebuild(model, config)
    for name, weight in made.named_parameters():
        start = next((new for new in names if name.startswith(new)), "")
        weight.data = own[names.get(start, "") + name.removeprefix(start)]
    return made


def _chosen(config: NetworkConfig, layers: Layers) -> tuple[NetworkConfig, Names]:
    if isinstance(config, EncoderDecoderConfig):
        encoder, reading = _chosen_of_tower(config.encoder.plan, layers, "encoder.")
        decoder, writing = _chosen_of_tower(config.decoder.plan, layers, "decoder.")
        towers = {"encoder": replace(config.encoder, plan=encoder), "decoder": replace(config.decoder, plan=decoder)}
        return replace(config, **towers), reading | writing
    assert isinstance(config, EncoderConfig | LanguageModelConfig)
    plan, names = _chosen_of_tower(config.plan, layers, "")
    return replace(config, plan=plan), names


def _chosen_of_tower(plan: PlanConfig, layers: Layers, tower: str) -> tuple[PlanConfig, Names]:
    depth = plan.depth()
    if isinstance(layers, int):
        if not 1 <= layers <= depth:
            raise ConfigError("init_layers", want=f"1 to {depth}, the layers of the model in init", got=layers)
        layers = spread_layers(depth, layers)
    fits = layers and all(0 <= layer < depth for layer in layers)
    if not fits or any(after <= before for before, after in itertools.pairwise(layers)):
        want = f"ascending numbers from 0 to {depth - 1}, the layers of the model in init"
        raise ConfigError("init_layers", want=want, got=list(layers))
    chosen, names = _chosen_of_plan(plan, list(layers))
    return chosen, {f"{tower}stack.{new}": f"{tower}stack.{old}" for new, old in names.items()}


def _chosen_of_plan(plan: PlanConfig, layers: list[int]) -> tuple[PlanConfig, Names]:
    """Return a plan with these of its layers, and how the names of weights inside begin, new and old."""
    if layers == list(range(plan.depth())):
        return plan, {"": ""}
    if isinstance(plan, RepeatConfig) and plan.body.depth() == 1:
        return replace(plan, times=len(layers)), {f"{new}.": f"{old}." for new, old in enumerate(layers)}
    if not isinstance(plan, ChainConfig):
        want = "null, because the layers of the model in init cannot be taken apart"
        raise ConfigError("init_layers", want=want, got=f"layers of the kind {plan.kind}")
    bodies: list[PlanConfig] = []
    names: Names = {}
    first = 0
    for number, body in enumerate(plan.bodies):
        inside = [layer - first for layer in layers if first <= layer < first + body.depth()]
        first += body.depth()
        if inside or not body.depth():
            made, inner = _chosen_of_plan(body, inside)
            names |= {f"{len(bodies)}.{new}": f"{number}.{old}" for new, old in inner.items()}
            bodies.append(made)
    return ChainConfig(bodies=tuple(bodies)), names

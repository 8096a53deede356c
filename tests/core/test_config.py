"""Configs decode strictly, encode faithfully, and can be overridden, swapped and diffed."""

import dataclasses
import importlib
import inspect
import math
from collections.abc import Iterator
from typing import Annotated

import pytest

from heddle.core import (
    Config,
    ConfigError,
    Count,
    Positive,
    Share,
    decode,
    diff,
    encode,
    find,
    override,
    part,
    settings,
    swap,
    within,
)
from heddle.core.numbers import _checks


class Shape(Config):
    """A family for these tests."""


@part("circle")
class Circle(Shape):
    radius: float = 1.0


@part("box")
class Box(Shape):
    sides: tuple[int, ...] = (1, 2)
    inner: Shape | None = None
    names: tuple[str, ...] | None = None
    corner: tuple[int, str] = (0, "left")


@settings
class Scene(Config):
    shape: Shape
    name: str = "scene"
    count: int = 1
    shown: bool = True


SCENE = Scene(shape=Box(inner=Circle(radius=2.0)))


def test_encode_then_decode_is_the_identity() -> None:
    assert decode(Scene, encode(SCENE)) == SCENE


def test_a_bare_word_names_a_kind() -> None:
    assert decode(Scene, {"shape": "circle"}).shape == Circle()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"shape": "circle", "cuont": 1}, ["cuont", "did you mean 'count'"]),
        ({"shape": "cirlce"}, ["shape.kind", "circle"]),
        ({"shape": "circle", "count": True}, ["count", "whole number", "True"]),
        ({"shape": "circle", "count": 1.5}, ["count", "whole number"]),
        ({"shape": {"kind": "circle", "radius": float("nan")}}, ["shape.radius", "number"]),
        ({"shape": {"kind": "circle", "radius": "wide"}}, ["shape.radius", "number", "wide"]),
        ({"count": 1}, ["shape", "nothing"]),
        ([], ["Scene"]),
        ({"shape": {"kind": "box", "sides": [1, "x"]}}, ["shape.sides.1"]),
        ({"shape": {"_target_": "os.system"}}, ["shape.kind"]),
    ],
)
def test_wrong_data_is_named(data: object, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        decode(Scene, data)
    for word in words:
        assert word in str(caught.value)


def test_deep_nesting_is_refused() -> None:
    data: object = "circle"
    for _ in range(1000):
        data = {"kind": "box", "inner": data}
    with pytest.raises(ConfigError, match="levels"):
        decode(Scene, {"shape": data})


def test_override_reaches_down_and_changes_nothing_else() -> None:
    changed = override(SCENE, "shape.inner.radius", 3)
    assert changed.shape == Box(inner=Circle(radius=3.0))
    assert [str(c) for c in diff(SCENE, changed)] == ["shape.inner.radius: 2.0 -> 3.0"]
    assert override(SCENE, "shape", "circle").shape == Circle()
    assert override(SCENE, "shape.sides.0", 7).shape == Box(sides=(7, 2), inner=Circle(radius=2.0))


def test_override_reaches_into_every_list() -> None:
    named = override(SCENE, "shape.names", ["a", "b"])
    assert override(named, "shape.names.1", "c").shape == Box(inner=Circle(radius=2.0), names=("a", "c"))
    assert override(SCENE, "shape.corner.1", "right").shape == Box(inner=Circle(radius=2.0), corner=(0, "right"))
    with pytest.raises(ConfigError, match=r"shape\.names\.0: want a text, got 1"):
        override(named, "shape.names.0", 1)


@pytest.mark.parametrize("index", ["2", "²", "-1", "x", "", "1" * 5000], ids=lambda index: index[:9])
def test_override_refuses_what_is_no_index(index: str) -> None:
    with pytest.raises(ConfigError, match="want an index below 2"):
        override(SCENE, f"shape.sides.{index}", 1)


def test_override_names_the_nearest_field() -> None:
    with pytest.raises(ConfigError, match="did you mean 'radius'"):
        override(SCENE, "shape.inner.raduis", 3)


def test_swap_replaces_every_member_of_a_family() -> None:
    bigger = swap(Circle, lambda c: Circle(radius=c.radius * 2))
    assert find(bigger(SCENE), Circle) == [Circle(radius=4.0)]
    assert swap(Shape, Circle())(SCENE).shape == Circle()


@settings
class Ranged(Config):
    size: Positive
    width: Positive | None = None
    skipped: Count = 0
    factor: Annotated[float, within("more than 1", lambda factor: factor > 1)] | None = None
    dropout: Share = 0.0
    layers: Positive | tuple[Count, ...] | None = None
    shares: tuple[Share, ...] = ()


@pytest.mark.parametrize(
    ("field", "value", "want"),
    [
        ("size", 0, "at least 1"),
        ("width", 0, "at least 1"),
        ("skipped", -1, "at least 0"),
        ("factor", 0.5, "more than 1"),
        ("dropout", 1.0, "at least 0 and below 1"),
        ("dropout", math.nan, "at least 0 and below 1"),
    ],
)
def test_the_type_of_a_field_is_its_range(field: str, value: float, want: str) -> None:
    assert Ranged(size=1).width is None
    with pytest.raises(ConfigError, match=f"^{field}: want {want}, got {value}$"):
        Ranged(**{"size": 1, field: value})


def test_each_item_of_a_tuple_has_its_range() -> None:
    assert Ranged(size=1, layers=(0, 3), shares=(0.0, 0.5)).layers == (0, 3)
    for fields, refusal in (
        ({"layers": 0}, "layers: want at least 1, got 0"),
        ({"layers": (0, -1)}, r"layers\.1: want at least 0, got -1"),
        ({"shares": (1.0,)}, r"shares\.0: want at least 0 and below 1, got 1\.0"),
    ):
        with pytest.raises(ConfigError, match=f"^{refusal}$"):
            Ranged(size=1, **fields)


def configs(base: type[Config]) -> Iterator[type[Config]]:
    for child in base.__subclasses__():
        yield child
        yield from configs(child)


def test_a_check_of_its_own_does_not_hide_the_ranges() -> None:
    for name in ("data.rows", "decoding.search", "models", "nn", "objectives", "training"):
        importlib.import_module(f"heddle.{name}")
    ranged = [config for config in configs(Config) if dataclasses.is_dataclass(config) and _checks(config)]
    assert len(ranged) > 30
    for config in ranged:
        own = next(base.__dict__["__post_init__"] for base in config.__mro__ if "__post_init__" in base.__dict__)
        assert own is Config.__post_init__ or "super().__post_init__()" in inspect.getsource(own), config

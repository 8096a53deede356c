"""Shapes: tensor types for annotations, with one name per dimension."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

Ids = Int[Tensor, "batch length"]
Vector = Float[Tensor, "batch width"]  # one for each row
Stream = Float[Tensor, "batch length width"]
Weights = Float[Tensor, "batch length"]
Hidden = Float[Tensor, "... width"]
Targets = Int[Tensor, "..."]
Losses = Float[Tensor, "..."]  # of each target
Allowed = Bool[Tensor, "#batch #heads #query key"]

__all__ = [
    "Allowed",
    "Bool",
    "Float",
    "Hidden",
    "Ids",
    "Int",
    "Losses",
    "Stream",
    "Targets",
    "Tensor",
    "Vector",
    "Weights",
]

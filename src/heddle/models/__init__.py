"""Models: networks made of parts, presets by name, surgery, and summaries of their size and cost."""

from heddle.models import narang, networks, presets, surgery
from heddle.models.resize import Shape, ShapeLadder, resize, shape_of, stack_parameters
from heddle.models.summary import (
    Summary,
    active_parameters,
    build_meta,
    count_parameters,
    forward_flops,
    summarize,
    training_flops,
    tree,
)

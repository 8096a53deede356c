"""Models: whole networks made of parts, their names, and what they weigh."""

from heddle.models import narang, networks, presets, surgery
from heddle.models.summary import Summary, build_meta, count_parameters, forward_flops, summarise, training_flops, tree

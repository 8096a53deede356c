"""Attribution: which tokens a prediction depends on; and activation patching, where two texts differ."""

from heddle.explain.attribution.attribution import Attribution, attribution
from heddle.explain.attribution.patching import Patching, patching

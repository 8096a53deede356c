"""Laws: what holds for every model, each written once, for the library's tests and for `heddle check`."""

from heddle.models.laws.check import CheckedLaw, check_module
from heddle.models.laws.small_models import FAMILIES

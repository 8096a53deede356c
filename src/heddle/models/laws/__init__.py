"""Laws: what holds for every model, each written once, for the library's tests and for `heddle check`."""

from heddle.models.laws.check import CheckedLaw, check_module

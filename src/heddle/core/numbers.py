"""Numbers: arithmetic that stays finite."""

import math

MOST = 700.0  # nats; e to the power of more is no longer a number


def bounded_exp(nats: float) -> float:
    """Return e to a power, where too large a power counts as the largest that has a result."""
    return math.exp(min(nats, MOST))

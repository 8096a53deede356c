"""Numbers: arithmetic that stays finite, and fields that stay in their range."""

import math

from heddle.core.errors import ConfigError

MOST = 700.0  # nats; e to the power of more is no longer a number


def bounded_exp(nats: float) -> float:
    """Return e to a power, where too large a power counts as the largest that has a result."""
    return math.exp(min(nats, MOST))


def check_at_least(least: float, /, **fields: float | None) -> None:
    """Refuse a field that is smaller; None stands for one that was left open."""
    for name, value in fields.items():
        if value is not None and not value >= least:
            raise ConfigError(name, want=f"at least {least}", got=value)


def check_at_most(most: float, /, **fields: float | None) -> None:
    """Refuse a field that is larger; None stands for one that was left open."""
    for name, value in fields.items():
        if value is not None and not value <= most:
            raise ConfigError(name, want=f"at most {most:,}", got=value)


def check_share(**fields: float) -> None:
    """Refuse a share that is no probability, or that leaves nothing."""
    for name, value in fields.items():
        if not 0.0 <= value < 1.0:
            raise ConfigError(name, want="at least 0 and below 1", got=value)

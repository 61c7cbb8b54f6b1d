"""Numbers as people read them; undefined is "–" and infinite is "∞" everywhere."""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

UNDEFINED, INFINITE = "–", "∞"


def _signed(write: Callable[..., str]) -> Callable[..., str]:
    """Write an undefined or infinite value as its sign."""

    @wraps(write)
    def written(value: float | None, /, *arguments: Any, **named: Any) -> str:
        if value is None or math.isnan(value):
            return UNDEFINED
        if math.isinf(value):
            return INFINITE if value > 0 else f"-{INFINITE}"
        return write(value, *arguments, **named)

    return written


@_signed
def decimal(value: float, places: int = 3) -> str:
    """Write a value with a fixed number of decimal places: .0213 is "0.021"."""
    return f"{value:,.{places}f}"


@_signed
def points(value: float) -> str:
    """Write a share in [0, 1] in percentage points with one place: .0213 is "2.1"."""
    return f"{100 * value:.1f}"


@_signed
def significant(value: float, digits: int = 3) -> str:
    """Write a value with significant digits, and a power of ten where it is very small or large."""
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    if value == 0 or not -4 < exponent < 6:
        return _scientific(value, digits) if value else "0"
    return f"{float(f'{value:.{digits - 1}e}'):,.{max(0, digits - 1 - exponent)}f}"


@_signed
def probability(value: float) -> str:
    """Write a small probability such as delta: .0001 is "1e-4"."""
    return f"{value:g}" if value == 0 or value >= 0.01 else _scientific(value, 3)


def _scientific(value: float, digits: int) -> str:
    mantissa, power = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"


@_signed
def rounded_up(value: float) -> str:
    """Write a privacy cost, rounded up so that the text never claims less than was spent.

    Three decimal places below 1, two below 100, none above.
    """
    places = 3 if value < 1 else 2 if value < 100 else 0
    scale = 10**places
    # 2.0 solved to a tolerance may arrive as 2.0000000001; that is not a cost of 2.01.
    return f"{math.ceil(value * scale - 1e-6) / scale:,.{places}f}"


def count(value: int | None) -> str:
    """Write a whole number with thousands apart."""
    return UNDEFINED if value is None else f"{value:,}"


def known(ends: tuple[float | None, float | None] | None) -> tuple[float, float] | None:
    """Return an interval of which both ends are known."""
    return None if ends is None or ends[0] is None or ends[1] is None else (ends[0], ends[1])


def interval(
    ends: tuple[float | None, float | None] | None, write: Callable[[float | None], str]
) -> str:
    """Write an interval as "[low, high]", or nothing where it is undefined."""
    return f"[{write(ends[0])}, {write(ends[1])}]" if (ends := known(ends)) else ""


@_signed
def duration(seconds: float) -> str:
    """Write a duration: 75 is "1 min 15 s"."""
    if seconds < 59.5:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"

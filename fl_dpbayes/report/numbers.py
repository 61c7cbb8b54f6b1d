"""Numbers as people read them; undefined is "–" and infinite is "∞" everywhere."""

import math
from collections.abc import Callable

UNDEFINED = "–"
INFINITE = "∞"


def _special(value: float | None) -> str | None:
    """Return the sign for an undefined or infinite value, None for an ordinary one."""
    if value is None or math.isnan(value):
        return UNDEFINED
    if math.isinf(value):
        return INFINITE if value > 0 else f"-{INFINITE}"
    return None


def decimal(value: float | None, places: int = 3) -> str:
    """Write a value with a fixed number of decimal places: .0213 is "0.021"."""
    return _special(value) or f"{value:,.{places}f}"


def points(value: float | None) -> str:
    """Write a share in [0, 1] in percentage points with one place: .0213 is "2.1"."""
    return _special(value) or f"{100 * (value or 0):.1f}"


def significant(value: float | None, digits: int = 3) -> str:
    """Write a value with significant digits, and a power of ten where it is very small or large."""
    special = _special(value)
    if special is not None or value is None:
        return special or UNDEFINED
    if value == 0:
        return "0"
    mantissa, power = f"{value:.{digits - 1}e}".split("e")
    exponent = int(power)
    if -4 < exponent < 6:
        return f"{float(f'{mantissa}e{power}'):,.{max(0, digits - 1 - exponent)}f}"
    return f"{mantissa.rstrip('0').rstrip('.')}e{exponent}"


def probability(value: float | None) -> str:
    """Write a small probability such as delta: .0001 is "1e-4"."""
    special = _special(value)
    if special is not None or value is None:
        return special or UNDEFINED
    if value == 0 or value >= 0.01:
        return f"{value:g}"
    mantissa, power = f"{value:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"


def rounded_up(value: float | None) -> str:
    """Write a privacy cost, rounded up so that the text never claims less than was spent.

    Three decimal places below 1, two below 100, none above.
    """
    special = _special(value)
    if special is not None or value is None:
        return special or UNDEFINED
    places = 3 if value < 1 else 2 if value < 100 else 0
    scale = 10**places
    # 2.0 solved to a tolerance may arrive as 2.0000000001; that is not a cost of 2.01.
    return f"{math.ceil(value * scale - 1e-6) / scale:,.{places}f}"


def count(value: int | None) -> str:
    """Write a whole number with thousands apart."""
    return UNDEFINED if value is None else f"{value:,}"


def interval(ends: tuple[float | None, float | None] | None, write: Callable[[float | None], str]) -> str:
    """Write an interval as "[low, high]", or nothing where it is undefined."""
    if ends is None or ends[0] is None or ends[1] is None:
        return ""
    return f"[{write(ends[0])}, {write(ends[1])}]"


def data_size(bytes_: float | None) -> str:
    """Write a number of bytes in powers of 1000: 1,234,567 is "1.2 MB"."""
    special = _special(bytes_)
    if special is not None or bytes_ is None:
        return special or UNDEFINED
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if bytes_ >= size:
            return f"{bytes_ / size:,.1f} {unit}"
    return f"{bytes_:.0f} B"


def duration(seconds: float | None) -> str:
    """Write a duration: 75 is "1 min 15 s"."""
    special = _special(seconds)
    if special is not None or seconds is None:
        return special or UNDEFINED
    if seconds < 59.5:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"

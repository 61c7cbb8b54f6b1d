"""Numbers as people read them; undefined is "–" and infinite is "∞" everywhere."""

import math
import re
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from fl_dpbayes.calibration import Ends, Metric

UNDEFINED = "–"
INFINITE = "∞"
Options = ParamSpec("Options")
Write = Callable[[float | None], str]
_ONE_LINE = re.compile(r"\[[^\[\]]*\]|\([^() ]+ to [^() ]+\)|\bn = \d+")


def _with_signs(
    write: Callable[Concatenate[float, Options], str],
) -> Callable[Concatenate[float | None, Options], str]:
    """Write an undefined or infinite value as its sign."""

    @wraps(write)
    def write_or_sign(
        value: float | None, /, *arguments: Options.args, **keywords: Options.kwargs
    ) -> str:
        if value is None or math.isnan(value):
            return UNDEFINED
        if math.isinf(value):
            return INFINITE if value > 0 else f"-{INFINITE}"
        return write(value, *arguments, **keywords)

    return write_or_sign


@_with_signs
def decimal(value: float, places: int = 3) -> str:
    """Write a value with a fixed number of decimal places: .0213 is "0.021"."""
    return f"{value:,.{places}f}"


@_with_signs
def points(value: float) -> str:
    """Write a share in [0, 1] in percentage points with one place: .0213 is "2.1"."""
    return f"{100 * value:.1f}"


@_with_signs
def significant(value: float, digits: int = 3) -> str:
    """Write a value with significant digits, as a power of ten where very small or large."""
    if value == 0:
        return "0"
    rounded = f"{value:.{digits - 1}e}"
    exponent = int(rounded.partition("e")[2])
    if not -4 < exponent < 6:
        return _scientific(value, digits)
    places = max(0, digits - 1 - exponent)
    return f"{float(rounded):,.{places}f}"


@_with_signs
def probability(value: float) -> str:
    """Write a small probability such as delta: .0001 is "1e-4"."""
    return f"{value:g}" if value == 0 or value >= 0.01 else _scientific(value, 3)


def _scientific(value: float, digits: int) -> str:
    mantissa, power = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"


@_with_signs
def rounded_up(value: float) -> str:
    """Write a privacy cost, rounded up so that the text never claims less than was spent.

    Three decimal places below 1, two below 100, none above.
    """
    if value < 1:
        places = 3
    elif value < 100:
        places = 2
    else:
        places = 0
    scale = 10**places
    # 2.0 solved to a tolerance may arrive as 2.0000000001; that is not a cost of 2.01.
    return f"{math.ceil(value * scale - 1e-6) / scale:,.{places}f}"


def count(value: int | None) -> str:
    """Write a whole number with thousands apart."""
    return UNDEFINED if value is None else f"{value:,}"


def metric_writer(metric: Metric) -> Write:
    """Return how a metric's values are written."""
    return points if metric.unit == "share" else decimal


def known_ends(ends: Ends) -> tuple[float, float] | None:
    """Return an interval of which both ends are known, else None."""
    if ends is None:
        return None
    low, high = ends
    if low is None or high is None:
        return None
    return low, high


def interval(ends: Ends, write: Write) -> str:
    """Write an interval as "[low, high]", or nothing where it is undefined."""
    pair = known_ends(ends)
    if pair is None:
        return ""
    return f"[{write(pair[0])}, {write(pair[1])}]"


def unbroken(text: str) -> str:
    """Keep each "[low, high]", "(low to high)" and "n = 450" on one line."""
    return _ONE_LINE.sub(lambda match: match[0].replace(" ", "\N{NO-BREAK SPACE}"), text)


@_with_signs
def duration(seconds: float) -> str:
    """Write a duration: 75 is "1 min 15 s"."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, seconds_beyond = divmod(round(seconds), 60)
    hours, minutes_beyond = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes_beyond} min"
    return f"{minutes} min {seconds_beyond} s"

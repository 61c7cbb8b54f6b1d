"""Epsilon after each round at each site, with the budget."""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.report.figure_style import CYCLE, INK, MUTED, WIDTH_INCHES, quiet_grid, set_title
from fl_dpbayes.report.run_files import read_csv

MAX_NAMED = len(CYCLE)


@dataclass(frozen=True)
class EpsilonCurve:
    """Epsilon spent at one site after each of its rounds; `budget` is None where none was stated."""

    site: str
    rounds: tuple[int, ...]
    epsilons: tuple[float, ...]
    budget: float | None


def read_epsilon_curves(run_dir: Path | str) -> list[EpsilonCurve]:
    """Read the curves of a run from its `privacy.csv`; without the file there are none."""
    path = Path(run_dir) / "privacy.csv"
    try:
        return epsilon_curves(read_csv(path))
    except (ValueError, TypeError, csv.Error) as error:
        reason = str(error)
    except KeyError as error:
        reason = f"it has no column {error}"
    raise UserError(f"{path} is damaged ({reason}): remove it to report without epsilon per round, or run again")


def epsilon_curves(rows: Iterable[Mapping[str, str]]) -> list[EpsilonCurve]:
    """Collect the curves from the rows of `privacy.csv`."""
    points: dict[str, dict[int, float]] = {}
    budgets: dict[str, float | None] = {}
    for row in rows:
        if row.get("round") and row.get("epsilon"):
            points.setdefault(row["site"], {})[int(row["round"])] = float(row["epsilon"])
            budgets[row["site"]] = float(row["budget"]) if row.get("budget") else None
    return [
        EpsilonCurve(site, tuple(sorted(spent)), tuple(spent[number] for number in sorted(spent)), budgets[site])
        for site, spent in points.items()
    ]


def _finite(curve: EpsilonCurve) -> bool:
    return all(math.isfinite(epsilon) for epsilon in curve.epsilons)


def _groups(curves: Sequence[EpsilonCurve]) -> list[tuple[EpsilonCurve, list[str]]]:
    """Join sites that spent the same, which lie on top of each other; the largest spender comes first."""
    groups: dict[tuple, tuple[EpsilonCurve, list[str]]] = {}
    for curve in curves:
        key = (curve.rounds, tuple(round(epsilon, 4) for epsilon in curve.epsilons))
        groups.setdefault(key, (curve, []))[1].append(curve.site)
    return sorted(groups.values(), key=lambda group: -group[0].epsilons[-1])


def _name(sites: list[str]) -> str:
    text = sites[0] if len(sites) == 1 else f"{sites[0]} and {len(sites) - 1} more"
    return text if len(text) <= 24 else f"{text[:23]}…"


def epsilon_figure(curves: Sequence[EpsilonCurve], subtitle: str) -> Figure | None:
    """Draw epsilon after each round; names stand at the lines' ends."""
    drawn = [curve for curve in curves if _finite(curve)]
    if not drawn:
        return None
    figure = Figure(figsize=(WIDTH_INCHES, 3.1))
    set_title(figure, "Epsilon spent after each round", subtitle)
    axes = figure.add_axes((0.1, 0.145, 0.57, 0.615))
    quiet_grid(axes, "y")
    groups = _groups(drawn)
    labels: list[tuple[float, str, str]] = []
    if len(groups) <= MAX_NAMED:
        for colour, (curve, sites) in zip(CYCLE, groups, strict=False):
            axes.plot(curve.rounds, curve.epsilons, color=colour, linewidth=1.3, marker="o", markersize=2.8)
            labels.append((curve.epsilons[-1], _name(sites), colour))
    else:
        for curve, _ in groups:
            axes.plot(curve.rounds, curve.epsilons, color=MUTED, linewidth=0.8, alpha=0.4)
        labels.append((groups[0][0].epsilons[-1], f"{len(drawn)} sites", MUTED))
    budgets = sorted({curve.budget for curve in drawn if curve.budget is not None and math.isfinite(curve.budget)})
    for budget in budgets[-2:]:
        axes.axhline(budget, color=INK, linewidth=1, linestyle=(0, (5, 3)))
        labels.append((budget, f"budget {budget:g}", INK))
    top = max([*budgets[-2:], *(curve.epsilons[-1] for curve in drawn)]) or 1.0
    last = max(curve.rounds[-1] for curve in drawn)
    first = min(curve.rounds[0] for curve in drawn)
    axes.set(ylim=(0, 1.08 * top), xlim=(first - 0.2, last + 0.2), xlabel="round", title="epsilon")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    for height, text, colour in _spread(labels, distance=0.072 * top):
        axes.annotate(
            text, (1.0, height), xycoords=axes.get_yaxis_transform(), xytext=(4, 0), textcoords="offset points",
            color=colour, size=7.5, va="center", annotation_clip=False,
        )  # fmt: skip
    return figure


def _spread(labels: list[tuple[float, str, str]], distance: float) -> list[tuple[float, str, str]]:
    """Move labels down until neighbours are `distance` apart, so that none covers another."""
    spread: list[tuple[float, str, str]] = []
    for height, text, colour in sorted(labels, key=lambda label: -label[0]):
        if spread:
            height = min(height, spread[-1][0] - distance)
        spread.append((height, text, colour))
    return spread

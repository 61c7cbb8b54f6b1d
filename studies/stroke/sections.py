"""Sections of the stroke trial's page: what holds at new hospitals, and what was run."""

from pathlib import Path

import numpy as np
import pandas as pd

BUDGETS = {
    "epsilon 0.5": "0.5",
    "epsilon 1": "1",
    "epsilon 2": "2",
    "epsilon 8": "8",
    "without privacy": "none",
}
WAYS = {
    "no update": "no update",
    "at home": "all, at home",
    "private": "one sum at epsilon 1",
}
# Figures of which fewer digits are shown.
COARSE = ("sd ", "new hospital", "country known")


def interval(row: pd.Series, digits: int = 4) -> str:
    """Return a value and its interval."""
    return f"{row['value']:.{digits}f} [{row['low']:.{digits}f}, {row['high']:.{digits}f}]"


def epsilon_section(folder: Path) -> str:
    """Return log loss by epsilon.

    Args:
        folder: Holds `rivals.csv` and `covariance.csv`.
    """
    table = pd.read_csv(folder / "rivals.csv").set_index("figure")
    public = pd.read_csv(folder / "covariance.csv").set_index("predictor")
    lines = [
        "| epsilon | one model | a level for each hospital | public covariance, less declared "
        "scales: one model | a level for each hospital |",
        "|---|---|---|---|---|",
    ]
    for privacy, words in BUDGETS.items():
        names = [f"one model, {privacy}", f"hierarchical, {privacy}"]
        cells = [interval(table.loc[name], digits=3) for name in names]
        cells += [interval(public.loc[name]) if name in public.index else "" for name in names]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def held_out_section(folder: Path) -> str:
    """Return what is foretold of hospitals and countries held out, and how often it holds.

    Args:
        folder: Holds `held-out.csv`.
    """
    table = pd.read_csv(folder / "held-out.csv", keep_default_na=False)
    lines = [
        "| held out | what is known | epsilon | log loss, less one model's | joint, less one "
        "model's | 90 % interval holds | mean width |",
        "|---|---|---|---|---|---|---|",
    ]
    known = table[table["known"] != ""]
    keys = ["held out", "known", "privacy"]
    for (kind, name, privacy), part in known.groupby(keys, sort=False):
        figures = part.set_index("figure")
        cells = [
            interval(figures.loc["integrated less one model"], digits=3),
            interval(figures.loc["joint less one model"], digits=3),
            interval(figures.loc["coverage"], digits=2),
            interval(figures.loc["width"], digits=2),
        ]
        lines.append(f"| {kind} | {name} | {BUDGETS[privacy]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def update_section(folder: Path) -> str:
    """Return the share of the gap that own labelled patients close.

    Args:
        folder: Holds `update.csv`.
    """
    table = pd.read_csv(folder / "update.csv")
    counts = list(table["patients"].unique())
    heads = " | ".join(f"{count} patients" for count in counts)
    lines = [
        f"| % of the gap closed [90 %] | what patients tell | {heads} |",
        f"|---|---|{'---|' * len(counts)}",
    ]
    for (kind, known, way), part in table.groupby(["held out", "known", "figure"], sort=False):
        by_count = part.set_index("patients")
        cells = []
        for count in counts:
            row = by_count.loc[count]
            low, high = 100 * row["low"], 100 * row["high"]
            cells.append(f"{100 * row['value']:.0f} [{low:.0f}, {high:.0f}]")
        lines.append(f"| {kind}, known: {known} | {WAYS[way]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def sets_section(folder: Path) -> str:
    """Return coverage and size of sets in held-out countries.

    Args:
        folder: Holds `sets.csv`.
    """
    lines = [
        "| calibrated on | epsilon | countries | coverage | worst country | lowest tenth of "
        "thresholds | size over a set's without privacy |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in pd.read_csv(folder / "sets.csv").to_dict("records"):
        lines.append(
            f"| {row['patients']} patients | {row['epsilon']:g} | {row['places']} "
            f"| {row['coverage']:.3f} | {row['worst']:.3f} | {row['lowest']:.3f} "
            f"| {row['ratio']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def program_section(folder: Path) -> str:
    """Return runs of the program beside draws by NumPy.

    Args:
        folder: Holds `program.csv`, `program-summary.csv` and `program-noise.csv`.
    """
    runs = pd.read_csv(folder / "program.csv")
    summary = pd.read_csv(folder / "program-summary.csv").set_index("figure")
    draws = runs["draws"].min()
    seeds = sorted(runs["seed"].unique())
    lines = [
        f"| runs ({draws} draws by NumPy: mean ± sd) | {' | '.join(map(str, seeds))} "
        "| all runs: mean distance in sds, p |",
        f"|---|{'---|' * (len(seeds) + 1)}",
    ]
    for figure, of_figure in runs.groupby("figure", sort=False):
        digits = 2 if str(figure).startswith(COARSE) else 4
        cells = []
        for _, part in of_figure.groupby("seed"):
            values = ", ".join(f"{value:.{digits}f}" for value in part["program"])
            first = part.iloc[0]
            cells.append(f"{values} ({first['mean']:.{digits}f} ± {first['sd']:.{digits}f})")
        overall = summary.loc[figure]
        cells.append(f"{overall['off']:.1f}, {overall['p']:.3f}")
        lines.append(f"| {figure} | {' | '.join(cells)} |")
    noise = pd.read_csv(folder / "program-noise.csv")
    numbers = noise["numbers"].sum()
    size = np.sqrt((noise["numbers"] * noise["square"] ** 2).sum() / numbers)
    lines += [
        "",
        f"Of {numbers} numbers that the program's hospitals released, the noise was {size:.3f} ± "
        f"{1 / np.sqrt(2 * numbers):.3f} times the planned one. Planned noises differ by at most "
        f"{noise['planned off'].max():.1g} of theirs, the way of the state after burn-in by "
        f"{noise['steps off'].max():.1g}.",
    ]
    return "\n".join(lines) + "\n"

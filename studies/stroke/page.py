"""Writes docs/results/stroke/README.md and its figures from the JSON beside it: `python -m studies.stroke.page`."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fl_dpbayes.report import figure_style as look

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "stroke"
PAGE = RESULTS / "README.md"
EPSILONS = ("0.5", "1", "2", "8", "none")
PATIENTS = (10, 20, 50, 100, 200)
SIZES = ("20 to 49", "50 to 99", "100 and more")
NAMES = {
    "one": "the federation's one model",
    "hierarchical": "a level for each hospital, at the server",
    "home": "a level for each hospital, updated at home",
    "alone": "each hospital alone, at the same epsilon",
    "pooled": "all patients in one place, without privacy",
    "published": "the trial's own score, fitted on these patients",
    "no privacy": "a level for each hospital, without privacy",
}
SAID = {
    "unknown": "nothing",
    "country known": "its country",
    "new country": "that its country is a new one",
}
LEVELS = {
    "one level": "between hospitals, one level",
    "hospitals": "between hospitals of a country",
    "groups": "between countries",
}
WAYS = {
    "no update": "no update",
    "at home": "at home",
    "private": "private, epsilon 1",
    "alone": "at home, a prior that says nothing",
}
KNOWN = {
    "hospitals": ("unknown", "country known", "new country"),
    "countries": ("new country", "unknown"),
}


def found() -> dict[str, dict[str, Any]]:
    """Return what was measured, by file."""
    measured = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(RESULTS.glob("*.json"))
    }
    sets = measured.get("conformal", {})
    rows: dict[str, dict[str, float]] = {}
    for kind, key in (("simulated", "simulated"), ("countries", "over_countries")):
        for row in sets.get(key, []):
            at, error = (
                f"{row['m']} patients, epsilon {row['epsilon']:g}, {kind}",
                1.645 * row.get("coverage_error", 0.0),
            )
            rows[f"{at}, ratio"], rows[f"{at}, coverage"] = (
                {"value": row["ratio"]},
                {"value": row["coverage"]},
            )
            if error:
                rows[f"{at}, coverage"] |= {
                    "low": row["coverage"] - error,
                    "high": row["coverage"] + error,
                }
    sets["rows"] = rows
    return measured


def reference() -> str:
    """Return the page with its tables made anew."""
    measured = found()
    blocks = {
        "answer": answer,
        "score": score,
        "targets": targets,
        "training": training_table,
        "sizes": sizes_table,
        "spread": spread_table,
        "new": new_table,
        "update": update_table,
        "heart": heart_table,
        "sets": sets_table,
        "alarm": alarm_table,
        "program": program_table,
    }
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in blocks.items():
        text = filled(text, name, "\n" + "\n".join(lines(measured)) + "\n")
    return text


def filled(text: str, name: str, block: str) -> str:
    """Return a page with a block between the marks of a name."""
    block = f"<!-- {name} -->\n{block}\n<!-- end -->"
    return re.sub(f"<!-- {name} -->.*?<!-- end -->", lambda _: block, text, flags=re.DOTALL)


def shown(row: Mapping[str, Any], digits: int = 3) -> str:
    """Write a figure with its 90 % interval."""
    text = f"{row['value']:.{digits}f}"
    return f"{text} [{row['low']:.{digits}f}, {row['high']:.{digits}f}]" if "low" in row else text


def goals() -> list[dict[str, Any]]:
    """Return what was to be reached."""
    return tomllib.loads((RESULTS / "targets.toml").read_text(encoding="utf-8"))["rows"]


def reached(row: Mapping[str, Any], target: Mapping[str, Any]) -> bool:
    """Say whether a figure is where it was to be."""
    return (
        row["value"] >= target["reach"] if target.get("above") else row["value"] <= target["reach"]
    )


def found_row(measured: Mapping[str, Any], target: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the figure of a target; of several rows the worst."""
    rows = measured.get(target["file"], {}).get("rows", {})
    names = [target["row"]] if isinstance(target["row"], str) else target["row"]
    chosen = [rows[name] for name in names if name in rows]
    if not chosen:
        return None
    return min(chosen, key=lambda row: row["value"] if target.get("above") else -row["value"])


def answer(measured: Mapping[str, Any]) -> Iterator[str]:
    """Return the answer in three sentences, which README.md and docs/results.md hold as well."""
    rows, new, update = (measured[name]["rows"] for name in ("training", "new", "update"))
    own, one, alone, pooled = (
        f"{rows[f'{key}, epsilon 1, NLL']['value']:.3f}"
        for key in ("hierarchical", "one", "alone", "pooled")
    )
    held, width = (
        new[f"new country {key}, countries, epsilon 1"]["value"] for key in ("coverage", "width")
    )
    at_hospitals = new["unknown coverage, hospitals, epsilon 1"]["value"]
    country = new["country known width, hospitals, epsilon 1"]["value"]
    home, private = (
        " or ".join(
            f"{100 * update[f'new hospital, {way}, {count} patients']['value']:.0f}"
            for count in (50, 100)
        )
        for way in ("at home", "private")
    )
    ranked = sorted(row["auroc"] for name, row in new.items() if name.startswith("rate, "))
    yield (
        "At a hospital or in a country that it has not seen, trust the model's order of the "
        "patients more than its "
        f"probabilities: in {len(ranked)} countries held out the order was right in {100 * ranked[0]:.0f} to "
        f"{100 * ranked[-1]:.0f} % of pairs (AUROC), but the rate of bad outcomes is known only within an interval "
        f"{100 * width:.0f} points wide (it held in {held:.0%} of countries and {at_hospitals:.0%} of hospitals), and "
        "no check without outcomes told good places from bad ones reliably. If its country "
        "took part the interval is "
        f"{100 * country:.0f} points wide, and the outcomes of 50 or 100 of its own patients repair {home} % of what "
        f"the wrong level costs where they stay at home, {private} % where one noisy number "
        "leaves. A hospital that "
        "took part gets a level of its own, and its probabilities are then better (log loss "
        f"{own}) than one private "
        f"model's for all ({one}), those of a model of its own patients alone at the same "
        f"privacy ({alone}), and those "
        f"of one model of all patients in one place without privacy ({pooled}): the stroke "
        "trial, 259 hospitals, "
        "epsilon 1 each."
    )


def score(measured: Mapping[str, Any]) -> Iterator[str]:
    """Say how many of the figures that were to be reached are."""
    pairs = [
        (row, target) for target in goals() if (row := found_row(measured, target)) is not None
    ]
    count = sum(reached(row, target) for row, target in pairs)
    yield (
        f"Of {len(pairs)} figures {count} are reached: the figure itself, not always the "
        "whole of its interval."
    )


def targets(measured: Mapping[str, Any]) -> Iterator[str]:
    """Return the table of what was to be reached."""
    yield from (
        "| what, at epsilon 1 where nothing else is said | to reach | measured [90 %] | |",
        "|---|---|---|---|",
    )
    for target in goals():
        row = found_row(measured, target)
        if row is None:
            yield (
                f"| {target['what']} | {target['said']} | not measured | {target.get('why', '')} |"
            )
            continue
        good, digits = reached(row, target), target.get("digits", 3)
        figure = f"**{shown(row, digits)}**" if good else shown(row, digits)
        why = "" if good else f"missed: {target.get('why', '')}"
        yield f"| {target['what']} | {target['said']} | {figure} | {why} |"


def training_table(measured: Mapping[str, Any]) -> Iterator[str]:
    """Return NLL and AUROC of predictors at training hospitals."""
    rows = measured["training"]["rows"]
    yield from ("| NLL [90 %] | " + " | ".join(EPSILONS) + " |", "|---" * (len(EPSILONS) + 1) + "|")
    for key in NAMES:
        cells = [rows.get(f"{key}, epsilon {epsilon}, NLL") for epsilon in EPSILONS]
        yield (
            f"| {NAMES[key]} | " + " | ".join(shown(cell) if cell else "–" for cell in cells) + " |"
        )
    for what, said in (("", "declared constants"), (", covariance", "public covariance")):
        for name, key, digits in (("NLL", "one less pooled", 4), ("AUROC", "pooled less one", 4)):
            cells = [rows.get(f"{key}, epsilon {epsilon}{what}, {name}") for epsilon in EPSILONS]
            text = " | ".join(shown(cell, digits) if cell else "–" for cell in cells)
            yield f"| one model's gap to pooled in {name}, {said} | {text} |"


def sizes_table(measured: Mapping[str, Any]) -> Iterator[str]:
    """Return NLL by the number of a hospital's patients, at epsilon 1."""
    rows = measured["training"]["rows"]
    yield from (
        "| NLL [90 %], patients of a hospital | " + " | ".join(SIZES) + " |",
        "|---" * (len(SIZES) + 1) + "|",
    )
    for key in NAMES:
        cells = [rows.get(f"{key}, epsilon 1, {size} patients, NLL") for size in SIZES]
        yield (
            f"| {NAMES[key]} | " + " | ".join(shown(cell) if cell else "–" for cell in cells) + " |"
        )


def spread_table(measured: Mapping[str, Any]) -> Iterator[str]:
    """Return the standard deviations between hospitals and between countries."""
    rows = measured["spread"]["rows"]
    yield (
        "| sd in log odds | all patients, no privacy | maximum likelihood | epsilon | mean over runs [90 % of them] | "
        "a run's 90 % interval, mean | it holds the second column |"
    )
    yield "|---" * 7 + "|"
    for name, said in LEVELS.items():
        all_patients, likeliest = (
            f"{rows[f'{name}, {key}']['value']:.3f}"
            for key in ("all patients", "maximum likelihood")
        )
        for epsilon in EPSILONS:
            if (row := rows.get(f"{name}, epsilon {epsilon}")) is not None:
                low, high = row["interval"]
                held = (
                    f"{rows[f'{name}, epsilon {epsilon}, coverage']['value']:.0%} of {row['seeds']}"
                )
                interval = f"{low:.2f} to {high:.2f}"
                yield f"| {said} | {all_patients} | {likeliest} | {epsilon} | {shown(row)} | {interval} | {held} |"


def new_table(measured: Mapping[str, Any]) -> Iterator[str]:
    """Return what is predicted of hospitals and countries that were held out."""
    rows = measured["new"]["rows"]
    yield (
        "| held out | what is known | epsilon | NLL: one model | integrated, less one model | joint score, less one "
        "model | 90 % interval holds | mean width |"
    )
    yield "|---" * 8 + "|"
    for what, names in KNOWN.items():
        for name in names:
            for epsilon in ("1", "8", "none"):
                at = f"{what}, epsilon {epsilon}"
                if f"one, {at}, NLL" not in rows:
                    continue
                gaps = [
                    shown(rows[f"{name} {key} less one, {at}"]) for key in ("integrated", "joint")
                ]
                held, width = (
                    shown(rows[f"{name} {key}, {at}"], 2) for key in ("coverage", "width")
                )
                one = shown(rows[f"one, {at}, NLL"])
                yield f"| {what} | {SAID[name]} | {epsilon} | {one} | {' | '.join(gaps)} | {held} | {width} |"


def update_table(measured: Mapping[str, Any]) -> Iterator[str]:
    """Return the share of the gap to a place's own level that its labelled patients close."""
    rows = measured["update"]["rows"]
    yield (
        "| % of the gap closed [90 %] by | "
        + " | ".join(f"{count} patients" for count in PATIENTS)
        + " |"
    )
    yield "|---" * (len(PATIENTS) + 1) + "|"
    for place in ("new hospital", "country known", "new country"):
        for way, said in WAYS.items():
            cells = [rows.get(f"{place}, {way}, {count} patients") for count in PATIENTS]
            yield (
                f"| {place}, {said} | "
                + " | ".join(percent(cell) if cell else "–" for cell in cells)
                + " |"
            )
    for way in ("at home", "private"):
        shares = (
            [rows[f"country known, {one}, {count} patients"]["value"] for one in ("no update", way)]
            for count in PATIENTS
        )
        cells = " | ".join(
            f"{100 * (after - before) / (1 - before):.0f}" for before, after in shares
        )
        yield f"| country known, {WAYS[way]}: of what the country leaves | {cells} |"


def percent(row: Mapping[str, Any]) -> str:
    """Write a share in per cent with its interval."""
    return f"{100 * row['value']:.0f} [{100 * row['low']:.0f}, {100 * row['high']:.0f}]"


def heart_table(measured: Mapping[str, Any]) -> Iterator[str]:
    """Return what four hospitals with heart disease tell."""
    rows = measured["heart"]["rows"]
    yield from ("| sd between hospitals, epsilon 4 | seed 1 | seed 2 |", "|---|---|---|")
    for name in (name.removesuffix(", seed 1") for name in rows if name.endswith("seed 1")):
        yield (
            f"| {name.removeprefix('sd, ')} | "
            + " | ".join(shown(rows[f"{name}, seed {one}"], 2) for one in (1, 2))
            + " |"
        )
    yield from (
        "",
        "| NLL at the hospital held out, updated with | "
        + " | ".join(f"{count}" for count in PATIENTS)
        + " |",
    )
    yield "|---" * (len(PATIENTS) + 1) + "|"
    for way in ("one", "no update", "at home", "private", "own level"):
        said = {"one": "one model", "own level": "its own level"}.get(way, WAYS.get(way))
        yield (
            f"| {said} | "
            + " | ".join(shown(rows[f"{way}, {count} patients"]) for count in PATIENTS)
            + " |"
        )


def sets_table(measured: Mapping[str, Any]) -> Iterator[str]:
    """Return coverage and size of private conformal sets."""
    content = measured.get("conformal", {})
    yield "| calibrated on | epsilon | where | coverage | lowest tenth | size over a non-private set's |"
    yield "|---" * 6 + "|"
    for row in content.get("simulated", []):
        where, held = (
            f"{row['hospitals']:,} simulated hospitals",
            f"{row['coverage']:.3f} ± {row['coverage_error']:.3f}",
        )
        rest = f"{row['coverage_lowest_tenth']:.3f} | {row['ratio']:.3f}"
        yield f"| {row['m']} patients | {row['epsilon']:g} | {where} | {held} | {rest} |"
    for row in content.get("over_countries", []):
        held = f"{row['coverage']:.3f} (worst country {row['coverage_worst']:.3f})"
        where = f"{row['countries']} held-out countries"
        yield f"| {row['m']} patients | {row['epsilon']:g} | {where} | {held} | | {row['ratio']:.3f} |"


def alarm_table(measured: Mapping[str, Any]) -> Iterator[str]:
    """Return how well the alarm foretells the error over held-out countries."""
    yield "| held against | statistic | error that it should foretell | Spearman's rank correlation [90 %] | p |"
    yield "|---|---|---|---|---|"
    for row in measured.get("alarm", {}).get("foretells", []):
        against, what, error = (
            ALARM.get(row[key], row[key]) for key in ("reference", "statistic", "error")
        )
        told = shown(
            {"value": row["spearman"], **dict(zip(("low", "high"), row["interval"], strict=True))},
            2,
        )
        yield f"| {against} | {what} | {error} | {told} | {row['p_value']:.2f} |"


ALARM = {
    "declared": "the declared population",
    "others": "the other countries",
    "statistic": "the two-sample statistic",
    "shift_size": "size of the model's shift in log odds",
    "shift": "the model's shift in log odds, signed",
    "nll": "log loss",
    "lost": "log loss above the country's own level",
    "level_size": "size of the error of the level",
    "level": "error of the level, signed",
}


def program_table(measured: Mapping[str, Any]) -> Iterator[str]:
    """Return the program's own runs beside the cells of the same split."""
    yield "| figure at epsilon 1 | the program's run | cells of the same split, other noise: mean ± sd | draws |"
    yield "|---|---|---|---|"
    for name, row in measured.get("program", {"rows": {}})["rows"].items():
        yield f"| {name} | {row['value']:.4f} | {row['cells']:.4f} ± {row['sd']:.4f} | {row['draws']} |"


def by_epsilon() -> Figure:
    """Draw NLL of every predictor at training hospitals by epsilon."""
    rows = found()["training"]["rows"]
    drawn = look.titled_figure(
        "Log loss at training hospitals", "test patients of 5 random splits", 3.2
    )
    axes = drawn.subplots()
    look.quiet_grid(axes, "y")
    keys = ("hierarchical", "one", "alone", "pooled", "published", "home")
    for colour, marker, key in zip(look.CYCLE, "osD^vX", keys, strict=True):
        values = [
            rows.get(f"{key}, epsilon {epsilon}, NLL", {"value": np.nan})["value"]
            for epsilon in EPSILONS
        ]
        axes.plot(values, marker=marker, color=colour, markersize=4, linewidth=1, label=NAMES[key])
    labels = [f"ε {epsilon}" if epsilon != "none" else "no privacy" for epsilon in EPSILONS]
    axes.set_xticks(range(len(EPSILONS)), labels)
    axes.set(ylabel="log loss a patient")
    look.add_legend(drawn, 1)
    return drawn


def by_country() -> Figure:
    """Draw the interval for every held-out country's rate, and what it was."""
    kept = found()["new"]["rows"].items()
    rows = {name.removeprefix("rate, "): row for name, row in kept if name.startswith("rate, ")}
    order = sorted(rows, key=lambda name: rows[name]["value"])
    low, high, one, value = (
        [rows[name][key] for name in order] for key in ("low", "high", "one", "value")
    )
    drawn = look.titled_figure(
        "Dead or dependent at six months",
        "each country held out; bar: 90 % interval for the observed rate",
        3.6,
    )
    axes = drawn.subplots()
    look.quiet_grid(axes, "x")
    axes.hlines(
        range(len(order)), low, high, color=look.SKY, linewidth=4, label="interval, epsilon 1"
    )
    axes.plot(
        one, range(len(order)), "s", color=look.VERMILLION, markersize=3.5, label="one model's mean"
    )
    axes.plot(value, range(len(order)), "o", color=look.INK, markersize=3.5, label="observed")
    axes.set_yticks(range(len(order)), order)
    look.add_legend(drawn, 2)
    return drawn


def by_patients() -> Figure:
    """Draw the share of the gap that own labelled patients close."""
    rows, places = found()["update"]["rows"], ("new hospital", "country known", "new country")
    drawn = look.titled_figure(
        "What own labelled patients repair",
        "% of the gap to the place's own level; bars: 90 %",
        4.6,
    )
    for axes, place in zip(drawn.subplots(3, 1, sharex=True), places, strict=True):
        look.quiet_grid(axes, "y")
        for number, ((way, said), colour) in enumerate(zip(WAYS.items(), look.CYCLE, strict=False)):
            values = [rows[f"{place}, {way}, {count} patients"] for count in PATIENTS]
            low, middle, high = (
                100 * np.array([row[key] for row in values]) for key in ("low", "value", "high")
            )
            at, ends = (
                np.arange(len(PATIENTS)) + 0.09 * (number - 1.5),
                [middle - low, high - middle],
            )
            axes.errorbar(
                at, middle, ends, fmt=f"{'^osD'[number]}-", color=colour, ms=3.5, lw=1, label=said
            )
        axes.axhline(0, color=look.MUTED, linewidth=0.8)
        axes.set(title=place, ylim=(-60, 105))
        axes.set_xticks(range(len(PATIENTS)), [f"{count}" for count in PATIENTS])
    axes.set_xlabel("labelled patients")
    look.add_legend(drawn, 1)
    return drawn


FIGURES = {
    "training": ("Log loss of every predictor at training hospitals by epsilon", by_epsilon),
    "countries": ("Intervals for the event rates of held-out countries, and the rates", by_country),
    "update": ("Share of the gap that own labelled patients close", by_patients),
}


def draw() -> None:
    """Write the page and its figures."""
    PAGE.write_text(reference(), encoding="utf-8")
    for page in (ROOT / "README.md", ROOT / "docs" / "results.md"):
        page.write_text(
            filled(page.read_text(encoding="utf-8"), "stroke", *answer(found())), encoding="utf-8"
        )
    for name, (description, function) in FIGURES.items():
        described = look.drawn_figure(name, description, None, function)
        assert described is not None
        (RESULTS / f"{name}.svg").write_text(described.svg, encoding="utf-8")


if __name__ == "__main__":
    draw()

"""Writes tables into the results' pages: `python -m studies.pages`."""

import json
from pathlib import Path

import pandas as pd

from studies.defaults.page import defaults_section
from studies.stroke.sections import (
    epsilon_section,
    held_out_section,
    interval,
    program_section,
    sets_section,
    update_section,
)

ROOT = Path(__file__).parents[1]
STROKE = ROOT / "docs" / "results" / "stroke"
SECOND = ROOT / "docs" / "results" / "second-trial"
DEFAULTS = ROOT / "docs" / "results" / "defaults"
KNOWN = ROOT / "docs" / "results" / "known-hospitals"
BEGIN = "<!-- studies.pages: begin -->\n"
END = "<!-- studies.pages: end -->\n"
WORDS = {
    "hierarchical, epsilon 1": "federation, a level for each hospital, epsilon 1",
    "hierarchical, without privacy": "federation, a level for each hospital, without privacy",
    "one model, epsilon 1": "federation, one model, epsilon 1",
    "one model, without privacy": "federation, one model, without privacy",
    "alone": "each hospital alone, without privacy: nothing leaves it",
    "public score, own level": "public score and the hospital's own level: nothing leaves it",
    "pooled": "all patients in one place: logistic regression",
    "pooled with country": "all patients in one place: logistic regression with country",
    "random intercepts": "all patients in one place: random intercepts",
    "boosting": "all patients in one place: boosted trees",
    "boosting with country": "all patients in one place: boosted trees with country",
    "boosting with hospital": "all patients in one place: boosted trees with hospital",
}
PRICE = "hierarchical, epsilon 1 less hierarchical, without privacy"
WORTH = (
    "hierarchical, epsilon 1 less alone",
    "hierarchical, epsilon 1 less public score, own level",
    "hierarchical, without privacy less alone",
    "hierarchical, without privacy less public score, own level",
)


def rivals_section(folder: Path) -> str:
    """Return what privacy costs, what federation brings, and every predictor.

    Args:
        folder: Holds `rivals.csv`, `rivals-auroc.csv` and `rivals-tries.csv`.
    """
    table = pd.read_csv(folder / "rivals.csv").set_index("figure")
    aurocs = pd.read_csv(folder / "rivals-auroc.csv").set_index("predictor")
    tries = pd.read_csv(folder / "rivals-tries.csv")
    chosen = tries[tries["chosen"]].drop_duplicates("rival").set_index("rival")["setting"]
    first = table.iloc[0]
    lines = [
        f"Log loss a test patient, {first['splits']:.0f} splits that no search has seen, "
        f"{first['hospitals']:.0f} hospitals, {first['patients']:.0f} tests; negative: the "
        "first is better.",
        "",
        "| | first less second | difference [90 %] |",
        "|---|---|---|",
    ]
    for title, names in (
        ("**what privacy costs**", [PRICE]),
        ("**what federation brings**", WORTH),
    ):
        for name in names:
            first_name, second_name = name.split(" less ")
            words = f"{WORDS[first_name]}, less {WORDS[second_name]}"
            lines.append(f"| {title} | {words} | {interval(table.loc[name])} |")
    lines += [
        "",
        "| predictor | log loss [90 %] | AUROC | setting, of 12 tries |",
        "|---|---|---|---|",
    ]
    # Federations at other budgets have a table of their own.
    predictors = table[table.index.isin(list(WORDS))].sort_values("value")
    for name, row in predictors.iterrows():
        auroc = f"{aurocs.loc[name, 'mean']:.3f}"
        setting = _setting(chosen[name]) if name in chosen else "the program's"
        lines.append(f"| {WORDS[str(name)]} | {interval(row)} | {auroc} | {setting} |")
    return "\n".join(lines) + "\n"


def _setting(text: str) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in json.loads(text).items())


def validation_section(folder: Path) -> str:
    """Return the summary over countries held out.

    Args:
        folder: Holds `validation-summary.csv`.
    """
    summary = pd.read_csv(folder / "validation-summary.csv")
    measures = list(summary["measure"].unique())
    lines = [
        f"| predictor | {' | '.join(measures)} |",
        f"|---|{'---|' * len(measures)}",
    ]
    for predictor, part in summary.groupby("predictor", sort=False):
        cells = []
        for row in part.to_dict("records"):
            mean = f"{row['mean']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
            cells.append(f"{mean}; {row['new low']:.2f} to {row['new high']:.2f}")
        lines.append(f"| {WORDS[str(predictor)]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def coverage_section(folder: Path) -> str:
    """Return how many intervals for a new hospital's rate hold, and the spread of each run."""
    lines = [
        "| new hospitals | federation | hospitals | intervals | hold [90 %] | mean width |",
        "|---|---|---|---|---|---|",
    ]
    for row in pd.read_csv(folder / "coverage.csv").to_dict("records"):
        holds = f"{row['coverage']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        lines.append(
            f"| {row['hospitals']} | {row['privacy']} | {row['places']} | {row['intervals']} "
            f"| {holds} | {row['width']:.2f} |"
        )
    lines += ["", "| split | federation | sd between hospitals [90 %] |", "|---|---|---|"]
    for row in pd.read_csv(folder / "spread.csv").to_dict("records"):
        spread = f"{row['sd']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        lines.append(f"| {row['seed']} | {row['privacy']} | {spread} |")
    return "\n".join(lines) + "\n"


def known_hospitals_section(folder: Path) -> str:
    """Return how often 90 % intervals held where the truth was known.

    Args:
        folder: Holds `coverage.csv` of `studies.known_hospitals.study`.
    """
    kinds = ["country known", "nothing known", "new country", "training"]
    spreads = ["hospital_sd", "country_sd"]
    table = pd.read_csv(folder / "coverage.csv", dtype={"epsilon": str}, keep_default_na=False)
    lines = [
        "| truth | epsilon | deals | new hospital, country known | nothing known | new country "
        "| a hospital that trained | sd between hospitals | between countries | log loss |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (truth, epsilon), rows in table.groupby(["truth", "epsilon"], sort=False):
        of_kind = rows.set_index("kind")
        cells = []
        for kind in [*kinds, *spreads]:
            held = of_kind.loc[kind]
            cells.append(f"{float(held['held_90%']):.2f} ± {float(held['error_90%']):.2f}")
        loss = float(of_kind.loc["country known", "log_loss"])
        deals = rows["deals"].iloc[0]
        lines.append(f"| {truth} | {epsilon} | {deals} | {' | '.join(cells)} | {loss:.4f} |")
    lines += [
        "",
        "| truth | epsilon | kind | 50 % | 80 % | 95 % | bias | width |",
        "|---|---|---|---|---|---|---|---|",
    ]
    main = table[(table["truth"] == "as found") & (table["epsilon"] == "1")]
    for row in main.to_dict("records"):
        held = [f"{float(row[f'held_{share}']):.2f}" for share in ("50%", "80%", "95%")]
        figures = f"{float(row['bias']):.3f} | {float(row['width']):.2f}"
        shares = " | ".join(held)
        lines.append(f"| as found | 1 | {row['kind']} | {shares} | {figures} |")
    return "\n".join(lines) + "\n"


def with_sections(page: str, sections: list[str]) -> str:
    """Put sections in the page's marked places, in their order."""
    first, *marked = page.split(BEGIN)
    if len(marked) != len(sections):
        raise ValueError(f"the page has {len(marked)} marked places for {len(sections)} sections")
    parts = [first]
    for section, part in zip(sections, marked, strict=True):
        _, _, after = part.partition(END)
        parts.append(f"{BEGIN}\n{section}\n{END}{after}")
    return "".join(parts)


def written_pages() -> dict[Path, str]:
    """Return page -> its text with the tables of today."""
    sections = {
        STROKE / "README.md": [
            rivals_section(STROKE),
            epsilon_section(STROKE),
            validation_section(STROKE),
            held_out_section(STROKE),
            update_section(STROKE),
            sets_section(STROKE),
            program_section(STROKE),
        ],
        SECOND / "README.md": [
            rivals_section(SECOND),
            coverage_section(SECOND),
            program_section(SECOND),
        ],
        DEFAULTS / "README.md": [defaults_section(DEFAULTS)],
        KNOWN / "README.md": [known_hospitals_section(KNOWN)],
    }
    return {path: with_sections(path.read_text(), parts) for path, parts in sections.items()}


def main() -> None:
    """Write the pages."""
    for path, text in written_pages().items():
        path.write_text(text)


if __name__ == "__main__":
    main()

"""Tables of the search, and what the page shows of them."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from fl_dpbayes.commands.scenario_draft import LEAST_UNITS
from studies.defaults.cells import (
    ALONE,
    FEW_HOSPITALS,
    FORMER,
    POOLED,
    PUBLISHED_SEEDS,
    name_of,
    read_outcomes,
)
from studies.defaults.choice import best_try, chosen_tries, excess_table
from studies.defaults.settings import all_settings
from studies.defaults.tables import LABEL, SITE, TABLES

OTHERS = "defaults of the other tables"
EVERYWHERE = "defaults"
FLOOR = "Langevin dynamics"
SHOWN = (POOLED, OTHERS, EVERYWHERE, ALONE, FLOOR, FORMER)
HEADS = {
    POOLED: "all patients in one place, no privacy",
    OTHERS: "**settings chosen on the other tables, epsilon 4**",
    EVERYWHERE: "the defaults (chosen on all tables), epsilon 4",
    ALONE: "largest hospital alone, no privacy",
    FLOOR: "Langevin dynamics at temperature 1 (`floor`), chosen alike, epsilon 4",
    FORMER: "defaults until now, epsilon 4",
}
BEST_TRIES = 5


def write_tables(cells: Path, folder: Path) -> None:
    """Write the CSV files of the search.

    Args:
        cells: Folder of all cells.
        folder: Gets `tables.csv`, `tries.csv`, `langevin-tries.csv` and `published.csv`.
    """
    outcomes = read_outcomes(cells)
    excess = excess_table(outcomes)
    frames = {
        "tables": pd.DataFrame([_facts(name, cells / name) for name in TABLES]),
        "tries": _tries(excess),
        "langevin-tries": _tries(excess_table(outcomes, "floor")),
        "published": _published(outcomes, excess),
    }
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False, float_format="%.5g")


def read_tries(folder: Path) -> pd.DataFrame:
    """Read the excess of each try at each table, as of `excess_table`."""
    return pd.read_csv(folder / "tries.csv").set_index("try")[list(TABLES)]


def defaults_section(folder: Path) -> str:
    """Return what the page shows.

    Args:
        folder: Holds what `write_tables` wrote.
    """
    tables = pd.read_csv(folder / "tables.csv").set_index("table")
    published = pd.read_csv(folder / "published.csv", keep_default_na=False)
    return "\n".join(
        [
            *_facts_lines(tables),
            "",
            *_measure_lines(published, "log_loss", "Log loss at test records; less is better."),
            "",
            *_measure_lines(published, "auroc", "AUROC at test records; more is better."),
            "",
            *_loss_lines(published),
            "",
            *_chain_lines(published),
            "",
            *_try_lines(folder),
            "",
        ]
    )


def _tries(excess: pd.DataFrame) -> pd.DataFrame:
    settings = pd.DataFrame([_settings_row(number) for number in excess.index], index=excess.index)
    tries = settings.join(excess.assign(mean=excess.mean(axis=1)))
    return tries.rename_axis("try").reset_index()


def _settings_row(number: int) -> dict[str, object]:
    settings = asdict(all_settings()[number])
    return {**settings.pop("length"), **settings}


def _facts(name: str, folder: Path) -> dict[str, object]:
    table = pd.read_csv(folder / "table.csv", dtype={SITE: str})
    inside = table[table.groupby(SITE)[SITE].transform("size") >= LEAST_UNITS]
    shares = inside[LABEL].value_counts(normalize=True)
    return {
        "table": name,
        "records": len(inside),
        "columns": len(table.columns) - 2,
        "hospitals": inside[SITE].nunique(),
        "rarer_class": shares.min(),
        "classes": len(shares),
    }


def _published(outcomes: pd.DataFrame, excess: pd.DataFrame) -> pd.DataFrame:
    everywhere = best_try(excess)
    langevin = chosen_tries(excess_table(outcomes, "floor"))
    parts = []
    for table, number in chosen_tries(excess).items():
        rows = outcomes[outcomes["seed"].isin(PUBLISHED_SEEDS) & (outcomes["table"] == table)]
        predictors = {
            POOLED: POOLED,
            OTHERS: str(number),
            EVERYWHERE: str(everywhere),
            ALONE: ALONE,
            FORMER: FORMER,
        }
        if table in langevin:
            predictors[FLOOR] = name_of(langevin[table], "floor")
        for name, predictor in predictors.items():
            of_predictor = rows[rows["predictor"] == predictor].sort_values("seed")
            settings = "" if predictor == name else predictor
            parts.append(of_predictor.assign(predictor=name, **{"try": settings}))
    return pd.concat(parts, ignore_index=True)


def _facts_lines(tables: pd.DataFrame) -> Iterator[str]:
    yield "| table | records | columns | hospitals | rarest class |"
    yield "|---|---|---|---|---|"
    for name, row in tables.iterrows():
        yield (
            f"| {name} | {row['records']:,.0f} | {row['columns']:.0f} | {row['hospitals']:.0f} "
            f"| {row['rarer_class']:.0%} |"
        )


def _measure_lines(published: pd.DataFrame, measure: str, title: str) -> Iterator[str]:
    splits = published["seed"].nunique()
    yield f"{title} Mean of {splits} splits that no search has seen [least, greatest]."
    yield ""
    yield f"| table | {' | '.join(HEADS[name] for name in SHOWN)} |"
    yield f"|---|{'---|' * len(SHOWN)}"
    for table, rows in published.groupby("table", sort=False):
        cells = []
        for name in SHOWN:
            values = rows.loc[rows["predictor"] == name, measure].astype(float)
            text = f"{values.mean():.3f} [{values.min():.3f}, {values.max():.3f}]"
            cells.append(text if len(values) else "not tried")
        yield f"| {table} | {' | '.join(cells)} |"


def _loss_lines(published: pd.DataFrame) -> Iterator[str]:
    """Say where settings chosen on the other tables lose."""
    means = published.pivot_table(
        index="table", columns="predictor", values=["log_loss", "auroc"], sort=False
    )
    losses = means["log_loss"]
    aurocs = means["auroc"]
    worse_loss = losses.index[losses[OTHERS] > losses[ALONE]]
    worse_order = aurocs.index[aurocs[OTHERS] < aurocs[ALONE]]
    yield "**Where they lose**, on the mean of the splits:"
    yield ""
    yield f"- to the largest hospital alone in log loss: {_listed(worse_loss)}"
    yield f"- to it in AUROC: {_listed(worse_order)}"
    to_former = losses.index[losses[OTHERS] > losses[FORMER]]
    yield f"- to the defaults until now in log loss: {_listed(to_former)}"
    to_former = aurocs.index[aurocs[OTHERS] < aurocs[FORMER]]
    yield f"- to them in AUROC: {_listed(to_former)}"
    yield "- to all patients in one place without privacy, in log loss on average over tables:"
    yield ""
    yield "| log loss above all patients in one place | all tables | few hospitals | without wine |"
    yield "|---|---|---|---|"
    above = losses.sub(losses[POOLED], axis=0)
    few = above.loc[list(FEW_HOSPITALS)]
    for name in SHOWN[1:]:
        everywhere = "not tried" if above[name].isna().any() else f"{above[name].mean():.3f}"
        without_wine = few[name].drop("wine").mean()
        yield f"| {HEADS[name]} | {everywhere} | {few[name].mean():.3f} | {without_wine:.3f} |"


def _listed(names: pd.Index) -> str:
    return "; ".join(map(str, names)) or "nowhere"


def _chain_lines(published: pd.DataFrame) -> Iterator[str]:
    """Say how warm the chains are, and whether they mixed."""
    yield "| table | temperature of the defaults' noise | splits whose chain mixed |"
    yield "|---|---|---|"
    for table, rows in published.groupby("table", sort=False):
        ours = rows[rows["predictor"] == EVERYWHERE]
        mixed = int((ours["warning"] == "").sum())
        temperature = ours["temperature"].astype(float).mean()
        yield f"| {table} | {temperature:.2g} | {mixed} of {len(ours)} |"


def _try_lines(folder: Path) -> Iterator[str]:
    tries = pd.read_csv(folder / "tries.csv").sort_values("mean")
    yield (
        f"The best {BEST_TRIES} of {len(tries)} tries on all tables: log loss above all patients "
        "in one place without privacy, mean over tables, on the search's splits."
    )
    yield ""
    yield "| clip share | step length | prior scale | rounds | steps each | sampling rate | above |"
    yield "|---|---|---|---|---|---|---|"
    for row in tries.head(BEST_TRIES).to_dict("records"):
        yield (
            f"| {row['clip_share']:g} | {row['step_length']:g} | {row['prior_scale']:g} "
            f"| {row['rounds']:g} | {row['steps_per_round']:g} | {row['sampling_rate']:g} "
            f"| {row['mean']:.4f} |"
        )

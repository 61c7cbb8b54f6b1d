"""Which settings a search chose, and for each table those that the other tables chose."""

from collections.abc import Collection

import numpy as np
import pandas as pd

from studies.defaults.cells import POOLED, SEARCH_SEEDS, name_of, tables_of
from studies.defaults.settings import Coupling, all_settings


def excess_table(outcomes: pd.DataFrame, coupling: Coupling = "constant") -> pd.DataFrame:
    """Return the mean log loss above pooled regression, a row for each try, a column each table.

    Args:
        outcomes: Of the cells; of the search's splits those count.
        coupling: Of the tries.
    """
    searched = outcomes[outcomes["seed"].isin(SEARCH_SEEDS)]
    wide = searched.pivot(index=["table", "seed"], columns="predictor", values="log_loss")
    numbers = {name_of(number, coupling): number for number in range(len(all_settings()))}
    tries = wide[[name for name in numbers if name in wide.columns]].rename(columns=numbers)
    return tries.sub(wide[POOLED], axis=0).groupby("table").mean().T[list(tables_of(coupling))]


def best_try(excess: pd.DataFrame, without: Collection[str] = ()) -> int:
    """Return the number of the settings of fewest steps that are level with the best.

    The best has the least excess on average over tables. Level with it are those whose average is
    within one standard error (over tables) of it; of as many steps the better is taken.

    Args:
        excess: Of `excess_table`.
        without: Tables that do not count.
    """
    counted = excess.drop(columns=list(without))
    means = counted.mean(axis=1)
    behind = counted - counted.loc[means.idxmin()]
    errors = behind.std(axis=1) / np.sqrt(behind.shape[1])
    settings = all_settings()
    level = counted.index[behind.mean(axis=1) <= errors]
    return int(min(level, key=lambda number: (settings[number].length.steps, means[number])))


def chosen_tries(excess: pd.DataFrame) -> dict[str, int]:
    """Return table -> number of the settings that the other tables chose."""
    return {table: best_try(excess, [table]) for table in excess.columns}

"""Records in memory, from a DataFrame or arrays, brought to the form in which a simulation reads its sites."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from fl_dpbayes.commands.init_scenario import (
    MOST_CATEGORIES,
    ProposedFeatures,
    check_columns,
    class_texts,
    proposed_features,
)
from fl_dpbayes.config import Arrays, Table, counted, read_record
from fl_dpbayes.data import magnitude_warnings
from fl_dpbayes.data.sources.table import BadRowsError, column_texts, framed_records, site_names
from fl_dpbayes.errors import UserError
from fl_dpbayes.report import sentence

Constants = Mapping[str, float] | Sequence[float]
FRAME = Path("given here")


@dataclass(frozen=True, repr=False)
class SiteRecords:
    """The records of several sites, for `simulate`.

    Made by `sites_from_frame` or `sites_from_arrays`.

    `source`: what a scenario says of them; a run fills in the path. `sizes`: site -> number of
    privacy units. `names`: what the records call a site -> its name in the run. `left_out`: column
    -> why it is no feature.
    """

    source: Table | Arrays
    records: pandas.DataFrame | dict[str, npt.NDArray]
    sizes: dict[str, int]
    names: dict[str, str]
    left_out: dict[str, str]

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} ({size})" for name, size in self.sizes.items())
        shape = " x ".join(map(str, self.source.task.input_shape))
        out = "".join(f"; left out: {name}, {why}" for name, why in self.left_out.items())
        return (
            f"{counted(len(self.sizes), 'site')} by {self.source.unit}s: {sizes}; {shape} "
            f"features{out}"
        )

    def write(self, folder: Path) -> Path:
        """Write the records into a run's folder, as Parquet or a NumPy archive."""
        path = folder / ("records.parquet" if isinstance(self.source, Table) else "records.npz")
        if isinstance(self.records, pandas.DataFrame):
            self.records.to_parquet(path, index=False)
        else:
            np.savez_compressed(path, allow_pickle=False, **self.records)
        return path


def sites_from_frame(
    frame: pandas.DataFrame,
    *,
    site: str,
    label: str,
    unit: str | None = None,
    features: Sequence[str] | None = None,
    centers: Constants | None = None,
    scales: Constants | None = None,
) -> SiteRecords:
    """Read a DataFrame as the records of several sites.

    Each feature is (value - center) / scale; a column of text becomes one feature for each of its
    values.

    `frame`: one row per record. `site`: the column that names each record's site. `label`: the
    column of classes: numbers from 0, or words, in alphabetical order or that of a Categorical;
    their names are declared public. `unit`: the column of privacy units, such as the patient;
    without it each row is one. `features`: what to predict from. Without them all other columns are
    used, and centers, scales and constants for missing values are proposed from the records: a
    simulation's page says so, a hospital would refuse them. `centers`: public constants, by column
    or in the order of `features`; 0 where not given. `scales`: the same, above 0; 1 where not
    given. Raises UserError if a column is absent, has gaps, or values that are no feature, class or
    name.

    Example:
        >>> import pandas
        >>> frame = pandas.DataFrame({"hospital": ["north", "south"] * 30, "age": [50, 70] * 30, "sick": [0, 1] * 30})
        >>> sites_from_frame(frame, site="hospital", label="sick", features=["age"], centers=[60], scales=[10])
        2 sites by records: north (30), south (30); 1 features
    """
    if not isinstance(frame, pandas.DataFrame):
        raise UserError(
            f"frame is a {type(frame).__name__}: give a pandas DataFrame, or use sites_from_arrays"
        )
    if isinstance(features, str):
        raise UserError(f"features is {features!r}: give a list of columns")
    if not len(frame) or not frame.columns.is_unique:
        raise UserError(
            "the frame has no rows, or two columns of one name: give some records of each site"
        )
    keys = {"label": label, "site": site} | ({} if unit is None else {"unit": unit})
    check_columns(frame, keys, "the frame")
    if absent := [name for name in features or () if name not in frame.columns]:
        raise UserError(
            f"features has {absent[0]!r}: the frame's columns are "
            f"{', '.join(map(str, frame.columns))}"
        )
    if twice := set(features or ()) & set(keys.values()):
        raise UserError(
            f"features has {min(twice)!r}, which is the label, site or unit: remove it "
            "from features"
        )
    used = (
        frame.drop(columns=list(keys.values()))
        if features is None
        else frame[list(dict.fromkeys(features))]
    )
    found = proposed_features(used) if features is None else _chosen_features(used)
    classes, names = _classes(frame[label], f"label {label!r}")
    table = pandas.DataFrame({name: column_texts(_plain(frame[name])) for name in keys.values()})
    for name in used.columns.difference(list(found.left_out), sort=False):
        is_word = name in found.categories
        table[name] = (
            column_texts(frame[name])
            if is_word
            else _plain(frame[name]).to_numpy(float, na_value=np.nan)
        )
    source = read_record(
        Table,
        {
            "path": FRAME,
            "label": label,
            "site_column": site,
            "unit_column": unit,
            "classes": len(classes),
            "class_names": names,
            "features": list(found.numbers),
            "missing": found.missing,
            **{
                key: _constants(
                    given,
                    key,
                    features or (),
                    {name: pair[at] for name, pair in found.numbers.items()},
                )
                for at, (key, given) in enumerate([("centers", centers), ("scales", scales)])
            },
            "categories": {name: sorted(set(table[name])) for name in found.categories},
            "constants": "from_records" if features is None or found.categories else "public",
        },
        "the frame",
    )
    if source.constants == "public" and (taken := _taken(table, source)):
        source = source.model_copy(update={"constants": "from_records"})
        said = (
            "equal to a statistic of these records, so not public: the page says so, a hospital "
            "would refuse it"
        )
        warnings.warn(f"{', '.join(taken)}: {said}. Give what is known without them", stacklevel=2)
    try:
        records = framed_records(table, source)
    except BadRowsError as error:
        remedy = (
            "fill them in, remove such rows, or leave out features, so that constants are proposed"
        )
        raise UserError(f"{error.problem}: {remedy}") from None
    for found_far in magnitude_warnings(records, source):
        warnings.warn(sentence(found_far), stacklevel=2)
    assert records.natural_site is not None
    named = site_names(table[site].to_numpy(dtype=np.str_), f"site {site!r}: the column")
    return SiteRecords(
        source, table, _sizes(records.natural_site, records.units), named, found.left_out
    )


def sites_from_arrays(
    features: npt.ArrayLike,
    labels: npt.ArrayLike,
    sites: npt.ArrayLike,
    *,
    units: npt.ArrayLike | None = None,
) -> SiteRecords:
    """Read arrays, such as images, as the records of several sites.

    `features`: (N, *shape), numbers; whole numbers of one byte are grey levels, which become 0 to
    1. `labels`: (N,), numbers from 0, or words, which are classes in alphabetical order. `sites`:
    (N,), the name of each record's site. `units`: (N,), each record's privacy unit, such as the
    patient; without them each record is one. Raises UserError if lengths differ, or a value is
    missing, or no number, class or name.

    Example:
        >>> sites_from_arrays([[0.1], [0.9]] * 30, ["well", "sick"] * 30, ["north", "south"] * 30)
        2 sites by records: north (30), south (30); 1 features
    """
    try:
        values = np.asarray(features)
        fits = (
            np.issubdtype(values.dtype, np.number) and values.ndim > 1 and np.isfinite(values).all()
        )
    except ValueError:  # rows of different lengths
        fits = False
    if not fits:
        raise UserError(
            "features are no (N, *shape) finite numbers: give a row per record, with no "
            "value missing"
        )
    columns = {"labels": labels, "sites": sites} | ({} if units is None else {"units": units})
    texts = dict[str, npt.NDArray]()
    for name, given in columns.items():
        column = pandas.Series(np.asarray(given).ravel() if np.ndim(given) == 1 else [])
        if len(column) != len(values) or column.isna().any():
            raise UserError(
                f"{name} have shape {np.shape(given)}: give one for each of the "
                f"{len(values)} records"
            )
        texts[name] = column_texts(_plain(column))
    classes, class_names = _classes(pandas.Series(texts["labels"]), "labels")
    names = site_names(texts["sites"], "sites")
    kept = {
        "features": values if values.dtype == np.uint8 else values.astype(np.float32),
        "labels": pandas.Index(classes).get_indexer(texts["labels"]),
        "sites": np.array([names[str(name)] for name in texts["sites"]]),
    }
    if units is not None:
        kept["units"] = texts["units"]
    content = {
        "path": FRAME,
        "input_shape": values.shape[1:],
        "classes": len(classes),
        "class_names": class_names,
    }
    sizes = _sizes(kept["sites"], kept.get("units", np.arange(len(values))))
    return SiteRecords(read_record(Arrays, content, "the arrays"), kept, sizes, names, {})


def _classes(column: pandas.Series, where: str) -> tuple[list[str], list[str]]:
    """Return the classes in their order as text, and their names: none where they are the numbers from 0."""
    classes = class_texts(_plain(column), where)
    if isinstance(column.dtype, pandas.CategoricalDtype):
        classes = [name for name in map(str, column.cat.categories) if name in classes]
    return classes, [] if classes == [str(number) for number in range(len(classes))] else classes


def _plain(column: pandas.Series) -> pandas.Series:
    # True and False are the numbers 1 and 0.
    return column.astype("Int64") if is_bool_dtype(column) else column


def _chosen_features(table: pandas.DataFrame) -> ProposedFeatures:
    """Take the columns that a person chose as they are: numbers, or words of few values."""
    found = ProposedFeatures({}, {}, {}, {})
    for name, column in table.items():
        if is_numeric_dtype(column):
            found.numbers[name] = (0.0, 1.0)
        elif len(values := set(column_texts(column))) <= MOST_CATEGORIES:
            found.categories[name] = []
        else:
            said = (
                f"feature {name!r} has {len(values)} values of text, such as "
                f"{str(min(values))[:60]!r}"
            )
            raise UserError(
                f"{said}: turn it into numbers, or group it to {MOST_CATEGORIES} values or fewer"
            )
    return found


def _taken(table: pandas.DataFrame, source: Table) -> list[str]:
    """Name each constant that equals a statistic of its column.

    One of two digits may do so by chance.
    """
    found = []
    for key, constants in (("centers", source.centers or ()), ("scales", source.scales or ())):
        for name, value in zip(source.features, constants, strict=True):
            column = table[name]
            own = [
                column.mean(),
                column.median(),
                column.std(),
                column.std(ddof=0),
                column.min(),
                column.max(),
            ]
            if (
                value != float(f"{value:.1e}")
                and np.isclose([*own, own[-1] - own[-2]], value, rtol=1e-6, atol=0).any()
            ):
                found.append(f"{key} of {name!r}")
    return found


def _constants(
    given: Constants | None, key: str, features: Sequence[str], proposed: dict[str, float]
) -> list[float]:
    if given is not None and not isinstance(given, Mapping | pandas.Series):
        if len(given) != len(features):
            said = f"{key} has {len(given)} values for {len(features)} features"
            raise UserError(
                f"{said}: give features and one value for each, or a dictionary by column"
            )
        given = dict(zip(features, given, strict=True))
    own = {} if given is None else dict(given)
    if unknown := own.keys() - proposed:
        raise UserError(
            f"{key} names {min(unknown)!r}, no numeric feature: choose among {', '.join(proposed)}"
        )
    return list((proposed | own).values())


def _sizes(sites: npt.NDArray, units: npt.NDArray) -> dict[str, int]:
    return pandas.Series(units).groupby(sites.astype(str), sort=False).nunique().to_dict()

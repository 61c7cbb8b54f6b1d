"""Records in memory, from a DataFrame or arrays, brought to the form in which a simulation reads its sites."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.names import counted
from fl_dpbayes.config.sources import Arrays, Table
from fl_dpbayes.config.validation_text import read_record
from fl_dpbayes.data.records import magnitude_warnings
from fl_dpbayes.data.sources.table import column_texts, framed_records, site_names
from fl_dpbayes.report.warnings import sentence
from fl_dpbayes.run.init_scenario import MOST_CATEGORIES, class_texts, proposed_clip_norm, proposed_features

Constants = Mapping[str, float] | Sequence[float]
FRAME = Path("given here.parquet")


@dataclass(frozen=True, repr=False)
class SiteRecords:
    """The records of several sites, for `simulate`; made by `sites_from_frame` or `sites_from_arrays`.

    Attributes:
        source: what a scenario says of the records; a run fills in its path.
        records: a table, or arrays by name, as the run writes them.
        sizes: site -> number of privacy units.
        names: what the records call a site -> its name in the run, where letters such as spaces become dashes.
        left_out: column -> why it is no feature.
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
        return f"{counted(len(self.sizes), 'site')} by {self.source.unit}s: {sizes}; {shape} features{out}"

    @property
    def clip_norm(self) -> float:
        """The clip norm to begin with, by the number of features."""
        return proposed_clip_norm(int(np.prod(self.source.task.input_shape)))

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

    Each feature is (value - center) / scale; a column of text becomes one feature for each of its values.

    Args:
        frame: one row per record.
        site: the column that names each record's site.
        label: the column of classes: numbers from 0, or words, in alphabetical order or that of a Categorical.
        unit: the column of privacy units, such as the patient; without it each row is one.
        features: the columns to predict from. Without them all others are used, and centers, scales and constants for
            missing values are proposed from the records: a simulation's page says so, a hospital would refuse them.
        centers: public constants, by column or in the order of `features`; 0 where not given.
        scales: the same, above 0; 1 where not given.

    Raises:
        UserError: a column is absent, has gaps, or values that are no feature, class or name.

    Example:
        >>> import pandas
        >>> frame = pandas.DataFrame({"hospital": ["north", "south"] * 30, "age": [50, 70] * 30, "sick": [0, 1] * 30})
        >>> sites_from_frame(frame, site="hospital", label="sick", features=["age"], centers=[60], scales=[10])
        2 sites by records: north (30), south (30); 1 features
    """
    if not isinstance(frame, pandas.DataFrame):
        raise UserError(f"frame is a {type(frame).__name__}: give a pandas DataFrame, or use sites_from_arrays")
    keys = {"label": label, "site": site} | ({} if unit is None else {"unit": unit})
    if isinstance(features, str):
        raise UserError(f"features is {features!r}: give a list of columns")
    if not frame.columns.is_unique:
        raise UserError(f"the frame has two columns {frame.columns[frame.columns.duplicated()][0]!r}: rename one")
    wanted = keys | {f"features[{place}]": name for place, name in enumerate(features or ())}
    for key, name in wanted.items():
        if name not in frame.columns:
            there = ", ".join(map(str, frame.columns))
            raise UserError(f"{key} is {name!r}: the frame has no such column, its columns are {there}")
        if key not in keys and name in keys.values():
            raise UserError(f"{key} is {name!r}, which is the label, site or unit: remove it from features")
        if key in keys and (empty := int(frame[name].isna().sum())):
            raise UserError(f"{key} {name!r}: {empty} of {len(frame)} rows have no value there: fill in or remove them")
    if not len(frame):
        raise UserError("the frame has no rows: give at least some records of each site")
    used = frame.drop(columns=list(keys.values())) if features is None else frame[list(dict.fromkeys(features))]
    found, left_out = _numbers_and_words(used, looked=features is None)
    given = {"centers": _by_name(centers, "centers", features), "scales": _by_name(scales, "scales", features)}
    for key, values in given.items():
        if unknown := values.keys() - found["numbers"]:
            allowed = ", ".join(found["numbers"])
            raise UserError(f"{key} names {min(unknown)!r}, which is no numeric feature: choose among {allowed}")
    content = {key: [values.get(name, found["numbers"][name][place]) for name in found["numbers"]]
               for place, (key, values) in enumerate(given.items())}  # fmt: skip
    classes, names = _classes(frame[label], f"label {label!r}")
    table = pandas.DataFrame({name: column_texts(_plain(frame[name])) for name in keys.values()})
    for name in used.columns.difference(list(left_out), sort=False):
        is_word = name in found["categories"]
        table[name] = column_texts(frame[name]) if is_word else _plain(frame[name]).to_numpy(float, na_value=np.nan)
    source = read_record(Table, {
        "path": FRAME, "label": label, "site_column": site, "unit_column": unit, "classes": len(classes),
        "class_names": names, "features": list(found["numbers"]), **content,
        "missing": found["missing"], "categories": found["categories"],
        "constants": "from_records" if features is None or found["categories"] else "public",
    }, "the frame")  # fmt: skip
    records = framed_records(table, source)
    for found_far in magnitude_warnings(records, source):
        warnings.warn(sentence(found_far), stacklevel=2)
    assert records.natural_site is not None
    named = site_names(table[site].to_numpy(dtype=np.str_), f"site {site!r}: the column")
    return SiteRecords(source, table, _sizes(records.natural_site, records.units), named, left_out)


def sites_from_arrays(
    features: npt.ArrayLike, labels: npt.ArrayLike, sites: npt.ArrayLike, *, units: npt.ArrayLike | None = None
) -> SiteRecords:
    """Read arrays, such as images, as the records of several sites.

    Args:
        features: (N, *shape), numbers; whole numbers of one byte are grey levels, which become 0 to 1.
        labels: (N,), numbers from 0, or words, which are classes in alphabetical order.
        sites: (N,), the name of each record's site.
        units: (N,), each record's privacy unit, such as the patient; without them each record is one.

    Raises:
        UserError: lengths differ, or a value is missing, or no number, class or name.

    Example:
        >>> sites_from_arrays([[0.1], [0.9]] * 30, ["well", "sick"] * 30, ["north", "south"] * 30)
        2 sites by records: north (30), south (30); 1 features
    """
    try:
        values = np.asarray(features)
    except ValueError:
        raise UserError("features are rows of different lengths: give (N, *shape) numbers, a row per record") from None
    if not np.issubdtype(values.dtype, np.number) or values.ndim < 2 or not np.isfinite(values).all():
        raise UserError(
            f"features are of type {values.dtype} and shape {values.shape}: give (N, *shape) finite numbers, a row per "
            "record, with no value missing"
        )
    columns = {"labels": labels, "sites": sites} | ({} if units is None else {"units": units})
    texts: dict[str, npt.NDArray] = {}
    for name, given in columns.items():
        column = pandas.Series(np.asarray(given).ravel() if np.ndim(given) == 1 else [])
        if len(column) != len(values) or column.isna().any():
            raise UserError(f"{name} have shape {np.shape(given)}: give one for each of the {len(values)} records")
        texts[name] = column_texts(_plain(column))
    classes, class_names = _classes(pandas.Series(texts["labels"]), "labels")
    names = site_names(texts["sites"], "sites")
    kept = {"features": values if values.dtype == np.uint8 else values.astype(np.float32),
            "labels": pandas.Index(classes).get_indexer(texts["labels"]),
            "sites": np.array([names[str(name)] for name in texts["sites"]])}  # fmt: skip
    if units is not None:
        kept["units"] = texts["units"]
    content = {"path": FRAME.with_suffix(".npz"), "input_shape": values.shape[1:], "classes": len(classes)}
    source = read_record(Arrays, content | {"class_names": class_names}, "the arrays")
    sizes = _sizes(kept["sites"], kept.get("units", np.arange(len(values))))
    return SiteRecords(source, kept, sizes, names, {})


def _classes(column: pandas.Series, where: str) -> tuple[list[str], list[str]]:
    """Return the classes in their order as text, and their names: none where they are the numbers from 0."""
    classes = class_texts(_plain(column), where)
    if isinstance(column.dtype, pandas.CategoricalDtype):
        classes = [name for name in map(str, column.cat.categories) if name in classes]
    return classes, [] if classes == [str(number) for number in range(len(classes))] else classes


def _plain(column: pandas.Series) -> pandas.Series:
    # True and False are the numbers 1 and 0.
    return column.astype("Int64") if is_bool_dtype(column) else column


def _numbers_and_words(table: pandas.DataFrame, *, looked: bool) -> tuple[dict[str, dict], dict[str, str]]:
    """Tell numeric columns from words, by what `init` proposes or, where a person chose them, as they are."""
    if looked:
        found = proposed_features(table)
        categories = {name: sorted(set(map(str, column_texts(table[name])))) for name in found.categories}
        return {"numbers": found.numbers, "missing": found.missing, "categories": categories}, found.left_out
    numbers, categories = {}, {}
    for name, column in table.items():
        if is_numeric_dtype(column):
            numbers[name] = (0.0, 1.0)
            gaps = ~np.isfinite(_plain(column).to_numpy(float, na_value=np.nan))
            if gaps.any():
                raise UserError(
                    f"feature {name!r}: {gaps.sum()} of {len(gaps)} rows have no finite number there (first at index "
                    f"{table.index[gaps.argmax()]!r}): fill them in by a constant, remove such rows, or leave out "
                    "features, so that constants are proposed"
                )
        elif len(values := sorted(set(map(str, column_texts(column))))) <= MOST_CATEGORIES:
            categories[name] = values
        else:
            raise UserError(
                f"feature {name!r} has {len(values)} values of text, such as {values[0][:60]!r}: turn it into numbers, "
                f"or group it to {MOST_CATEGORIES} values or fewer"
            )
    return {"numbers": numbers, "missing": {}, "categories": categories}, {}


def _by_name(given: Constants | None, key: str, features: Sequence[str] | None) -> Mapping[str, float]:
    if given is None or isinstance(given, Mapping | pandas.Series):
        return {} if given is None else dict(given)
    if features is None or len(given) != len(features):
        raise UserError(
            f"{key} has {len(given)} values for {len(features or ())} features: give features and one value for each, "
            "or a dictionary by column"
        )
    return dict(zip(features, given, strict=True))


def _sizes(sites: npt.NDArray, units: npt.NDArray) -> dict[str, int]:
    pairs = pandas.DataFrame({"site": sites, "unit": units}).drop_duplicates()
    return {str(name): int(size) for name, size in pairs["site"].value_counts(sort=False).items()}

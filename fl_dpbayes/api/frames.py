"""Records in memory, from a DataFrame or arrays, as a simulation reads its sites."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas
from pandas.api.types import is_bool_dtype, is_numeric_dtype
from torch.utils.data import DataLoader, Dataset

from fl_dpbayes.api.labelled_records import LabelledData, Values, as_array, labelled_arrays
from fl_dpbayes.commands.column_features import (
    MOST_CATEGORIES,
    ProposedFeatures,
    Scaling,
    check_any_feature,
    group_rare_values,
    proposed_features,
)
from fl_dpbayes.commands.event import Event, as_keyword, event_among
from fl_dpbayes.commands.own_table import check_columns, sorted_texts
from fl_dpbayes.config import Arrays, Table, class_keys, column_hint, counted, read_record
from fl_dpbayes.data import magnitude_warnings
from fl_dpbayes.data.shared_units import SharedUnits, shared_units
from fl_dpbayes.data.sources.table import BadRowsError, column_texts, framed_records, site_names
from fl_dpbayes.errors import UserError
from fl_dpbayes.report import sentence

Constants: TypeAlias = Mapping[str, float] | Sequence[float]
# The path of a source until a run fills it in.
IN_MEMORY = Path("given here")


@dataclass(frozen=True, repr=False)
class SiteRecords:
    """The records of several sites, for `simulate`.

    Made by `sites_from_frame`, `sites_from_arrays` or `sites_from_datasets`.

    Attributes:
        source: What a scenario says of them; a run fills in the path.
        records: The table, or arrays by name.
        sizes: Site -> number of privacy units.
        names: What the records call a site -> its name in the run.
        left_out: Column -> why it is no feature.
        event: The event of two classes, of which risks are.
        shared: The privacy units that stand at several sites.
    """

    source: Table | Arrays
    records: pandas.DataFrame | dict[str, npt.NDArray]
    sizes: dict[str, int]
    names: dict[str, str]
    left_out: dict[str, str]
    event: Event | None
    shared: SharedUnits | None

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} ({size})" for name, size in self.sizes.items())
        shape = " x ".join(map(str, self.source.task.input_shape))
        event = "" if self.event is None else f"\n{self.event.sentence}"
        left_out = "".join(f"\nleft out: {name}, {why}" for name, why in self.left_out.items())
        shared = "" if self.shared is None else f"\n{self.shared.fact}: {self.shared.loss}"
        return (
            f"{counted(len(self.sizes), 'site')} by {self.source.unit}s: {sizes}; {shape} "
            f"features{event}{shared}{left_out}"
        )

    def write(self, folder: Path) -> Path:
        """Write the records into a run's folder, as Parquet or a NumPy archive."""
        if isinstance(self.records, pandas.DataFrame):
            path = folder / "records.parquet"
            self.records.to_parquet(path, index=False)
        else:
            path = folder / "records.npz"
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
    event: str | int | None = None,
) -> SiteRecords:
    """Read a DataFrame as the records of several sites.

    Each feature is (value - center) / scale; a column of text becomes one feature for each of its
    values.

    Args:
        frame: One row per record.
        site: The column that names each record's site.
        label: The column of classes: numbers from 0, or words; their names are declared public. Of
            two words the rarer is the event and the second class; numbers and a Categorical keep
            their order, and more words have that of the alphabet.
        unit: The column of privacy units, such as the patient; without it each row is one.
        features: What to predict from. Without them all other columns are used, and centers, scales
            and constants for missing values are proposed from the records: a simulation's page says
            so, a hospital would refuse them.
        centers: Public constants, by column or in the order of `features`; 0 where not given.
        scales: The same, above 0; 1 where not given.
        event: Which of two classes is the event, so that risks are of it, if another one.

    Returns:
        The records by site.

    Raises:
        UserError: If a column is absent, has gaps, or values that are no feature, class or name; or
            if two words are equally frequent.

    Example:
        >>> import pandas
        >>> frame = pandas.DataFrame(
        ...     {"hospital": ["north", "south"] * 30, "age": [50, 70] * 30, "sick": [0, 1] * 30}
        ... )
        >>> sites_from_frame(
        ...     frame, site="hospital", label="sick", features=["age"], centers=[60], scales=[10]
        ... )
        2 sites by records: north (30), south (30); 1 features
        event: 1, 50.0% of 60 rows (the last in order; the other class:  event='0')
    """
    columns = {"label": label, "site": site}
    if unit is not None:
        columns["unit"] = unit
    _check_frame(frame, columns, features)
    if features is None:
        candidates = frame.drop(columns=list(columns.values()))
        chosen = _proposed_features(candidates)
    else:
        candidates = frame[list(dict.fromkeys(features))]
        chosen = _chosen_features(candidates)
    classes = _classes(frame[label], event)
    label_keys = class_keys(classes.names, f"label {label!r}")
    table = _plain_table(frame, list(columns.values()), candidates, chosen)
    proposed_centers = {name: scaling.center for name, scaling in chosen.numbers.items()}
    proposed_scales = {name: scaling.scale for name, scaling in chosen.numbers.items()}
    is_public = features is not None and not chosen.categories
    content = {
        "path": IN_MEMORY,
        "label": label,
        "site_column": site,
        "unit_column": unit,
        **label_keys,
        "features": list(chosen.numbers),
        "missing": chosen.missing,
        "centers": _constants(centers, "centers", features or (), proposed_centers),
        "scales": _constants(scales, "scales", features or (), proposed_scales),
        "categories": {
            name: values or sorted(set(table[name])) for name, values in chosen.categories.items()
        },
        "others": chosen.others,
        "constants": "public" if is_public else "from_records",
    }
    source = _without_false_public(read_record(Table, content, "the frame"), table)
    try:
        records = framed_records(table, source)
    except BadRowsError as error:
        remedy = (
            "fill them in, remove such rows, or leave out features, so that constants are proposed"
        )
        raise UserError(f"{error.problem}: {remedy}") from None
    for warning in magnitude_warnings(records, source):
        warnings.warn(sentence(warning), stacklevel=2)
    assert records.natural_site is not None
    shared = None if unit is None else shared_units(frame[unit], frame[site])
    return SiteRecords(
        source=source,
        records=table,
        sizes=_sizes(records.natural_site, records.units),
        names=site_names(table[site].to_numpy(dtype=np.str_), f"site {site!r}: the column"),
        left_out=chosen.left_out,
        event=classes.event,
        shared=shared,
    )


def sites_from_arrays(
    features: Values,
    labels: Values,
    sites: npt.ArrayLike,
    *,
    units: npt.ArrayLike | None = None,
    event: str | int | None = None,
) -> SiteRecords:
    """Read arrays, such as images, as the records of several sites.

    Args:
        features: N records, (N, *shape), numbers; whole numbers of one byte are grey levels, which
            become 0 to 1.
        labels: Numbers from 0, or words, in the order that `sites_from_frame` gives them, (N,).
        sites: The name of each record's site, (N,).
        units: Each record's privacy unit, such as the patient, (N,); None: each record is one.
        event: As of `sites_from_frame`.

    Returns:
        The records by site.

    Raises:
        UserError: If lengths differ, or a value is missing, or no number, class or name; or as of
            `sites_from_frame`.

    Example:
        >>> sites_from_arrays(
        ...     [[0.1], [0.5], [0.9]] * 20, ["well", "well", "sick"] * 20, ["north", "south"] * 30
        ... )
        2 sites by records: north (30), south (30); 1 features
        event: sick, 33.3% of 60 rows (the rarer of the two; the other class:  event='well')
    """
    values = _feature_array(features)
    label_texts = _texts_of_array("labels", labels, len(values))
    site_texts = _texts_of_array("sites", sites, len(values))
    unit_texts = None if units is None else _texts_of_array("units", units, len(values))
    classes = _classes(pandas.Series(as_array(labels), name="labels"), event)
    label_keys = class_keys(classes.names, "labels")
    names = site_names(site_texts, "sites")
    arrays = {
        "features": values if values.dtype == np.uint8 else values.astype(np.float32),
        "labels": pandas.Index(classes.names).get_indexer(label_texts),
        "sites": np.array([names[str(name)] for name in site_texts]),
    }
    shared = None
    if unit_texts is not None:
        arrays["units"] = unit_texts
        shared = shared_units(pandas.Series(unit_texts, name="units"), pandas.Series(site_texts))
    content = {
        "path": IN_MEMORY,
        "input_shape": values.shape[1:],
        **label_keys,
    }
    return SiteRecords(
        source=read_record(Arrays, content, "the arrays"),
        records=arrays,
        sizes=_sizes(arrays["sites"], arrays.get("units", np.arange(len(values)))),
        names=names,
        left_out={},
        event=classes.event,
        shared=shared,
    )


def sites_from_datasets(
    datasets: Mapping[str, LabelledData],
    *,
    units: Mapping[str, npt.ArrayLike] | None = None,
    event: str | int | None = None,
) -> SiteRecords:
    """Read torch's data sets as the records of several sites, one for each.

    A DataLoader's data set is read once; its batch size and shuffling are not used.

    Args:
        datasets: Site -> a Dataset or DataLoader of (features, label), or a tuple of two arrays or
            tensors, (N, *shape) and (N,).
        units: Site -> each record's privacy unit, such as the patient, (N,); None: each record of
            all sites is one.
        event: As of `sites_from_frame`.

    Returns:
        The records by site.

    Raises:
        UserError: If a site's records are no such thing, or differ in shape from another's; or as
            of `sites_from_arrays`.

    Example:
        >>> sites_from_datasets(
        ...     {"north": ([[0.1]] * 30, [0, 1] * 15), "south": ([[0.9]] * 30, [0, 1] * 15)}
        ... )
        2 sites by records: north (30), south (30); 1 features
        event: 1, 50.0% of 60 rows (the last in order; the other class:  event='0')
    """
    if not isinstance(datasets, Mapping) or not datasets:
        raise UserError(
            f"datasets is a {type(datasets).__name__}: give a dictionary, site -> data set"
        )
    if units is not None and units.keys() != datasets.keys():
        raise UserError(f"units name {', '.join(units)}: name the sites {', '.join(datasets)}")
    records = {}
    for site, data in datasets.items():
        try:
            records[site] = labelled_arrays(data)
        except UserError as error:
            raise UserError(f"site {site!r}: {error}") from None
    shapes = {site: site_records.features.shape[1:] for site, site_records in records.items()}
    if len(set(shapes.values())) > 1:
        raise UserError(f"records differ in shape: {shapes}")
    sizes = [len(site_records.labels) for site_records in records.values()]
    return sites_from_arrays(
        np.concatenate([site_records.features for site_records in records.values()]),
        np.concatenate([site_records.labels for site_records in records.values()]),
        np.repeat(list(records), sizes),
        units=None if units is None else np.concatenate([units[site] for site in records]),
        event=event,
    )


def _check_frame(
    frame: pandas.DataFrame, columns: Mapping[str, str], features: Sequence[str] | None
) -> None:
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
    check_columns(frame, columns, "the frame")
    absent = [name for name in features or () if name not in frame.columns]
    if absent:
        raise UserError(
            f"features has {absent[0]!r}: the frame has no such column: "
            f"{column_hint(absent[0], frame.columns)}"
        )
    used_twice = set(features or ()) & set(columns.values())
    if used_twice:
        raise UserError(
            f"features has {min(used_twice)!r}, which is the label, site or unit: remove it "
            "from features"
        )


def _plain_table(
    frame: pandas.DataFrame,
    columns: Sequence[str],
    candidates: pandas.DataFrame,
    chosen: ProposedFeatures,
) -> pandas.DataFrame:
    """Return columns of text for labels, sites, units and words, and of numbers for all else."""
    table = pandas.DataFrame({name: column_texts(_plain(frame[name])) for name in columns})
    for name in candidates.columns.difference(list(chosen.left_out), sort=False):
        if name in chosen.categories:
            table[name] = column_texts(frame[name])
        else:
            table[name] = _plain(frame[name]).to_numpy(float, na_value=np.nan)
    return table


def _without_false_public(source: Table, table: pandas.DataFrame) -> Table:
    """Return the source, not called public where its constants are statistics of the records."""
    if source.constants != "public":
        return source
    statistics = _constants_of_records(source, table)
    if not statistics:
        return source
    warnings.warn(
        f"{', '.join(statistics)}: equal to a statistic of these records, so not public: the page "
        "says so, a hospital would refuse it. Give what is known without them",
        stacklevel=3,
    )
    return source.model_copy(update={"constants": "from_records"})


def _feature_array(features: Values) -> npt.NDArray:
    mistake = UserError(
        "features are no (N, *shape) finite numbers: give a row per record, with no value missing"
    )
    if isinstance(features, Dataset | DataLoader):
        raise UserError(
            f"features are a {type(features).__name__}: give sites_from_datasets a dictionary, "
            "site -> data set"
        )
    try:
        values = as_array(features)
    except ValueError:
        # Rows of different lengths.
        raise mistake from None
    is_number = np.issubdtype(values.dtype, np.number)
    if not is_number or values.ndim < 2 or not np.isfinite(values).all():
        raise mistake
    return values


def _texts_of_array(name: str, array: Values, records: int) -> npt.NDArray:
    values = as_array(array)
    column = pandas.Series(values if values.ndim == 1 else [])
    if len(column) != records or column.isna().any():
        raise UserError(
            f"{name} have shape {values.shape}: give one for each of the {records} records"
        )
    return column_texts(_plain(column))


@dataclass(frozen=True)
class _Classes:
    """What labels are.

    Attributes:
        names: The classes in order, the event last.
        event: The event, where there are two.
    """

    names: list[str]
    event: Event | None


def _classes(column: pandas.Series, chosen: str | int | None) -> _Classes:
    """Put labels in order: the given one, else the alphabet's with the event last."""
    plain = _plain(column)
    names = sorted_texts(plain)
    order: list[str] = []
    if isinstance(column.dtype, pandas.CategoricalDtype):
        order = [name for name in map(str, column.cat.categories) if name in names]
    elif is_numeric_dtype(plain):
        order = names
    event = event_among(
        plain,
        chosen=None if chosen is None else str(_plain(pandas.Series([chosen]))[0]),
        order=order,
        written=as_keyword,
    )
    return _Classes(names=order or names if event is None else event.class_names, event=event)


def _plain(column: pandas.Series) -> pandas.Series:
    # True and False are the numbers 1 and 0.
    return column.astype("Int64") if is_bool_dtype(column) else column


def _proposed_features(table: pandas.DataFrame) -> ProposedFeatures:
    """Propose features as `init` does of a table that was read."""
    features = proposed_features(table)
    group_rare_values(features, table[features.many_words])
    check_any_feature(features)
    return features


def _chosen_features(table: pandas.DataFrame) -> ProposedFeatures:
    """Take the columns that a person chose as they are: numbers, or words of few values."""
    features = ProposedFeatures()
    for name, column in table.items():
        if is_numeric_dtype(column):
            features.numbers[name] = Scaling(center=0.0, scale=1.0)
            continue
        unusable = proposed_features(table[[name]]).unusable.get(name)
        if unusable is not None and unusable.kind == "text among numbers":
            raise UserError(f"feature {name!r} has {unusable.reason}")
        words = set(column_texts(column))
        if len(words) > MOST_CATEGORIES:
            raise UserError(
                f"feature {name!r} has {len(words)} values of text, such as "
                f"{str(min(words))[:60]!r}: turn it into numbers, or group it to "
                f"{MOST_CATEGORIES} values or fewer"
            )
        features.categories[name] = []
    return features


def _constants_of_records(source: Table, table: pandas.DataFrame) -> list[str]:
    """Name each constant that equals a statistic of its column.

    One of two digits may do so by chance.
    """
    equal = []
    for key, constants in (("centers", source.centers or ()), ("scales", source.scales or ())):
        for name, value in zip(source.features, constants, strict=True):
            has_few_digits = value == float(f"{value:.1e}")
            statistics = _statistics(table[name])
            if not has_few_digits and np.isclose(statistics, value, rtol=1e-6, atol=0).any():
                equal.append(f"{key} of {name!r}")
    return equal


def _statistics(column: pandas.Series) -> list[float]:
    low = column.min()
    high = column.max()
    return [
        column.mean(),
        column.median(),
        column.std(),
        column.std(ddof=0),
        low,
        high,
        high - low,
    ]


def _constants(
    constants: Constants | None, key: str, features: Sequence[str], proposed: dict[str, float]
) -> list[float]:
    """Return a constant for each numeric feature: the given one, or the proposed."""
    if constants is None:
        return list(proposed.values())
    if not isinstance(constants, Mapping | pandas.Series):
        if len(constants) != len(features):
            raise UserError(
                f"{key} has {len(constants)} values for {len(features)} features: give features "
                "and one value for each, or a dictionary by column"
            )
        constants = dict(zip(features, constants, strict=True))
    by_column = dict(constants)
    unknown = by_column.keys() - proposed
    if unknown:
        name = min(unknown)
        raise UserError(f"{key} names {name!r}, no numeric feature: {column_hint(name, proposed)}")
    return list((proposed | by_column).values())


def _sizes(sites: npt.NDArray, units: npt.NDArray) -> dict[str, int]:
    return pandas.Series(units).groupby(sites.astype(str), sort=False).nunique().to_dict()

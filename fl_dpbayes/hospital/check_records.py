"""Looks at a site's records once.

Of each kind of broken data it says in which row it stands, never the value.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pandas

from fl_dpbayes.config import (
    Arrays,
    BuiltIn,
    ImageFolder,
    SiteFile,
    Source,
    Split,
    Table,
    is_group_text,
)
from fl_dpbayes.data import Records, load_unscaled
from fl_dpbayes.data.sources.images import IMAGE_SUFFIXES, found_names, image_pixels
from fl_dpbayes.data.sources.table import (
    DATE_FORMS,
    MAX_VALUES,
    BadRowsError,
    column_dates,
    column_texts,
    days_since,
    framed_records,
    read_table,
    row_place,
)
from fl_dpbayes.errors import UserError
from fl_dpbayes.hospital.findings import Finding, failed, warned
from fl_dpbayes.privacy import parts_of_units

# Of errors that cannot quote a record.
PLAIN = (
    r"may not be read by|does not exist|is empty|is no text|has no rows|must end in "
    r".csv|lines have more cells"
)
# How many scales a column's middle value may lie from its center; a person should look at what is
# further away.
FAR = 5.0
NUMBER_REMEDY = "correct it, or leave the cell empty"
NO_VALUE_REMEDY = (
    "remove such rows, or let the coordinator give the column a constant in source.missing"
)


def check_records(site_file: SiteFile) -> tuple[list[Finding], Records | None]:
    """Load all records of a site's source, once.

    Args:
        site_file: Of the site.

    Returns:
        What is wrong with them, and the records if nothing forbids.
    """
    source = site_file.source
    try:
        if isinstance(source, Table):
            return _check_table(source, site_file.split)
        if isinstance(source, ImageFolder):
            findings = list(_image_findings(source))
            if findings:
                return findings, None
        return [], load_unscaled(source, site_file.selection.part)
    except BadRowsError as error:
        message = (
            f"record {error.rows[0] + 1}, column {error.column!r}: the value is not one that "
            "the site file allows"
        )
    except UserError as error:
        message = _without_values(str(error), source)
    return [failed("data", message, "put the file right, or export it again")], None


def _check_table(source: Table, split: Split) -> tuple[list[Finding], Records | None]:
    table = read_table(source.path, source.text_columns)
    findings = list(_table_findings(table, source, split))
    if any(finding.status == "FAIL" for finding in findings):
        return findings, None
    return findings, framed_records(table, source)


def _without_values(text: str, source: Source) -> str:
    """Keep of an error's text what cannot quote a record."""
    if isinstance(source, Arrays | BuiltIn | ImageFolder) or re.search(PLAIN, text):
        return text
    place = re.search(
        r"line \d+ has \d+ cells, and those before \d+|the image in row \d+ (is|has|cannot)|"
        r"columns \d+ and \d+ of the first line have the same name",
        text,
    )
    if place:
        return place[0]
    return "it cannot be read: it is damaged, or not in the format that the site file says"


def _table_findings(table: pandas.DataFrame, source: Table, split: Split) -> Iterator[Finding]:
    names = list(dict.fromkeys((*source.feature_columns, source.label, *source.text_columns)))
    absent = ", ".join(repr(name) for name in names if name not in table.columns)
    if absent:
        yield failed(
            "columns",
            f"the first line does not name {absent}",
            "give the columns the names that the coordinator's scenario has",
        )
        return
    for name in source.features:
        may_miss = name in source.missing
        if name in source.days_since:
            yield from _date_findings(table, name, may_miss=may_miss)
        else:
            yield from _number_findings(table, name, may_miss=may_miss)
    for name, values in source.categories.items():
        if name not in source.others:
            yield from _unknown_values(table, name, values, key="source.categories")
    yield from _unknown_values(table, source.label, source.class_names, key="source.class_names")
    yield from _label_findings(table, source)
    for name_column in (source.unit_column, source.site_column):
        if name_column:
            yield from _bad_rows(
                table=table,
                name=name_column,
                is_bad=table[name_column].isna(),
                fault="no name",
                remedy="every row needs one: fill it in or remove the row",
            )
    for name in source.group_columns:
        yield from _group_findings(table, name)
    days = {name: days_since(table[name], zero) for name, zero in source.days_since.items()}
    yield from _center_findings(table.assign(**days), source)
    yield from _repeated_rows(table)
    if source.unit_column is not None:
        yield from _patient_findings(table, source.unit_column, split)


def _unknown_values(
    table: pandas.DataFrame, name: str, values: Sequence[str], *, key: str
) -> Iterator[Finding]:
    """Find texts that a key of the site file does not name; it allows all if it names none."""
    is_unknown = bool(values) & ~np.isin(column_texts(table[name]), values)
    yield from _bad_rows(
        table=table,
        name=name,
        is_bad=is_unknown,
        fault=f"a value that {key} does not name",
        remedy=f"correct it, or ask the coordinator to add it to {key} at every site",
    )


def _label_findings(table: pandas.DataFrame, source: Table) -> Iterator[Finding]:
    if not source.class_names:
        yield from _number_findings(table, source.label, may_miss=False)
        labels = pandas.to_numeric(table[source.label], errors="coerce")
        yield from _bad_rows(
            table=table,
            name=source.label,
            is_bad=labels.notna() & ~source.task.outcome.holds(labels),
            fault=f"a label that is no whole number from 0 to {source.classes - 1}",
            remedy="write each label as one of these numbers",
        )
    if table[source.label].nunique() == 1:
        yield failed(
            f"column {source.label!r}",
            "every row has the same label",
            "export all patients, or do not train",
        )


def _group_findings(table: pandas.DataFrame, name: str) -> Iterator[Finding]:
    texts = pandas.Series(column_texts(table[name]))
    yield from _bad_rows(
        table=table,
        name=name,
        is_bad=~texts.map(is_group_text),
        fault="text that cannot be shown",
        remedy="shorten or replace it",
    )
    if texts.nunique() > MAX_VALUES:
        yield failed(
            f"column {name!r}",
            f"more than {MAX_VALUES} different values",
            "join some, as ages to groups",
        )


def _number_findings(table: pandas.DataFrame, name: str, *, may_miss: bool) -> Iterator[Finding]:
    column = table[name]
    numbers = pandas.to_numeric(column, errors="coerce")
    is_text = numbers.isna() & column.notna()
    has_comma = is_text & column.astype(str).str.fullmatch(r"\s*[-+]?\d+,\d+\s*")
    faults = {
        "a number with a decimal comma": (has_comma, "write a point, or separate cells by ';'"),
        "text where a number is due": (is_text & ~has_comma, NUMBER_REMEDY),
        "an infinite number": (numbers.abs() == np.inf, NUMBER_REMEDY),
    }
    if not may_miss:
        faults["no value"] = (column.isna(), NO_VALUE_REMEDY)
    for fault, (is_bad, remedy) in faults.items():
        yield from _bad_rows(table=table, name=name, is_bad=is_bad, fault=fault, remedy=remedy)


def _date_findings(table: pandas.DataFrame, name: str, *, may_miss: bool) -> Iterator[Finding]:
    column = table[name]
    yield from _bad_rows(
        table=table,
        name=name,
        is_bad=column_dates(column).isna() & column.notna(),
        fault="text where a date is due",
        remedy=f"write it as {DATE_FORMS}",
    )
    if not may_miss:
        yield from _bad_rows(
            table=table,
            name=name,
            is_bad=column.isna(),
            fault="no value",
            remedy=NO_VALUE_REMEDY,
        )


def _bad_rows(
    table: pandas.DataFrame, name: str, is_bad: npt.ArrayLike, fault: str, remedy: str
) -> Iterator[Finding]:
    """Name the first of a column's bad rows, and count the others."""
    rows = np.flatnonzero(np.asarray(is_bad))
    if len(rows):
        yield failed(f"column {name!r}", f"{_row_places(table, rows)}: {fault}", remedy)


def _row_places(table: pandas.DataFrame, rows: npt.NDArray[np.intp]) -> str:
    further = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    return f"{row_place(table, rows[0])}{further}"


def _center_findings(table: pandas.DataFrame, source: Table) -> Iterator[Finding]:
    """Find columns that fit each other's center and scale, and columns that fit none.

    Two look exchanged if they lie far from their own centers, and at less than a quarter of that
    distance from each other's.
    """
    if not source.centers or not source.scales:
        return
    names = source.features
    middles = np.array([pandas.to_numeric(table[name], errors="coerce").median() for name in names])
    # Row: a column of the table; column: whose center and scale it is measured by.
    distances = np.abs(middles[:, None] - np.array(source.centers)) / np.array(source.scales)
    own_distances = np.diag(distances)
    pair_distances = own_distances[:, None] + own_distances
    is_exchanged = (pair_distances > FAR) & (distances + distances.T < pair_distances / 4)
    for first, second in np.argwhere(np.triu(is_exchanged, 1)):
        yield failed(
            "columns",
            f"{names[first]!r} and {names[second]!r} look exchanged: each fits the center and "
            "scale of the other",
            "put each under its own name",
        )
    for column in np.flatnonzero(own_distances > FAR):
        yield warned(
            f"column {names[column]!r}",
            "most values lie far from the center that the scenario gives",
            "is it in the same unit as at the other sites?",
        )


def _repeated_rows(table: pandas.DataFrame) -> Iterator[Finding]:
    """Find a file that holds everything twice, or else rows that are equal to an earlier one."""
    if _is_doubled(table):
        yield failed(
            "rows",
            f"the rows from {row_place(table, len(table) // 2)} on repeat those before: the file "
            "holds everything twice",
            "remove the second half",
        )
        return
    duplicates = np.flatnonzero(table.duplicated())
    if duplicates.size:
        yield warned(
            "rows",
            f"{_row_places(table, duplicates)}: equal to an earlier row",
            "of the same patient? then remove it, or name the patients' column",
        )


def _is_doubled(table: pandas.DataFrame) -> bool:
    half, remainder = divmod(len(table), 2)
    if remainder or half <= 1:
        return False
    first_half = table[:half].reset_index(drop=True)
    second_half = table[half:].reset_index(drop=True)
    return first_half.equals(second_half)


def _patient_findings(table: pandas.DataFrame, name: str, split: Split) -> Iterator[Finding]:
    """Find patients whose names differ by blanks, capitals or forms of letters only."""
    units, unit_of_row = np.unique(column_texts(table[name]), return_inverse=True)
    plain_names = pandas.Series([_plain_name(unit) for unit in units])
    is_ambiguous = plain_names.duplicated(keep=False)
    if not is_ambiguous.any():
        return
    parts = pandas.Series(
        parts_of_units(units.tolist(), split.key, split.test_fraction, split.recalibration_fraction)
    )
    patients_in_two_parts = parts.groupby(plain_names).nunique().gt(1).sum()
    rows = np.flatnonzero(is_ambiguous[unit_of_row])
    message = f"{_row_places(table, rows)}: names that differ only by blanks or capitals"
    if patients_in_two_parts:
        message += (
            f"; {patients_in_two_parts} such patients stand in two parts, as in training and in "
            "testing"
        )
    yield failed(f"column {name!r}", message, "write each patient's name in one way")


def _plain_name(name: str) -> str:
    """Return a patient's name without blanks, capitals and forms of letters."""
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())


def _image_findings(source: ImageFolder) -> Iterator[Finding]:
    paths = [
        path for path in sorted(source.path.glob("*/**/*")) if path.suffix.lower() in IMAGE_SUFFIXES
    ]
    for number, path in enumerate(paths, start=1):
        try:
            found_names(source, [path], "patient_pattern")
            found_names(source, [path], "site_pattern")
            image_pixels(path, height=1, width=1, channels=1)
        except UserError as error:
            is_unnamed = "names no" in str(error)
            fault = "its path names no patient or site" if is_unnamed else "it cannot be read"
            place = f"image {number} of {len(paths)} in alphabetical order"
            yield failed("images", f"{place}: {fault}", "correct, rename or remove it")

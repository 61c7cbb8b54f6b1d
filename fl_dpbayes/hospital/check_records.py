"""Looks at a site's records once, and says of each kind of broken data in which row it stands, never the value."""

import re
import unicodedata
from collections.abc import Iterator

import numpy as np
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
    MAX_VALUES,
    BadRowsError,
    column_texts,
    framed_records,
    read_table,
    row_place,
)
from fl_dpbayes.errors import UserError
from fl_dpbayes.hospital.findings import Finding, failed, warned
from fl_dpbayes.privacy import unit_scores

# Of errors that cannot quote a record.
PLAIN = (
    r"may not be read by|does not exist|is empty|is no text|has no rows|must end in "
    r".csv|lines have more cells"
)
# How many scales a column's middle value may lie from its center; a person should look at what is
# further away.
FAR = 5.0
NUMBER = "correct it, or leave the cell empty"


def check_records(site_file: SiteFile) -> tuple[list[Finding], Records | None]:
    """Load all records of a site's source, once.

    Return what is wrong with them, and the records if nothing forbids.
    """
    source, found = site_file.source, list[Finding]()
    try:
        if isinstance(source, Table):
            table = read_table(source.path, source.text_columns)
            found = list(_table_findings(table, source, site_file.split))
            return found, None if any(one.status == "FAIL" for one in found) else framed_records(
                table, source
            )
        if isinstance(source, ImageFolder) and (found := list(_image_findings(source))):
            return found, None
        return found, load_unscaled(source, site_file.selection.part)
    except BadRowsError as error:
        said = (
            f"record {error.rows[0] + 1}, column {error.column!r}: the value is not one that "
            "the site file allows"
        )
    except UserError as error:
        said = _without_values(str(error), source)
    return [failed("data", said, "put the file right, or export it again")], None


def _without_values(text: str, source: Source) -> str:
    if isinstance(source, Arrays | BuiltIn | ImageFolder) or re.search(PLAIN, text):
        return text
    place = re.search(
        r"line \d+ has \d+ cells, and those before \d+|the image in row \d+ (is|has|cannot)", text
    )
    return (
        place[0]
        if place
        else "it cannot be read: it is damaged, or not in the format that the site file says"
    )


def _table_findings(table: pandas.DataFrame, source: Table, split: Split) -> Iterator[Finding]:
    names = dict.fromkeys((*source.feature_columns, source.label, *source.text_columns))
    if absent := ", ".join(repr(name) for name in names if name not in table.columns):
        yield failed(
            "columns",
            f"the first line does not name {absent}",
            "name columns as the coordinator does",
        )
        return
    if twice := [name for name in names if f"{name}.1" in table.columns]:
        yield failed(
            "columns",
            f"{twice[0]!r} stands twice in the first line",
            "remove one of the two columns",
        )
    for name in source.features:
        yield from _numbers(table, name, may_miss=name in source.missing)
    words = {
        "source.categories": source.categories,
        "source.class_names": {source.label: source.class_names},
    }
    for key, columns in words.items():
        for name, values in columns.items():
            unknown = bool(values) & ~np.isin(column_texts(table[name]), values)
            remedy = f"correct it, or ask the coordinator to add it to {key} at every site"
            yield from _at(table, name, unknown, f"a value that {key} does not name", remedy)
    if not source.class_names:
        yield from _numbers(table, source.label, may_miss=False)
        labels = pandas.to_numeric(table[source.label], errors="coerce")
        said = f"a label that is no whole number from 0 to {source.classes - 1}"
        yield from _at(
            table,
            source.label,
            labels.notna() & ~labels.isin(range(source.classes)),
            said,
            "recode it",
        )
    if table[source.label].nunique() == 1:
        yield failed(
            f"column {source.label!r}",
            "every row has the same label",
            "export all patients, or do not train",
        )
    for name in filter(None, (source.unit_column, source.site_column)):
        yield from _at(
            table,
            name,
            table[name].isna(),
            "no name",
            "every row needs one: fill it in or remove the row",
        )
    for name in source.group_columns:
        texts = pandas.Series(column_texts(table[name]))
        yield from _at(
            table,
            name,
            ~texts.map(is_group_text),
            "text that cannot be shown",
            "shorten or replace it",
        )
        if texts.nunique() > MAX_VALUES:
            yield failed(
                f"column {name!r}",
                f"more than {MAX_VALUES} different values",
                "join some, as ages to groups",
            )
    yield from _exchanged(table, source)
    half, odd = divmod(len(table), 2)
    if (
        not odd
        and half > 1
        and table[:half].reset_index(drop=True).equals(table[half:].reset_index(drop=True))
    ):
        said = (
            f"the rows from {row_place(table, half)} on repeat those before: the file holds "
            "everything twice"
        )
        yield failed("rows", said, "remove the second half")
    elif (again := np.flatnonzero(table.duplicated())).size:
        said = f"{row_place(table, again[0])}{_more(again)}: equal to an earlier row"
        yield warned(
            "rows", said, "of the same patient? then remove it, or name the patients' column"
        )
    if source.unit_column is not None:
        yield from _patients(table, source.unit_column, split)


def _numbers(table: pandas.DataFrame, name: str, *, may_miss: bool) -> Iterator[Finding]:
    column, numbers = table[name], pandas.to_numeric(table[name], errors="coerce")
    words = numbers.isna() & column.notna()
    comma = words & column.astype(str).str.fullmatch(r"\s*[-+]?\d+,\d+\s*")
    yield from _at(
        table,
        name,
        comma,
        "a number with a decimal comma",
        "write a point, or separate cells by ';'",
    )
    yield from _at(table, name, words & ~comma, "text where a number is due", NUMBER)
    yield from _at(table, name, numbers.abs() == np.inf, "an infinite number", NUMBER)
    if not may_miss:
        remedy = (
            "remove such rows, or let the coordinator give the column a constant in source.missing"
        )
        yield from _at(table, name, column.isna(), "no value", remedy)


def _at(
    table: pandas.DataFrame, name: str, bad: object, said: str, remedy: str
) -> Iterator[Finding]:
    if len(rows := np.flatnonzero(np.asarray(bad))):
        yield failed(
            f"column {name!r}", f"{row_place(table, rows[0])}{_more(rows)}: {said}", remedy
        )


def _more(rows: np.ndarray) -> str:
    return f" and {len(rows) - 1} more" if len(rows) > 1 else ""


def _exchanged(table: pandas.DataFrame, source: Table) -> Iterator[Finding]:
    """Find columns that fit each other's center and scale, and not their own.

    And those that fit none.
    """
    if not source.centers or not source.scales:
        return
    middles = np.array(
        [pandas.to_numeric(table[name], errors="coerce").median() for name in source.features]
    )
    away = np.abs(middles[:, None] - np.array(source.centers)) / np.array(source.scales)
    own, names = np.diag(away), source.features
    both = own[:, None] + own
    for one, other in np.argwhere(np.triu((both > FAR) & (away + away.T < both / 4), 1)):
        said = (
            f"{names[one]!r} and {names[other]!r} look exchanged: each fits the center and "
            "scale of the other"
        )
        yield failed("columns", said, "put each under its own name")
    for place in np.flatnonzero(own > FAR):
        said = "most values lie far from the center that the scenario gives"
        yield warned(
            f"column {names[place]!r}", said, "is it in the same unit as at the other sites?"
        )


def _patients(table: pandas.DataFrame, name: str, split: Split) -> Iterator[Finding]:
    """Find patients whose names differ by blanks, capitals or forms of letters only: they would count as two."""
    units, of_row = np.unique(column_texts(table[name]), return_inverse=True)
    alike = pandas.Series(
        ["".join(unicodedata.normalize("NFKC", unit).casefold().split()) for unit in units]
    )
    if not (same := alike.duplicated(keep=False)).any():
        return
    edges = split.test_fraction, split.test_fraction + split.recalibration_fraction
    parts = pandas.Series(np.digitize(unit_scores(units.tolist(), bytes.fromhex(split.key)), edges))
    across, rows = parts.groupby(alike).nunique().gt(1).sum(), np.flatnonzero(same[of_row])
    said = f"{row_place(table, rows[0])}{_more(rows)}: names that differ only by blanks or capitals"
    said += (
        f"; {across} such patients stand in two parts, as in training and in testing"
        if across
        else ""
    )
    yield failed(f"column {name!r}", said, "write each patient's name in one way")


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
            said = (
                "its path names no patient or site"
                if "names no" in str(error)
                else "it cannot be read"
            )
            place = f"image {number} of {len(paths)} in alphabetical order"
            yield failed("images", f"{place}: {said}", "correct, rename or remove it")

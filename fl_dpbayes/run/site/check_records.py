"""Looks at a site's records once, and says of each kind of broken data in which row it stands, never the value."""

import re
import unicodedata
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.names import is_group_text
from fl_dpbayes.config.site_file import SiteFile, Split
from fl_dpbayes.config.sources import Arrays, BuiltIn, ImageFolder, Source, Table
from fl_dpbayes.data.records import Records, load_unscaled
from fl_dpbayes.data.sources.images import IMAGE_SUFFIXES, found_names, image_pixels
from fl_dpbayes.data.sources.table import MAX_VALUES, BadRows, column_texts, framed_records, read_table, row_place
from fl_dpbayes.privacy.splits import in_recalibration_part, in_test_part
from fl_dpbayes.run.site.findings import Finding, failed

PLAIN_TEXTS = (
    "does not exist",
    "is empty",
    "is no text",
    "has no rows",
    "must end in .csv",
    "lines have more cells",
)
# How many scales a column's middle value may lie from its center; a person should look at what is further away.
FAR = 5.0
Rows = npt.NDArray[np.bool_]


def check_records(site_file: SiteFile) -> tuple[list[Finding], Records | None]:
    """Load all records of a site's source, once; return what is wrong with them, and the records if nothing forbids."""
    source, found = site_file.source, list[Finding]()
    try:
        if isinstance(source, Table):
            table = read_table(source.path, source.text_columns)
            found = list(_table_findings(table, source, site_file.split))
            records = None if any(one.status == "FAIL" for one in found) else framed_records(table, source)
        elif isinstance(source, ImageFolder) and (found := list(_image_findings(source))):
            records = None
        else:
            records = load_unscaled(source, site_file.selection.part)
        return found, records
    except BadRows as error:
        place = f"record {error.rows[0] + 1}, column {error.column!r}"
        return [failed("data", f"{place}: the value is not one that the site file allows", "correct it there")], None
    except UserError as error:
        return [failed("data", _without_values(str(error), source), "put the file right, or export it again")], None


def _without_values(text: str, source: Source) -> str:
    """Return what an error of a source says, where it cannot quote a record; else what it is about."""
    if isinstance(source, Arrays | BuiltIn | ImageFolder) or any(known in text for known in PLAIN_TEXTS):
        return text
    if cells := re.search(r"line \d+ has \d+ cells, and those before \d+", text):
        return f"{cells[0]}: a cell with a separator must stand in quotes"
    if row := re.search(r"the image in row \d+", text):
        return f"{row[0]} cannot be used"
    return "it cannot be read: it is damaged, or not in the format that the site file says"


def _table_findings(table: pandas.DataFrame, source: Table, split: Split) -> Iterator[Finding]:
    names = dict.fromkeys((*source.feature_columns, source.label, *source.text_columns))
    if absent := [name for name in names if name not in table.columns]:
        said = ", ".join(map(repr, absent))
        yield failed("columns", f"the first line does not name {said}", "name columns as the coordinator does")
        return
    if twice := [name for name in names if f"{name}.1" in table.columns]:
        yield failed("columns", f"{twice[0]!r} stands twice in the first line", "remove one of the two columns")
    for name in source.features:
        yield from _number_findings(table, name, None if name in source.missing else "missing")
    for name, values in source.categories.items():
        yield from _undeclared(table, name, values, "source.categories")
    if source.class_names:
        yield from _undeclared(table, source.label, source.class_names, "source.class_names")
    else:
        yield from _number_findings(table, source.label, "missing")
        numbers = pandas.to_numeric(table[source.label], errors="coerce")
        outside = numbers.notna() & ~numbers.isin(range(source.classes))
        said = f"a label that is no whole number from 0 to {source.classes - 1}"
        yield from _at(table, source.label, outside, said, "recode it, or remove the row")
    if table[source.label].nunique() == 1:
        yield failed(f"column {source.label!r}", "every row has the same label", "export all patients, or do not train")
    for name in filter(None, (source.unit_column, source.site_column)):
        yield from _at(table, name, table[name].isna(), "no name", "every row needs one: fill it in or remove the row")
    for name in source.group_columns:
        texts = pandas.Series(column_texts(table[name]), table.index)
        yield from _at(table, name, ~texts.map(is_group_text), "text that cannot be shown", "shorten or replace it")
        if texts.nunique() > MAX_VALUES:
            yield failed(f"column {name!r}", f"more than {MAX_VALUES} different values", "join some, as ages to groups")
    yield from _exchanged(table, source)
    yield from _repeated(table, source)
    if source.unit_column is not None and table[source.unit_column].notna().all():
        yield from _patients(table, source.unit_column, split)


def _number_findings(table: pandas.DataFrame, name: str, missing: str | None) -> Iterator[Finding]:
    column = table[name]
    numbers = pandas.to_numeric(column, errors="coerce")
    words, texts = numbers.isna() & column.notna(), column.astype(str)
    comma = words & texts.str.fullmatch(r"\s*[-+]?\d+,\d+\s*")
    yield from _at(table, name, comma, "a number with a decimal comma", "write a point, or separate cells by ';'")
    yield from _at(table, name, words & ~comma, "text where a number is due", "correct it, or leave the cell empty")
    yield from _at(table, name, numbers.abs() == np.inf, "an infinite number", "correct it, or leave the cell empty")
    if missing:
        remedy = "give the column a constant in source.missing (all sites the same), or remove such rows"
        yield from _at(table, name, column.isna(), "no value", remedy)


def _undeclared(table: pandas.DataFrame, name: str, values: tuple[str, ...], key: str) -> Iterator[Finding]:
    remedy = f"correct it, or ask the coordinator to add it to {key} at every site"
    yield from _at(
        table, name, ~np.isin(column_texts(table[name]), values), f"a value that {key} does not name", remedy
    )


def _at(table: pandas.DataFrame, name: str, bad: "pandas.Series | Rows", said: str, remedy: str) -> Iterator[Finding]:
    rows = np.flatnonzero(bad)
    if len(rows):
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        yield failed(f"column {name!r}", f"{row_place(table, rows[0])}{more}: {said}", remedy)


def _exchanged(table: pandas.DataFrame, source: Table) -> Iterator[Finding]:
    """Find columns that fit each other's center and scale, and not their own; and those that fit none."""
    if not source.centers or not source.scales:
        return
    middles = np.array([pandas.to_numeric(table[name], errors="coerce").median() for name in source.features])
    away = np.abs(middles[:, None] - np.array(source.centers)) / np.array(source.scales)
    own, names = np.diag(away), source.features
    both = own[:, None] + own
    for one, other in np.argwhere(np.triu((both > FAR) & (away + away.T < both / 4), 1)):
        said = f"{names[one]!r} and {names[other]!r} look exchanged: each fits the center and scale of the other"
        yield failed("columns", said, "put each under its own name")
    for place in np.flatnonzero(own > FAR):
        said = "most values lie far from the center that the scenario gives"
        yield Finding("WARN", f"column {names[place]!r}", said, "is it in the same unit as at the other sites?")


def _repeated(table: pandas.DataFrame, source: Table) -> Iterator[Finding]:
    half, odd = divmod(len(table), 2)
    if not odd and half > 1 and table[:half].reset_index(drop=True).equals(table[half:].reset_index(drop=True)):
        said = f"the rows from {row_place(table, half)} on repeat those before: the file holds everything twice"
        yield failed("rows", said, "remove the second half")
    elif (again := np.flatnonzero(table.duplicated())).size:
        more = f" and {len(again) - 1} more" if len(again) > 1 else ""
        yield Finding("WARN", "rows", f"{row_place(table, again[0])}{more}: equal to an earlier row",
                      "of the same patient? then remove it, or name the patients' column")  # fmt: skip


def _patients(table: pandas.DataFrame, name: str, split: Split) -> Iterator[Finding]:
    """Find patients whose names differ by blanks, capitals or forms of letters only: they would count as two."""
    units = pandas.Series(np.unique(column_texts(table[name])))
    alike = units.map(lambda unit: "".join(unicodedata.normalize("NFKC", unit).casefold().split()))
    if not (same := alike.duplicated(keep=False)).any():
        return
    parts = 2 * in_test_part(units.tolist(), split.key, split.test_fraction)
    parts += in_recalibration_part(units.tolist(), split.key, split.test_fraction, split.recalibration_fraction)
    across = pandas.Series(parts).groupby(alike).nunique().gt(1).sum()
    rows = np.flatnonzero(np.isin(column_texts(table[name]), units[same]))
    said = f"{row_place(table, rows[0])} and {len(rows) - 1} more: names that differ only by blanks or capitals"
    said += f"; {across} such patients stand in two parts, as in training and in testing" if across else ""
    yield failed(f"column {name!r}", said, "write each patient's name in one way")


def _image_findings(source: ImageFolder) -> Iterator[Finding]:
    paths = [path for path in sorted(source.path.glob("*/**/*")) if path.suffix.lower() in IMAGE_SUFFIXES]
    for number, path in enumerate(paths, start=1):
        place = f"image {number} of {len(paths)} in alphabetical order"
        try:
            found_names(source, [path], "patient_pattern")
            found_names(source, [path], "site_pattern")
            image_pixels(path, height=1, width=1, channels=1)
        except UserError as error:
            unnamed = "its path names no patient or site, as the pattern asks" if "names no" in str(error) else ""
            yield failed("images", f"{place}: {unnamed or 'it cannot be read'}", "correct, rename or remove it")

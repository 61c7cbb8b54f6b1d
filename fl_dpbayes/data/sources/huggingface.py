"""A data set of the Hugging Face hub at one commit, or a local folder in its layout.

Only Parquet files are read, and no code of the data set is run.
"""

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas
from PIL import Image

from fl_dpbayes.config import HuggingFace, OfficialPart, Table, column_hint
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.sources.images import UNREADABLE, grey_levels
from fl_dpbayes.data.sources.table import framed_records
from fl_dpbayes.errors import UserError

if TYPE_CHECKING:
    import pyarrow
    from datasets import Dataset, DatasetBuilder, IterableDataset

BATCH_ROWS = 1000
# One gibibyte each.
MAX_GREY_LEVELS = 2**30
MAX_NUMBERS = 2**27
ABSENT = (
    "check name, revision and config; without internet, download it beforehand (once, with "
    "internet, by this same source), or give source.path, a local folder with its Parquet files, "
    "instead of name"
)


def load(source: HuggingFace, part: OfficialPart) -> Records:
    """Load one split, one record per row in the split's order.

    Images are resized (bilinear, anti-aliased), and their grey levels not yet scaled; numeric
    columns are centred and scaled. A local folder is read where it lies. A data set of the hub is
    downloaded once, into the library's own cache.

    Args:
        source: Names the data set and its columns.
        part: The official part, whose split `source.splits` names.

    Raises:
        UserError: If the data set cannot be had or is not in Parquet, it is too large, or a column
            is absent or has a value that is not allowed.
    """
    task = source.task
    split_name = source.splits[part]
    split = _split(source, split_name)
    frames = []
    pixels = []
    count = 0
    most = (MAX_GREY_LEVELS if source.image else MAX_NUMBERS) // int(np.prod(task.input_shape))
    for table in _tables(split, source):
        first = count
        count += len(table)
        if count > most:
            raise _error(
                source, f"split {split_name!r} has more than {most} records: use a smaller one"
            )
        if source.image is not None:
            pixels += _images(table[source.image], source, first)
            table = table.drop_columns([source.image])
        frames.append(table.to_pandas())
    if not count:
        raise _error(source, f"split {split_name!r} has no rows")
    frame = pandas.concat(frames, ignore_index=True)
    records = framed_records(frame, _table_source(source))
    if source.site_column is not None:
        sites = frame[source.site_column]
        if sites.isna().any():
            raise _error(
                source,
                f"column {source.site_column!r} has missing values: every row needs its site",
            )
        records = replace(records, natural_site=sites.astype(str).to_numpy(dtype=np.str_))
    if source.image is not None:
        records = replace(
            records, features=np.stack(pixels), task=task, unit=source.unit, feature_names=()
        )
    return records


def _table_source(source: HuggingFace) -> Table:
    # Of images the label stands in as the one feature, so that labels and units are checked as
    # those of a table.
    return Table(
        path=_place(source),
        features=source.columns or (source.label,),
        label=source.label,
        centers=source.centers,
        scales=source.scales,
        unit_column=source.unit_column,
        **source.task.outcome.source_keys,
    )


def _place(source: HuggingFace) -> Path:
    return Path(source.name or "") if source.path is None else source.path


def _error(source: HuggingFace, problem: str) -> UserError:
    return UserError(f"data set {_place(source)}: {problem}")


def _split(source: HuggingFace, name: str) -> "Dataset | IterableDataset":
    """Open a split, a local folder as a stream: else records would be copied into the home."""
    builder = _builder(source)
    try:
        if source.path is not None:
            streams = builder.as_streaming_dataset()
            names = list(streams)
            split = streams.get(name)
        else:
            builder.download_and_prepare()
            names = list(builder.info.splits or ())
            split = builder.as_dataset(split=name) if name in names else None
    # What files of others make the library raise is not documented.
    except Exception as error:
        raise _error(source, f"it cannot be read: {_first_line(error)}") from None
    if split is None:
        raise _error(
            source,
            f"it has no split {name!r}: set source.splits to some of {', '.join(map(str, names))}",
        )
    return split


def _builder(source: HuggingFace) -> "DatasetBuilder":
    from datasets import load_dataset_builder
    from datasets.packaged_modules.cache.cache import Cache
    from datasets.packaged_modules.parquet.parquet import Parquet

    if source.path is not None and not source.path.is_dir():
        raise _error(
            source, "there is no such folder: source.path names one that holds Parquet files"
        )
    try:
        builder = load_dataset_builder(str(_place(source)), source.config, revision=source.revision)
    except Exception as error:
        remedy = "check source.config and the names of its files" if source.path else ABSENT
        raise _error(source, f"it cannot be had ({_first_line(error)}): {remedy}") from None
    # Readers of other formats may run code or unpickle; the cache holds Arrow tables.
    if not isinstance(builder, Parquet | Cache):
        raise _error(
            source, "its files are not in Parquet, the only format that is read: convert them"
        )
    if source.path is None and builder.hash != source.revision:
        raise _error(
            source,
            f"the download that is here is of commit {builder.hash}, not of revision "
            f"{source.revision}: run once with internet, or name that revision",
        )
    return builder


def _tables(split: "Dataset | IterableDataset", source: HuggingFace) -> Iterator["pyarrow.Table"]:
    from datasets import ClassLabel
    from datasets import Image as ImageFeature

    features = split.features or {}
    columns = [*source.columns, source.label]
    for name in (source.image, source.site_column, source.unit_column):
        if name is not None:
            columns.append(name)
    columns = list(dict.fromkeys(columns))
    for name in columns:
        if name not in features:
            raise _error(source, f"it has no column {name!r}: {column_hint(name, features)}")
    label = features[source.label]
    if isinstance(label, ClassLabel) and label.num_classes != source.classes:
        raise _error(
            source,
            f"column {source.label!r} has {label.num_classes} classes, source.classes is "
            f"{source.classes}: correct it",
        )
    split = split.select_columns(columns)
    if source.image is not None:
        if not isinstance(features[source.image], ImageFeature):
            raise _error(
                source,
                f"column {source.image!r} holds no images: give source.features a list of columns",
            )
        split = split.cast_column(source.image, ImageFeature(decode=False))
    try:
        yield from split.with_format("arrow").iter(batch_size=BATCH_ROWS)
    except Exception as error:
        raise _error(source, f"it cannot be read: {_first_line(error)}") from None


def _images(
    column: "pyarrow.ChunkedArray", source: HuggingFace, first: int
) -> list[npt.NDArray[np.uint8]]:
    _, height, width = source.task.input_shape
    images = []
    for row, value in enumerate(column.to_pylist(), start=first + 1):
        # A row may name a file instead, any file of this machine.
        if not value or not value.get("bytes"):
            raise _error(
                source,
                f"the image in row {row} is not inside the Parquet file: give a folder of images "
                "(source.kind 'images') instead",
            )
        try:
            with Image.open(io.BytesIO(value["bytes"])) as image:
                images.append(
                    grey_levels(image, height=height, width=width, channels=source.channels)
                )
        except UNREADABLE as error:
            raise _error(source, f"the image in row {row} cannot be read: {error}") from None
    return images


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0][:300] if lines else type(error).__name__[:300]

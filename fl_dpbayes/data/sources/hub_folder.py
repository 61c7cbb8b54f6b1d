"""A public data set that lies in the data folder as the Hugging Face hub's Parquet files.

The modules `cifar10`, `sun397` and `food101` say which files and columns.
"""

from pathlib import Path

from fl_dpbayes.config import (
    VARIABLE,
    BuiltIn,
    HuggingFace,
    OfficialPart,
    SplitNames,
    known_folder,
)
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.sources import huggingface
from fl_dpbayes.errors import UserError


def load_photographs(
    source: BuiltIn, part: OfficialPart, *, name: str, column: str, splits: SplitNames
) -> Records:
    """Load one split, resized (bilinear, anti-aliased), grey levels not yet scaled.

    No checksum is known, so nobody checks that the files are the published ones.

    Args:
        source: The data set; its folder is the data folder.
        part: The official part.
        name: The data set's name at the hub.
        column: The column of photographs; that of labels is `label`.
        splits: The hub's split of each official part.

    Returns:
        One record and unit per row, in the split's order.

    Raises:
        UserError: If the files are missing or hold something else.
    """
    _, height, width = source.task.input_shape
    photographs = HuggingFace(
        path=_folder(source, name),
        features=column,
        label="label",
        height=height,
        width=width,
        channels=3,
        splits=splits,
        **source.task.outcome.source_keys,
    )
    return huggingface.load(photographs, part)


def _folder(source: BuiltIn, name: str) -> Path:
    data_folder = known_folder(source.folder)
    files = f"the Parquet files of the Hugging Face hub's data set {name}"
    if data_folder is None:
        raise UserError(
            f"no data folder is known: put {files} into the folder {source.kind} of one, and give "
            f"it by --data-dir or {VARIABLE} (Python: data_dir)"
        )
    folder = data_folder / source.kind
    if not any(folder.glob("**/*.parquet")):
        raise UserError(
            f"{folder} holds no Parquet file: put {files} there, or give another data folder by "
            f"--data-dir or {VARIABLE} (Python: data_dir)"
        )
    return folder

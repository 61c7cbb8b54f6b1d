"""The work behind `fl-dpbayes data fetch`: public data sets that this package does not ship."""

import gzip
import os
import urllib.request
import zlib
from collections.abc import Collection
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.error import HTTPError

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from fl_dpbayes.config import VARIABLE, BuiltIn, known_folder
from fl_dpbayes.data import load_unscaled
from fl_dpbayes.errors import UserError

CHUNK_BYTES = 2**20
TIMEOUT_SECONDS = 60.0
SHIPPED = {
    "digits": "1,797 handwritten digits of 8x8 pixels; comes with scikit-learn",
    "stroke": "19,285 patients with acute stroke at 464 hospitals; comes with this package",
}


class DataSet(NamedTuple):
    """A public data set.

    Attributes:
        description: What it is, and whose.
        licence: Its licence.
        files: File in the data folder -> the address to fetch it from.
        most_bytes: How large a file may be, unpacked.
    """

    description: str
    licence: str
    files: dict[str, str]
    most_bytes: int


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_MNIST_PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
_PNEUMONIA = "https://zenodo.org/records/10519652/files/pneumoniamnist.npz?download=1"
_HEART = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"
_HEART_PARTS = ("cleveland", "hungarian", "switzerland", "va")
SETS = {
    "mnist": DataSet(
        description="70,000 handwritten digits of 28x28 pixels (LeCun et al. 1998)",
        licence="CC BY-SA 3.0",
        files={f"MNIST/raw/{part}-ubyte": f"{_MNIST}{part}-ubyte.gz" for part in _MNIST_PARTS},
        most_bytes=2**26,
    ),
    "pneumonia": DataSet(
        description=(
            "5,856 chest radiographs of children, 28x28 pixels (Kermany et al. 2018; MedMNIST "
            "v2, Yang et al. 2023)"
        ),
        licence="CC BY 4.0",
        files={"pneumoniamnist.npz": _PNEUMONIA},
        most_bytes=2**24,
    ),
    "heart": DataSet(
        description="740 patients of four hospitals, heart disease (Detrano et al. 1989, UCI)",
        licence="CC BY 4.0",
        files={
            f"heart-disease/processed.{part}.data": f"{_HEART}processed.{part}.data"
            for part in _HEART_PARTS
        },
        most_bytes=2**20,
    ),
}


def fetch_data(name: str, data_dir: Path | None, console: Console) -> None:
    """Fetch what is missing of a data set into the data folder, all of it or nothing.

    Nothing is overwritten, and the records are compared with the checksums of the published ones
    before a file gets its name.

    Args:
        name: A key of `SETS`.
        data_dir: The data folder; None: the default one.
        console: Where the licence and the progress are shown.

    Raises:
        UserError: If there is no such data set or folder, a file cannot be had, or is another one.
    """
    if name not in SETS:
        reason = f"no data set {name!r}"
        if name in SHIPPED:
            reason = f"{name} is there already: {SHIPPED[name]}"
        raise UserError(f"{reason}; choose one of {', '.join(SETS)}")
    folder = known_folder(data_dir)
    if folder is None:
        raise UserError(f"no data folder is known: give --data-dir DIR, or set {VARIABLE}")
    data_set = SETS[name]
    console.print(
        f"{name}: {data_set.description}. Licence: {data_set.licence}.",
        markup=False,
        highlight=False,
    )
    # A link that leads nowhere is a file of the user's as well.
    missing = [path for path in data_set.files if not os.path.lexists(folder / path)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".fetch-", dir=folder) as staging_folder:
            staging = Path(staging_folder)
            _stage(data_set, missing, folder, staging, console)
            _check_published(name, folder, staging)
            for path in missing:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (staging / path).rename(folder / path)
    except OSError as error:
        raise UserError(
            f"--data-dir {folder} cannot be written to: {error.strerror or error}"
        ) from None
    outcome = f"all files are in {folder} already"
    if missing:
        outcome = f"{len(missing)} files fetched to {folder}"
    console.print(
        f"{outcome}; their records are the published ones",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )


def _stage(
    data_set: DataSet, missing: Collection[str], folder: Path, staging: Path, console: Console
) -> None:
    """Put all files of a data set into a folder: links to those that are there, and the others."""
    for path, address in data_set.files.items():
        staged = staging / path
        staged.parent.mkdir(parents=True, exist_ok=True)
        if path in missing:
            _download(address, staged, data_set.most_bytes, console)
        else:
            staged.symlink_to((folder / path).resolve())


def _check_published(name: str, folder: Path, staging: Path) -> None:
    """Check that the staged records are the published ones."""
    source = BuiltIn(kind=name, folder=staging)  # type: ignore[arg-type]
    try:
        for part in source.parts:
            load_unscaled(source, part)
    except UserError as error:
        reason = str(error).replace(str(staging), str(folder))
        raise UserError(f"{reason}; nothing was kept of what was fetched") from None


def _download(address: str, path: Path, most_bytes: int, console: Console) -> None:
    """Write what an address holds, unpacked where it ends in `.gz`."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    try:
        with (
            urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as answer,
            Progress(*columns, console=console) as bar,
        ):
            size = int(answer.headers.get("Content-Length") or 0)
            with (
                bar.wrap_file(answer, size, description=path.name) as packed,
                path.open("xb") as file,
            ):
                content = gzip.GzipFile(fileobj=packed) if address.endswith(".gz") else packed
                while chunk := content.read(CHUNK_BYTES):
                    file.write(chunk)
                    if file.tell() > most_bytes:
                        raise ValueError(f"it holds more than {most_bytes >> 20} MiB")
    except (OSError, EOFError, ValueError, HTTPException, zlib.error) as error:
        # An HTTPError is an open connection as well.
        if isinstance(error, HTTPError):
            error.close()
        raise UserError(f"{address} cannot be had ({error}): try later; nothing was kept") from None

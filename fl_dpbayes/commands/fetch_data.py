"""The work behind `fl-dpbayes data fetch`: the public data sets that this package reads and does not ship."""

import gzip
import os
import urllib.request
import zlib
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from fl_dpbayes.config import VARIABLE, BuiltIn, known_folder
from fl_dpbayes.data import load_unscaled
from fl_dpbayes.errors import UserError

CHUNK, SECONDS = 2**20, 60.0
SHIPPED = {
    "digits": "1,797 handwritten digits of 8x8 pixels; comes with scikit-learn",
    "stroke": "19,285 patients with acute stroke at 464 hospitals; comes with this package",
}


class DataSet(NamedTuple):
    """A public data set: what it is, its licence, file in the data folder -> address, bytes that a file may have."""

    what: str
    licence: str
    files: dict[str, str]
    most: int


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_HEART = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"
SETS = {
    "mnist": DataSet(
        "70,000 handwritten digits of 28x28 pixels (LeCun et al. 1998)",
        "CC BY-SA 3.0",
        {
            f"MNIST/raw/{part}-ubyte": f"{_MNIST}{part}-ubyte.gz"
            for part in (
                "train-images-idx3",
                "train-labels-idx1",
                "t10k-images-idx3",
                "t10k-labels-idx1",
            )
        },
        2**26,
    ),
    "pneumonia": DataSet(
        "5,856 chest radiographs of children, 28x28 pixels (Kermany et al. 2018; MedMNIST "
        "v2, Yang et al. 2023)",
        "CC BY 4.0",
        {
            "pneumoniamnist.npz": "https://zenodo.org/records/10519652/files/pneumoniamnist.npz?download=1"
        },
        2**24,
    ),
    "heart": DataSet(
        "740 patients of four hospitals, heart disease (Detrano et al. 1989, UCI)",
        "CC BY 4.0",
        {
            f"heart-disease/processed.{name}.data": f"{_HEART}processed.{name}.data"
            for name in ("cleveland", "hungarian", "switzerland", "va")
        },
        2**20,
    ),
}


def fetch_data(name: str, data_dir: Path | None, console: Console) -> None:
    """Fetch what is missing of a data set into the data folder, all of it or nothing, and overwrite nothing.

    The records are compared with the checksums of the published ones before a file gets its name.
    Raises UserError if there is no such data set or folder, a file cannot be had, or is another
    one.
    """
    if name not in SETS:
        shipped = (
            f"{name} is there already: {SHIPPED[name]}"
            if name in SHIPPED
            else f"no data set {name!r}"
        )
        raise UserError(f"{shipped}; choose one of {', '.join(SETS)}")
    if (folder := known_folder(data_dir)) is None:
        raise UserError(f"no data folder is known: give --data-dir DIR, or set {VARIABLE}")
    found = SETS[name]
    console.print(f"{name}: {found.what}. Licence: {found.licence}.", markup=False, highlight=False)
    missing = {
        path: address for path, address in found.files.items() if not os.path.lexists(folder / path)
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".fetch-", dir=folder) as home:
            for path in found.files:
                (staged := Path(home, path)).parent.mkdir(parents=True, exist_ok=True)
                if path in missing:
                    _download(missing[path], staged, found.most, console)
                else:
                    staged.symlink_to((folder / path).resolve())
            source = BuiltIn(kind=name, folder=Path(home))  # type: ignore[arg-type]
            try:
                for part in source.parts:
                    load_unscaled(source, part)
            except UserError as error:
                said = str(error).replace(home, str(folder))
                raise UserError(f"{said}; nothing was kept of what was fetched") from None
            for path in missing:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                Path(home, path).rename(folder / path)
    except OSError as error:
        raise UserError(
            f"--data-dir {folder} cannot be written to: {error.strerror or error}"
        ) from None
    done = (
        f"{len(missing)} files fetched to {folder}"
        if missing
        else f"all files are in {folder} already"
    )
    console.print(
        f"{done}; their records are the published ones",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )


def _download(address: str, path: Path, most: int, console: Console) -> None:
    """Write what an address holds, unpacked where it ends in `.gz`, at most `most` bytes."""
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn()
    try:
        with (
            urllib.request.urlopen(address, timeout=SECONDS) as answer,
            Progress(*columns, console=console) as bar,
        ):
            total = int(answer.headers.get("Content-Length") or 0)
            with (
                bar.wrap_file(answer, total, description=path.name) as read,
                path.open("xb") as file,
            ):
                unpacked = gzip.GzipFile(fileobj=read) if address.endswith(".gz") else read
                while chunk := unpacked.read(CHUNK):
                    file.write(chunk)
                    if file.tell() > most:
                        raise ValueError(f"it holds more than {most >> 20} MiB")
    except (OSError, EOFError, ValueError, HTTPException, zlib.error) as error:
        # An answer that is an error is an open connection as well.
        getattr(error, "close", lambda: None)()
        raise UserError(f"{address} cannot be had ({error}): try later; nothing was kept") from None

"""The data sets of the papers' tables, as the project's loaders give them."""

from pathlib import Path

from fl_dpbayes.config.sources import BuiltIn
from fl_dpbayes.data.load import load_unscaled
from fl_dpbayes.data.records import Records


def mnist_records(data_dir: Path | None) -> tuple[Records, Records]:
    """Load MNIST's official training and test records, pixels in [0, 1].

    Args:
        data_dir: the data folder.

    Returns:
        60,000 and 10,000 records.

    Raises:
        UserError: if the folder is not given or a file is missing or damaged.
    """
    source = BuiltIn(kind="mnist", folder=data_dir)
    return load_unscaled(source, "train").scaled(), load_unscaled(source, "test").scaled()


def pneumonia_records(data_dir: Path | None) -> tuple[Records, Records, Records]:
    """Load PneumoniaMNIST's official training, validation and test records, pixels in [0, 1].

    Args:
        data_dir: the data folder.

    Returns:
        4,708, 524 and 624 records.

    Raises:
        UserError: if the folder is not given or a file is missing or damaged.
    """
    source = BuiltIn(kind="pneumonia", folder=data_dir)
    train, validation, test = (load_unscaled(source, part).scaled() for part in ("train", "validation", "test"))
    return train, validation, test

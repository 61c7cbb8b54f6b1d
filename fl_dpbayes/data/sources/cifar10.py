"""CIFAR-10: 60,000 photographs of 32x32 pixels in 10 classes."""

from fl_dpbayes.config import BuiltIn, OfficialPart, SplitNames
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.sources.hub_folder import load_photographs

SPLITS: SplitNames = {"train": "train", "test": "test"}


def load(source: BuiltIn, part: OfficialPart) -> Records:
    """Load an official part of CIFAR-10, grey levels not yet scaled.

    Args:
        source: CIFAR-10; its folder is the data folder.
        part: One that `SPLITS` names.

    Raises:
        UserError: If its files are missing or hold something else.

    Source:
        Krizhevsky, Learning multiple layers of features from tiny images, 2009.
    """
    return load_photographs(source, part, name="uoft-cs/cifar10", column="img", splits=SPLITS)

"""SUN397: 108,754 photographs of scenes in 397 classes, of which the hub has 70 % to train."""

from fl_dpbayes.config import BuiltIn, OfficialPart, SplitNames
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.sources.hub_folder import load_photographs

SPLITS: SplitNames = {"train": "train", "test": "test"}


def load(source: BuiltIn, part: OfficialPart) -> Records:
    """Load an official part of SUN397, grey levels not yet scaled.

    Args:
        source: SUN397; its folder is the data folder.
        part: One that `SPLITS` names.

    Raises:
        UserError: If its files are missing or hold something else.

    Source:
        Xiao et al., SUN database, CVPR 2010.
    """
    return load_photographs(
        source, part, name="dpdl-benchmark/sun397", column="image", splits=SPLITS
    )

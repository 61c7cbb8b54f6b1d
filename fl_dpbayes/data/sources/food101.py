"""Food-101: 101,000 photographs of dishes in 101 classes."""

from fl_dpbayes.config import BuiltIn, OfficialPart, SplitNames
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.sources.hub_folder import load_photographs

SPLITS: SplitNames = {"train": "train", "test": "validation"}


def load(source: BuiltIn, part: OfficialPart) -> Records:
    """Load an official part of Food-101, grey levels not yet scaled.

    Args:
        source: Food-101; its folder is the data folder.
        part: One that `SPLITS` names.

    Raises:
        UserError: If its files are missing or hold something else.

    Source:
        Bossard et al., Food-101, ECCV 2014.
    """
    return load_photographs(source, part, name="ethz/food101", column="image", splits=SPLITS)

"""What a site says of its passes over records: how many records each holds, and what computed them.

It depends on the model, the plan and the machine: the check that decides it reads made-up rows
alone.
"""

from typing import Annotated, Literal

from pydantic import Field

from fl_dpbayes.config import OutsideText
from fl_dpbayes.files import Config

MOST_ROWS = 2**20
MOST_PASSES = 8
# Slower than this is said as this.
MOST_SLOWER = 1e6
RowCount = Annotated[int, Field(ge=1, le=MOST_ROWS)]


class StatedPass(Config):
    """Passes of one kind.

    Attributes:
        computation: What they compute.
        wanted: How many records one was wanted to hold.
        rows: How many it holds.
        products: The way of its matrix products.
        slower: How many times as long a record takes as in a plain pass of `wanted` records,
            measured on made-up rows.
    """

    computation: Literal["gradients", "predictions", "features"]
    wanted: RowCount
    rows: RowCount
    products: Literal["plain", "aligned", "separate"]
    slower: Annotated[float, Field(ge=1, le=MOST_SLOWER)]


class StatedPasses(Config):
    """All passes of one answer.

    `reproducible` names the branch of MKL's conditional reproducibility in force.
    """

    processor: OutsideText
    library: OutsideText
    reproducible: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{1,20}$")]
    passes: Annotated[tuple[StatedPass, ...], Field(min_length=1, max_length=MOST_PASSES)]

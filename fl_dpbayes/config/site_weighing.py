"""How a rule may weigh sites: by their declared sizes or all alike, and never one of them above a share."""

from typing import Annotated, Literal

from pydantic import Field

SiteWeights = Literal["units", "uniform"]
LargestShare = Annotated[float, Field(gt=0, le=1)] | None


def cannot_be_kept(share: float, sites: int) -> bool:
    """Say whether some of `sites` weights, which sum to 1, must be above a largest share."""
    return share * sites < 1 - 1e-12

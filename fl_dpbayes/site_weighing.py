"""How a rule may weigh sites: by their declared sizes or all alike, and never one of them above a share."""

from typing import Annotated, Literal

from pydantic import Field

SiteWeights = Literal["units", "uniform"]
LargestShare = Annotated[float, Field(gt=0, le=1)] | None

"""What a site says of itself: public constants that it declares, nothing counted from its records."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fl_dpbayes.protocol.outside_text import OutsideText
from fl_dpbayes.protocol.prevalence import SitePrevalence
from fl_dpbayes.protocol.record import Record
from fl_dpbayes.protocol.task import Task

Role = Literal["train", "held_out", "shifted"]
# More than all patients there are: beyond it a size is a mistake or a claim to all the weight.
MAX_UNITS = 10_000_000_000
SiteName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
EvaluationRelease = Literal["public", "noised", "none"]


class Card(Record):
    """Answer to a query: who the site is, its role, its declared size and what it lets out.

    `prevalence`: the declared shares of its classes; `estimated` says that the site estimates them and keeps them.
    """

    protocol: Literal[1] = 1
    name: SiteName
    role: Role
    task: Task
    units: Annotated[int, Field(ge=0, le=MAX_UNITS)]
    unit: OutsideText
    shift: OutsideText = ""
    evaluation_release: EvaluationRelease
    prevalence: SitePrevalence | None = None
    seeded: bool

    @model_validator(mode="after")
    def _trains_on_something(self) -> "Card":
        if self.role == "train" and not self.units:
            raise ValueError(f"units is 0 at {self.name}: a site that trains declares 1 or more")
        return self

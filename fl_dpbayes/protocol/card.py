"""What a site says of itself: public constants, nothing counted from its records."""

from typing import Annotated, Literal

from pydantic import Field

from fl_dpbayes.config import (
    EvaluationRelease,
    InstalledCode,
    OutsideText,
    RecordSchema,
    Role,
    SiteName,
    SitePrevalence,
    Task,
)
from fl_dpbayes.files import Message

# More than all patients there are: beyond it a size is a mistake or a claim to all the weight.
MAX_UNITS = 10_000_000_000


class SiteCard(Message):
    """Answer to a query: who the site is, its role, its declared size and what it lets out.

    Attributes:
        data_schema: What its records have in common with those of the other sites.
        prevalence: The declared shares of its classes; `estimated` says that the site estimates
            them and keeps them.
        seeded: Whether its noise follows from a seed, which is not private.
        code: What is installed here of the code that its policy allows.
    """

    protocol: Literal[1] = 1
    name: SiteName
    role: Role
    task: Task
    data_schema: RecordSchema
    units: Annotated[int, Field(ge=0, le=MAX_UNITS)]
    unit: OutsideText
    shift: OutsideText = ""
    evaluation_release: EvaluationRelease
    prevalence: SitePrevalence | None = None
    seeded: bool
    code: Annotated[tuple[InstalledCode, ...], Field(max_length=100)] = ()

    def _check_keys(self) -> None:
        if self.role == "train" and not self.units:
            raise ValueError(f"units is 0 at {self.name}: a site that trains declares 1 or more")

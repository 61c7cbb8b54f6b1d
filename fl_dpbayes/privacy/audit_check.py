"""One check of an audit: what was found, and what is allowed."""

from dataclasses import dataclass
from typing import Literal

Detector = Literal["canaries", "coupled neighbours", "noise"]


@dataclass(frozen=True)
class Check:
    """One finding of a detector.

    Attributes:
        detector: which of the three detectors it belongs to.
        what: what was checked, in words.
        value: what was found.
        limit: what is allowed.
        relation: whether the value must be at most or at least the limit.
        where: what the value was found on, where it is the worst of several.
    """

    detector: Detector
    what: str
    value: float
    limit: float
    relation: Literal["at most", "at least"]
    where: str = ""

    @property
    def passed(self) -> bool:
        """Whether the value is allowed; a value that is not a number never is."""
        return self.value <= self.limit if self.relation == "at most" else self.value >= self.limit

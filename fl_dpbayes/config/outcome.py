"""What is written of an outcome, and what follows from that without a record or a model.

All of it is public. What is computed of an outcome (loss, prediction, sums) is the module of its
kind in `fl_dpbayes.outcomes`.
"""

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fl_dpbayes.files import Config

Targets = npt.NDArray[np.int64] | npt.NDArray[np.float32]


class OutcomeConfig(Config):
    """What every outcome says of itself.

    Attributes:
        kind: The module of `fl_dpbayes.outcomes` that computes it.
        target_type: What targets are stored as; floating types are float32.
    """

    kind: str
    target_type: ClassVar[type[np.generic]]

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many numbers a model returns for a record."""

    @property
    @abstractmethod
    def allowed(self) -> str:
        """What a target may be, in the plural, for errors."""

    @property
    def description(self) -> str:
        """The outcome in words, after "records of ... and"."""
        return self.kind

    @property
    def is_event(self) -> bool:
        """Whether it happens or not, so that the prediction is a risk."""
        return False

    @abstractmethod
    def holds(self, targets: npt.NDArray) -> npt.NDArray[np.bool_]:
        """Say of each target whether it is allowed.

        Args:
            targets: As a file holds them, shape (N,); NaN where there is none.

        Returns:
            Shape (N,); False for what is no number.
        """

    @abstractmethod
    def made_up(self, generator: np.random.Generator, count: int) -> Targets:
        """Draw targets for records that nobody has.

        Args:
            generator: Draws them.
            count: How many, 0 or more.

        Returns:
            Allowed targets, shape (count,).
        """


class Classification(OutcomeConfig):
    """One of several classes, which records number from 0."""

    kind: Literal["classification"] = "classification"
    classes: Annotated[int, Field(ge=2, le=1000)]

    target_type: ClassVar[type[np.generic]] = np.int64

    @property
    def outputs(self) -> int:
        """A logit for each class."""
        return self.classes

    @property
    def allowed(self) -> str:
        """What a label may be."""
        return f"whole numbers from 0 to {self.classes - 1}"

    @property
    def description(self) -> str:
        """How many classes there are."""
        return f"{self.classes} classes"

    @property
    def is_event(self) -> bool:
        """Of two classes the second one is an event."""
        return self.classes == 2

    def holds(self, targets: npt.NDArray) -> npt.NDArray[np.bool_]:
        """Say of each label whether it is the number of a class."""
        return np.isin(targets, np.arange(self.classes))

    def made_up(self, generator: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        """Draw labels, each class equally often."""
        return generator.integers(0, self.classes, count)


# Of several kinds: `Annotated[A | B, Field(discriminator="kind")]`.
AnyOutcome = Classification

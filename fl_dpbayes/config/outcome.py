"""What is written of an outcome, and what follows from that without a record or a model.

All of it is public. What is computed of an outcome (loss, prediction, sums) is the module of its
kind in `fl_dpbayes.outcomes`.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fl_dpbayes.errors import UserError
from fl_dpbayes.files import Config

# A column of more values is hardly one of labels.
MOST_CLASSES = 20
Targets = npt.NDArray[np.int64] | npt.NDArray[np.float32]


@dataclass(frozen=True)
class Measures:
    """Which metrics pages and tables show of an outcome, by their keys, and in what words.

    Attributes:
        first: Columns of every table of results; the first one answers for a run.
        further: Further columns of the table of everything.
        drawn: Those of which a figure shows every site.
        note: How cells are to be read.
        performance: What a model card names as measured; empty: the names of `first`.
        predictions: What predictions are called.
    """

    first: tuple[str, ...]
    further: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    note: str = "[95% interval]."
    performance: str = ""
    predictions: str = "predictions"


class OutcomeConfig(Config):
    """What every outcome says of itself.

    Attributes:
        kind: The module of `fl_dpbayes.outcomes` that computes it.
        target_type: What targets are stored as; floating types are float32.
        measures: What pages and tables show of it.
    """

    kind: str
    target_type: ClassVar[type[np.generic]]
    measures: ClassVar[Measures]

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

    @property
    def source_keys(self) -> dict[str, Any]:
        """The keys by which a table or an archive says it.

        Raises:
            UserError: Such sources have none for it.
        """
        raise UserError(f"no table or archive holds {self.kind}: give a source of your own")

    def is_prevalence(self, shares: tuple[float, ...]) -> bool:
        """Say whether shares are those of its classes, one for each."""
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
    measures: ClassVar[Measures] = Measures(
        first=("rms_debiased", "ece", "accuracy", "nll", "auroc"),
        further=(
            "brier",
            "ace",
            "sce",
            "mce",
            "epistemic",
            "aleatoric",
            "ece_10",
            "ece_20",
            "ece_equal_mass",
            "ece_binary",
            "aurc",
            "aurc_excess",
        ),
        drawn=("rms_debiased", "accuracy", "nll"),
        note=(
            "Accuracy in %, calibration errors in percentage points, [95% interval]; in "
            "parentheses the ECE that a perfectly calibrated model would show at that n."
        ),
        performance="calibration (debiased RMS, ECE, intercept, slope), AUROC, NLL and net benefit",
        predictions="risks",
    )

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

    @property
    def source_keys(self) -> dict[str, Any]:
        """How many classes there are."""
        return {"classes": self.classes}

    def is_prevalence(self, shares: tuple[float, ...]) -> bool:
        """Say whether there is a share for each class."""
        return len(shares) == self.classes

    def holds(self, targets: npt.NDArray) -> npt.NDArray[np.bool_]:
        """Say of each label whether it is the number of a class."""
        return np.isin(targets, np.arange(self.classes))

    def made_up(self, generator: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        """Draw labels, each class equally often."""
        return generator.integers(0, self.classes, count)


def class_keys(names: Sequence[str], where: str) -> dict[str, Any]:
    """Return the keys by which a table or an archive says its classes.

    Args:
        names: What its labels are, in the order of the classes.
        where: What an error begins with.

    Returns:
        How many there are, and their names, none where these are the numbers from 0.

    Raises:
        UserError: If there are fewer than 2, or more than MOST_CLASSES.
    """
    count = len(names)
    if not 2 <= count <= MOST_CLASSES:
        raise UserError(
            f"{where}: it has {count} values, a class needs 2 to {MOST_CLASSES}: group them"
        )
    are_numbers = list(names) == [str(number) for number in range(count)]
    return {"classes": count, "class_names": [] if are_numbers else list(names)}


if TYPE_CHECKING:
    # What is asked of any outcome is what all of them have.
    AnyOutcome = OutcomeConfig
else:
    # Of several kinds: `Annotated[A | B, Field(discriminator="kind")]`.
    AnyOutcome = Classification


def as_classification(outcome: AnyOutcome, what: str) -> Classification:
    """Return an outcome as classes, for what is about classes by nature.

    Args:
        outcome: Of the records.
        what: What needs classes, for the error.

    Raises:
        UserError: It is another outcome.
    """
    if not isinstance(outcome, Classification):
        raise UserError(f"{what} is for classification, not for {outcome.kind}: leave it out")
    return outcome

"""How sites answered: one answer, a round as the run's store keeps it, and a site's rounds."""

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Annotated, Any, Generic, Literal, TypedDict, TypeVar, get_args

from pydantic import AfterValidator, NonNegativeFloat, NonNegativeInt, PositiveInt

from fl_dpbayes.config import SiteName, outside_text
from fl_dpbayes.files import Config
from fl_dpbayes.protocol import PrivacyStatement, Refusal, StatedPasses
from fl_dpbayes.report import PrivacyRow, RoundRow
from server.check_reply import CheckedReply

NO_REPLY = "no reply in time"
USED_STATUSES = ("OK", "PARTIAL")
Status = Literal["OK", "PARTIAL", "REFUSED", "FAILED", "REJECTED"]
# The least usual last.
STATUSES: tuple[str, ...] = get_args(Status)
NOT_ASKED = "NOT ASKED"
CheckedT = TypeVar("CheckedT")


@dataclass(frozen=True)
class Answer(Generic[CheckedT]):
    """How one site answered one request, and what the stage made of a reply that is used.

    Attributes:
        site: The site's name.
        status: OK or PARTIAL of a reply that is used, else REFUSED, FAILED or REJECTED.
        detail: The reason of one that is not used, printable.
        refusal: The site's own refusal.
        checked: What the stage made of the reply.
        bytes_up: Size of the reply's arrays.
        passes: What the site says of its passes over records.
    """

    site: str
    status: Status
    detail: str = ""
    refusal: Refusal | None = None
    checked: CheckedT | None = None
    bytes_up: int = 0
    passes: StatedPasses | None = None

    @property
    def usable(self) -> bool:
        """Whether the stage may use what the site sent."""
        return self.status in USED_STATUSES

    @property
    def problem(self) -> str:
        """Why there is nothing of the site after the training, empty if there is something."""
        if self.status in ("REJECTED", "FAILED") and self.detail != NO_REPLY:
            return f"rejected: {self.detail}"
        return self.detail


class StatedCost(TypedDict):
    """What a privacy statement says of epsilon, as records hold it; infinite is `math.inf`."""

    delta: float
    epsilon: float
    epsilon_method: str
    mu: float
    mu_kind: str
    budget: float


def stated_cost(statement: PrivacyStatement) -> StatedCost:
    """Return what a site's privacy statement says of epsilon."""
    return {
        "delta": statement.delta,
        "epsilon": _infinite_if_none(statement.epsilon),
        "epsilon_method": statement.epsilon_method,
        "mu": _infinite_if_none(statement.mu),
        "mu_kind": statement.mu_kind,
        "budget": _infinite_if_none(statement.budget),
    }


def _infinite_if_none(value: float | None) -> float:
    return math.inf if value is None else value


def paid_row(
    site: str,
    status: str,
    purpose: str,
    statement: PrivacyStatement,
    round_number: int | None = None,
    temperature: float | None = None,
) -> PrivacyRow:
    """Return the row of `privacy.csv` of a reply that is used.

    Args:
        site: The site's name.
        status: OK or PARTIAL.
        purpose: What was paid for.
        statement: What the site states of its spending.
        round_number: Of the training.
        temperature: Of the steps of the reply, where they have one.
    """
    multipliers = [multiplier for multiplier, *_ in statement.history]
    return PrivacyRow(
        site=site,
        round=round_number,
        steps=statement.steps,
        adjacency=statement.adjacency,
        noise_multiplier_first=multipliers[0] if multipliers else None,
        noise_multiplier_last=multipliers[-1] if multipliers else None,
        temperature=temperature,
        status=status,
        purpose=purpose,
        **stated_cost(statement),
    )


def _checked_privacy(privacy: dict[str, Any]) -> dict[str, Any]:
    """Check a privacy statement without its history, as a store may be a stranger's."""
    statement = PrivacyStatement.model_validate({**privacy, "history": ()})
    return statement.model_dump(mode="json", exclude={"history"})


def _printable(text: str) -> str:
    return outside_text(text, most=len(text))


class ReplyOutcome(Config):
    """What the store keeps of a reply.

    Attributes:
        samples: Number of its samples.
        temperature: Summed step size, mean temperature weighted by it, least and largest.
        privacy: Its privacy statement without the history.
        kept: First rows of the history that the site's statement before had as well.
        history: The rows after these.
    """

    samples: NonNegativeInt
    temperature: tuple[float, float, float, float]
    privacy: Annotated[dict[str, str | bool | int | float | None], AfterValidator(_checked_privacy)]
    kept: NonNegativeInt
    history: tuple[tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeInt], ...]

    @classmethod
    def of_reply(cls, reply: CheckedReply, previous: PrivacyStatement | None) -> "ReplyOutcome":
        """Return what the store keeps of a reply, after the site's statement before."""
        stretch = reply.stretch
        history = reply.privacy.history
        previous_history = previous.history if previous is not None else ()
        pairs = zip(previous_history, history, strict=False)
        kept = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return cls(
            samples=len(stretch.weights),
            temperature=(stretch.step_weight, stretch.temperature, *stretch.temperature_range),
            privacy=reply.privacy.model_dump(mode="json", exclude={"history"}),
            kept=kept,
            history=history[kept:],
        )

    @property
    def mean_temperature(self) -> float:
        """Mean temperature of the reply's steps, weighted by step size."""
        return self.temperature[1]

    def statement(self, previous: PrivacyStatement | None) -> PrivacyStatement:
        """Return the site's privacy statement, after its statement before."""
        before = previous.history[: self.kept] if previous is not None else ()
        # It was validated when it came, and as it was read from a store.
        return PrivacyStatement.model_construct(
            **{**self.privacy, "history": (*before, *self.history)}  # type: ignore[arg-type]
        )


class SiteOutcome(Config):
    """How one site answered in a round.

    Attributes:
        site: The site's name.
        status: One of `STATUSES`.
        detail: The reason of a reply that is not used.
        bytes_up: Size of the reply's arrays.
        reply: What the store keeps of a reply that is used.
    """

    site: SiteName
    status: Status
    detail: Annotated[str, AfterValidator(_printable)]
    bytes_up: NonNegativeInt
    reply: ReplyOutcome | None

    @classmethod
    def of_answer(
        cls, answer: Answer[CheckedReply], previous: PrivacyStatement | None
    ) -> "SiteOutcome":
        """Return the outcome of an answer, after the site's privacy statement before."""
        reply = None
        if answer.checked is not None:
            reply = ReplyOutcome.of_reply(answer.checked, previous)
        return cls(
            site=answer.site,
            status=answer.status,
            detail=answer.detail,
            bytes_up=answer.bytes_up,
            reply=reply,
        )


class RoundOutcome(Config):
    """How a round went.

    Attributes:
        round: Its number, from 1.
        seconds: How long it took.
        bytes_down: Size of the arrays of all requests.
        outcomes: One of each site that got a request.
    """

    round: PositiveInt
    seconds: NonNegativeFloat
    bytes_down: NonNegativeInt
    outcomes: tuple[SiteOutcome, ...]

    def row(self) -> RoundRow:
        """Return the round's row of `rounds.csv`."""
        statuses = Counter(outcome.status for outcome in self.outcomes)
        replies = [outcome.reply for outcome in self.outcomes if outcome.reply is not None]
        return RoundRow(
            round=self.round,
            seconds=self.seconds,
            sites_asked=len(self.outcomes),
            sites_ok=statuses["OK"],
            sites_partial=statuses["PARTIAL"],
            sites_refused=statuses["REFUSED"],
            sites_failed=statuses["FAILED"],
            sites_rejected=statuses["REJECTED"],
            bytes_up=sum(outcome.bytes_up for outcome in self.outcomes),
            bytes_down=self.bytes_down,
            samples_kept=sum(reply.samples for reply in replies),
        )


class SiteHistory:
    """How a site's rounds went so far, without what its replies said.

    Attributes:
        statuses: Round -> status.
        details: Status -> what came with it when it first came.
        used_replies: Number of replies that were used.
    """

    def __init__(self) -> None:
        self.statuses: dict[int, str] = {}
        self.details: dict[str, str] = {}
        self.used_replies = 0
        self._step_weight = 0.0
        self._weighted_temperature = 0.0
        self._least_temperature = math.inf
        self._largest_temperature = -math.inf

    def add(self, round_number: int, outcome: SiteOutcome) -> None:
        """Add a round."""
        # One text for all sites and rounds.
        status = sys.intern(outcome.status)
        self.statuses[round_number] = status
        self.details.setdefault(status, outcome.detail)
        if outcome.reply is None:
            return
        step_weight, mean, least, largest = outcome.reply.temperature
        self.used_replies += 1
        self._step_weight += step_weight
        self._weighted_temperature += step_weight * mean
        self._least_temperature = min(least, self._least_temperature)
        self._largest_temperature = max(largest, self._largest_temperature)

    def mean_temperature(self) -> float | None:
        """Return the mean temperature of all steps, weighted by step size; None without a step."""
        return self._weighted_temperature / self._step_weight if self._step_weight > 0 else None

    def temperature_range(self) -> tuple[float, float] | None:
        """Return the least and the largest temperature of all steps; None without a step."""
        if self._step_weight > 0:
            return self._least_temperature, self._largest_temperature
        return None

    def describe(self) -> str:
        """Say how the last round went, and how many did not go well before it if it did.

        Of these it names the least usual status.
        """
        if not self.statuses:
            return NOT_ASKED
        last = self.statuses[max(self.statuses)]
        if last not in USED_STATUSES:
            return f"{last} {self.details[last]}".strip()
        unused = [status for status in self.statuses.values() if status not in USED_STATUSES]
        if not unused:
            return "PARTIAL" if "PARTIAL" in self.details else last
        worst = max(unused, key=STATUSES.index)
        text = f"{last}; {len(unused)} of {len(self.statuses)} rounds {worst}"
        return f"{text} {self.details[worst]}".strip()

    def statuses_in(self, rounds: Sequence[int]) -> tuple[str, ...]:
        """Return the status in each of these rounds.

        A site is not asked after its last round, or before it joined.
        """
        return tuple(self.statuses.get(number, NOT_ASKED) for number in rounds)

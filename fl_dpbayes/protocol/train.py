"""The training request and its reply."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from fl_dpbayes.config import Adjacency, Model, OutsideText, Probability, Task, TrainingPlan
from fl_dpbayes.files import Message
from fl_dpbayes.protocol.passes import StatedPasses

RunId = Annotated[str, Field(pattern=r"^[0-9a-f]{16,64}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
NonNegative = Annotated[float, Field(ge=0)]
Rate = Annotated[float, Field(ge=0, le=1)]
StepCount = Annotated[int, Field(ge=0, le=10**12)]
# A number without end would fill a site's log.
RoundNumber = Annotated[int, Field(ge=1, le=1_000_000)]
MAX_SAMPLES_PER_REPLY = 1000
# Kinds of step in a cohort's whole history; where noise changes in every step, as many steps.
MAX_HISTORY = 20_000
# A site's ledger keeps the reply as one value of its database, which SQLite bounds at 10^9 bytes.
MAX_REPLY_BYTES = 512 * 2**20


class StageRequest(Message):
    """What every request says.

    Attributes:
        run: The run's identifier.
        round: The round of the run.
        task: The records' shape and number of classes.
        model: The model.
        ledger_head: The last head of the site's ledger that the server saw.
    """

    run: RunId
    round: RoundNumber
    task: Task
    model: Model
    ledger_head: Digest | None = None


class StageReply(Message):
    """What every reply says.

    Attributes:
        run: The request's.
        round: The request's.
        request: The digest of the request that it answers.
        ledger_head: The head of the site's ledger.
        passes: What the work's passes over records looked like, which depends on no record.
    """

    protocol: Literal[1] = 1
    run: RunId
    round: RoundNumber
    request: Digest
    ledger_head: Digest | None = None
    passes: StatedPasses | None = None


class TrainRequest(StageRequest):
    """One round's share of a planned chain from arrays `start/<name>`.

    Attributes:
        plan: The whole chain's.
        first_step: Of this round, counted over the whole run.
        steps: Of this round.
        start: The digest of the arrays.
        precision: That of all arrays sent back.
    """

    protocol: Literal[3] = 3
    plan: TrainingPlan
    first_step: Annotated[int, Field(ge=0)]
    steps: PositiveInt
    start: Digest
    precision: Literal["float32"] = "float32"

    def _check_keys(self) -> None:
        if self.first_step + self.steps > self.plan.total_steps:
            raise ValueError(
                f"first_step {self.first_step} + steps {self.steps} exceeds "
                f"{self.plan.total_steps} steps"
            )
        end = self.first_step + self.steps
        first_chain = self.first_step // self.plan.chain_steps
        last_chain = (end - 1) // self.plan.chain_steps
        if first_chain != last_chain:
            raise ValueError(
                f"first_step {self.first_step} + steps {self.steps} crosses from one "
                "chain to the next"
            )
        samples = self.plan.kept_before(end) - self.plan.kept_before(self.first_step)
        if samples > MAX_SAMPLES_PER_REPLY:
            raise ValueError(
                f"{self.steps} steps keep {samples} samples, a reply holds at most "
                f"{MAX_SAMPLES_PER_REPLY}: raise thinning"
            )


def reply_bytes(plan: TrainingPlan, first_step: int, steps: int, parameters: int) -> int:
    """Count the bytes of a reply's arrays: the samples that its steps keep, and the last state.

    Args:
        plan: The whole chain's.
        first_step: Of the reply, counted over the whole run.
        steps: Of the reply.
        parameters: The number of the model's parameters.
    """
    samples = plan.kept_before(first_step + steps) - plan.kept_before(first_step)
    return 4 * parameters * (samples + len(plan.sampler.state_vectors))


# By the privacy-loss distribution of one fixed schedule, or by the filter that counts across runs.
EpsilonMethod = Literal["pld", "rdp filter", "gdp filter"]


class PrivacyStatement(Message):
    """What a run has cost a cohort so far, as its site accounts for it.

    `epsilon`, `mu` and `budget` are null where they are infinite. `history` lists
    `[noise_multiplier, sampling_rate, steps]`, neighbours of equal noise and rate joined.
    """

    cohort: OutsideText
    unit: OutsideText
    units: PositiveInt
    adjacency: Adjacency
    delta: Probability
    epsilon: NonNegative | None
    epsilon_method: EpsilonMethod
    mu: NonNegative | None
    mu_kind: Literal["exact", "clt"]
    steps: StepCount
    budget: PositiveFloat | None
    history: Annotated[
        tuple[tuple[NonNegative, Rate, StepCount], ...], Field(max_length=MAX_HISTORY)
    ]
    seeded: bool


class StepsReply(StageReply):
    """What a reply says of its steps and their cost.

    PARTIAL: only a prefix of the steps fitted the budget.
    """

    status: Literal["OK", "PARTIAL"]
    first_step: Annotated[int, Field(ge=0)]
    steps: PositiveInt
    privacy: PrivacyStatement
    ledger_head: Digest


class TrainReply(StepsReply):
    """What a site releases of one round of its chain.

    Arrays are the kept samples `samples/<name>` of shape (M, ...) and the last state `last/<name>`.
    Which steps they come from, their weights and temperatures follow from the plan, so they are not
    stated.
    """

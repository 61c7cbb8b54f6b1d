"""A site's side of a message: reading a request, building a reply, and the code of a failure."""

import logging
from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fl_dpbayes.config import NotInstalledError, outside_text
from fl_dpbayes.data import DataChangedError, DataUncheckedError
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import AuditLogError, Config
from fl_dpbayes.models import RowsDependError, Shapes
from fl_dpbayes.privacy import CohortChangedError, LedgerPlaceError
from fl_dpbayes.privacy.ledger.ledger import LedgerError
from fl_dpbayes.protocol import (
    Arrays,
    MessageT,
    PredictorName,
    Refusal,
    RefusalCode,
    TrainRequest,
    Weights,
    arrays_digest,
    prefixed,
    read_header,
    read_sent_arrays,
    without_prefix,
    write_header,
)
from fl_dpbayes.samplers import ChainDivergedError

# What the server learns of an error, by its type, the first that fits; of any other it learns
# INTERNAL.
CODES = {
    NotInstalledError: RefusalCode.INSTALLATION_BROKEN,
    LedgerError: RefusalCode.LEDGER_ERROR,
    ChainDivergedError: RefusalCode.DIVERGED,
    RowsDependError: RefusalCode.NOT_REPEATABLE,
    CohortChangedError: RefusalCode.COHORT_CHANGED,
    LedgerPlaceError: RefusalCode.LEDGER_ERROR,
    DataChangedError: RefusalCode.DATA_CHANGED,
    DataUncheckedError: RefusalCode.DATA_UNCHECKED,
    UserError: RefusalCode.DATA_INVALID,
    AuditLogError: RefusalCode.AUDIT_LOG_ERROR,
}
logger = logging.getLogger("fl_dpbayes.site")


class RefusedError(Exception):
    """Ends the handling of a message.

    Attributes:
        refusal: A code and the name of a field, which is all that the server learns.
    """

    def __init__(self, code: RefusalCode, field: str = "", detail: str = "") -> None:
        """Refuse by a code and the name of a field; the detail is for the site's own log."""
        self.refusal = Refusal(code=code, field=outside_text(field))
        text = self.refusal.describe()
        super().__init__(f"{text}: {detail}" if detail else text)


class Charge(TypedDict, total=False):
    """What the audit log says of an answer's cost, in the log's own words.

    Attributes:
        evaluation: Number of evaluations so far, where this one was counted.
        part: Part of the site's records that paid.
        steps: Steps that were paid for; 0 of a reply that was sent again.
        epsilon_so_far: What the part has spent by then; None is infinite.
    """

    evaluation: int
    part: str
    steps: int
    epsilon_so_far: float | None


class ChargedError(Exception):
    """Work that failed after its steps were paid for.

    Attributes:
        charge: What the audit log says of the cost.
        failure: What happened.
    """

    def __init__(self, charge: Charge, failure: Exception) -> None:
        super().__init__("work failed that was paid for")
        self.charge = charge
        self.failure = failure


def refusal_of(error: BaseException, noted: dict[str, Any]) -> Refusal:
    """Return what the server learns of a failure; its details go to the site's own log.

    Args:
        error: What went wrong.
        noted: What the audit log says of the message; gets a charge, if there is one.
    """
    if isinstance(error, ChargedError):
        noted["charge"] = error.charge
        error = error.failure
    if isinstance(error, RefusedError):
        logger.info("refused: %s", error)
        return error.refusal
    for error_type, code in CODES.items():
        if isinstance(error, error_type):
            logger.error("%s%s", "ledger: " if error_type is LedgerError else "", error)
            return Refusal(code=code)
    logger.error("a handler failed", exc_info=error)
    if isinstance(error, ImportError):
        return Refusal(code=RefusalCode.INSTALLATION_BROKEN)
    return Refusal(code=RefusalCode.INTERNAL)


def read_request(message: Message, request_type: type[MessageT]) -> MessageT:
    """Read and validate the header of a request.

    Raises:
        RefusedError: BAD_REQUEST with the first bad field.
    """
    config = message.content.config_records.get("config", ConfigRecord())
    try:
        return read_header(request_type, config.get("record"))
    except ValueError as error:
        field = str(error).split(":", maxsplit=1)[0]
        raise RefusedError(RefusalCode.BAD_REQUEST, field) from None


def _read_arrays(
    message: Message, shapes: dict[str, tuple[int, ...]]
) -> dict[str, npt.NDArray[np.float32]]:
    """Decode exactly the float32 arrays of these names and shapes, or raise RefusedError."""
    record = message.content.array_records.get("arrays", ArrayRecord())
    expected = {name: (shape, np.dtype(np.float32)) for name, shape in shapes.items()}
    try:
        return read_sent_arrays(record, expected)
    except ValueError:
        raise RefusedError(RefusalCode.BAD_REQUEST, "arrays") from None


def read_start(request: TrainRequest, message: Message, shapes: Shapes) -> Arrays:
    """Read a training request's start state.

    Args:
        request: The request's header.
        message: The request.
        shapes: Shapes of the model's parameters, by name.

    Returns:
        The state, `<vector>/<name>`.

    Raises:
        RefusedError: BAD_REQUEST with the bad field.
    """
    arrays = _read_arrays(message, prefixed("start", request.plan.sampler.state_shapes(shapes)))
    start = without_prefix("start", arrays)
    if arrays_digest(start) != request.start:
        raise RefusedError(RefusalCode.BAD_REQUEST, "start")
    return start


def read_predictors(
    message: Message,
    shapes: Shapes,
    predictors: Mapping[PredictorName, Weights],
    digest: str,
) -> Arrays:
    """Read all posterior samples `<predictor>/<name>`, (M, *shape).

    Args:
        message: The request that carries them.
        shapes: Shapes of the model's parameters, by name.
        predictors: Weights of the M samples of each predictor.
        digest: Digest of the arrays, as the request's header states it.

    Raises:
        RefusedError: BAD_REQUEST if names, shapes or digest differ.
    """
    expected: dict[str, tuple[int, ...]] = {}
    for predictor, weights in predictors.items():
        samples = {name: (len(weights), *shape) for name, shape in shapes.items()}
        expected |= prefixed(predictor, samples)
    arrays = _read_arrays(message, expected)
    if arrays_digest(arrays) != digest:
        raise RefusedError(RefusalCode.BAD_REQUEST, "arrays")
    return arrays


def reply_message(request: Message, reply: Config, arrays: dict[str, npt.NDArray]) -> Message:
    """Build the message that carries a reply and its arrays."""
    content = RecordDict({"config": ConfigRecord({"record": write_header(reply)})})
    if arrays:
        content["arrays"] = ArrayRecord(
            {name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()}
        )
    return Message(content, reply_to=request)

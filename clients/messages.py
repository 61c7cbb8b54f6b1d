"""A site's side of a message: requests in, and out a reply or a refusal with a fixed code, whatever went wrong.

Flower sends the text of an exception to the server, and that text may quote a record. So no exception leaves here.
"""

import logging
from collections.abc import Callable, Mapping
from functools import wraps

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fl_dpbayes.config.base import Config
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.names import outside_text
from fl_dpbayes.config.task import Model, Task
from fl_dpbayes.models.build import model_shapes
from fl_dpbayes.models.parameters import Shapes
from fl_dpbayes.models.rows import RowsDependError
from fl_dpbayes.privacy.ledger.ledger import LedgerError
from fl_dpbayes.protocol.arrays import Arrays, prefixed, read_sent_arrays, without_prefix
from fl_dpbayes.protocol.evaluate import PredictorName, Weights
from fl_dpbayes.protocol.refusal import Refusal, RefusalCode
from fl_dpbayes.protocol.train import TrainRequest
from fl_dpbayes.protocol.wire import MessageT, arrays_digest, read_header, write_header
from fl_dpbayes.samplers.chain import ChainDivergedError

Handler = Callable[[Message, Context], Message]
# What the server learns of an error, by its type; of any other it learns INTERNAL.
CODES = {
    LedgerError: RefusalCode.LEDGER_ERROR,
    ChainDivergedError: RefusalCode.DIVERGED,
    RowsDependError: RefusalCode.NOT_REPEATABLE,
    UserError: RefusalCode.DATA_INVALID,
}
logger = logging.getLogger("fl_dpbayes.site")


class RefusedError(Exception):
    """Ends the handling of a message with a refusal, which is all that the server learns.

    `refusal`: the code and the request's field.
    """

    def __init__(self, code: RefusalCode, field: str = "") -> None:
        self.refusal = Refusal(code=code, field=outside_text(field))
        super().__init__(self.refusal.describe())


def guarded(handler: Handler) -> Handler:
    """Wrap a handler so that every failure becomes a refusal; details go to the site's own log.

    The wrapped handler raises nothing but KeyboardInterrupt.
    """

    @wraps(handler)
    def answer(message: Message, context: Context) -> Message:
        try:
            return handler(message, context)
        except RefusedError as error:
            logger.info("refused: %s", error)
            refusal = error.refusal
        except tuple(CODES) as error:
            logger.error("%s%s", "ledger: " if isinstance(error, LedgerError) else "", error)
            refusal = Refusal(code=next(code for kind, code in CODES.items() if isinstance(error, kind)))
        except (Exception, SystemExit):
            logger.exception("a handler failed")
            refusal = Refusal(code=RefusalCode.INTERNAL)
        return Message(RecordDict({"config": ConfigRecord({"refusal": write_header(refusal)})}), reply_to=message)

    return answer


def read_request(message: Message, kind: type[MessageT]) -> MessageT:
    """Read and validate the header of a request; RefusedError BAD_REQUEST with the first bad field."""
    config = message.content.config_records.get("config", ConfigRecord())
    try:
        return read_header(kind, config.get("record"))
    except ValueError as error:
        raise RefusedError(RefusalCode.BAD_REQUEST, str(error).split(":", maxsplit=1)[0]) from None


def _read_arrays(message: Message, shapes: dict[str, tuple[int, ...]]) -> dict[str, npt.NDArray[np.float32]]:
    """Decode the float32 arrays of a request, exactly those of the given names and shapes.

    Raises RefusedError BAD_REQUEST, before any array of unexpected size is decoded.
    """
    record = message.content.array_records.get("arrays", ArrayRecord())
    try:
        return read_sent_arrays(record, {name: (shape, np.dtype(np.float32)) for name, shape in shapes.items()})
    except ValueError:
        raise RefusedError(RefusalCode.BAD_REQUEST, "arrays") from None


def read_start(request: TrainRequest, message: Message, shapes: Shapes) -> Arrays:
    """Decode and check a training request's arrays `start/<name>`.

    Returns the start state `<vector>/<name>`. Raises RefusedError BAD_REQUEST with the field that does not fit.
    """
    arrays = _read_arrays(message, prefixed("start", request.plan.sampler.state_shapes(shapes)))
    start = without_prefix("start", arrays)
    if arrays_digest(start) != request.start:
        raise RefusedError(RefusalCode.BAD_REQUEST, "start")
    return start


def read_predictors(
    message: Message, model: Model, task: Task, predictors: Mapping[PredictorName, Weights], digest: str
) -> Arrays:
    """Read the posterior samples of all predictors and check them against the request.

    `task`: shape of a record and number of classes. `predictors`: name -> one weight per sample. Returns arrays
    `<predictor>/<name>` of shape (M, *shape). Raises RefusedError BAD_REQUEST if names, shapes or digest differ.
    """
    parameter_shapes = model_shapes(model, task)
    shapes: dict[str, tuple[int, ...]] = {}
    for predictor, weights in predictors.items():
        shapes |= prefixed(predictor, {name: (len(weights), *shape) for name, shape in parameter_shapes.items()})
    arrays = _read_arrays(message, shapes)
    if arrays_digest(arrays) != digest:
        raise RefusedError(RefusalCode.BAD_REQUEST, "arrays")
    return arrays


def reply_message(request: Message, reply: Config, arrays: dict[str, npt.NDArray]) -> Message:
    """Build the message that carries a reply and its arrays."""
    content = RecordDict({"config": ConfigRecord({"record": write_header(reply)})})
    if arrays:
        content["arrays"] = ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()})
    return Message(content, reply_to=request)

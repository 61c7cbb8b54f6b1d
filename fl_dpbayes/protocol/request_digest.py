"""What identifies a request when it is sent again."""

from fl_dpbayes.config.base import digest
from fl_dpbayes.protocol.evaluate import EvaluateRequest
from fl_dpbayes.protocol.recalibrate import RecalibrateRequest
from fl_dpbayes.protocol.train import TrainRequest


def request_digest(request: TrainRequest | RecalibrateRequest | EvaluateRequest) -> str:
    """Return the digest of all of a request but the ledger head that it echoes, which may differ on a resend."""
    return digest(request.model_copy(update={"ledger_head": None}))

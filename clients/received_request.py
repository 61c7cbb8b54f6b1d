"""A request as a handler gets it: read, allowed by the site's policy, and told to the audit log."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from flwr.app import Message

from fl_dpbayes.config import SiteFile
from fl_dpbayes.files import AuditLine
from fl_dpbayes.models import Shapes
from fl_dpbayes.outcomes import Outcome, outcome_of
from fl_dpbayes.protocol import EvaluateRequest, RecalibrateRequest, TrainRequest

Request = TrainRequest | RecalibrateRequest | EvaluateRequest
RequestT = TypeVar("RequestT", bound=Request)


@dataclass(frozen=True)
class ReceivedRequest(Generic[RequestT]):
    """A request that may be worked on, and what every handler needs for that.

    Attributes:
        site_file: The site's own file.
        request: The message's header, validated.
        digest: Digest of the request, by which ledger and reply name it.
        message: The message; its arrays are not read yet.
        shapes: Shapes of the parameters of the request's model, by name.
        audit_line: Line of the audit log that was written for it before any step is paid for; a
            simulated site has no log.
    """

    site_file: SiteFile
    request: RequestT
    digest: str
    message: Message
    shapes: Shapes
    audit_line: AuditLine | None

    @property
    def outcome(self) -> Outcome[Any, Any]:
        """What is computed of the outcome that the request names."""
        return outcome_of(self.request.task.outcome)

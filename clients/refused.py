"""How a handler says no."""

from fl_dpbayes.config.names import outside_text
from fl_dpbayes.protocol.refusal import Refusal, RefusalCode


class RefusedError(Exception):
    """Ends the handling of a message with a refusal, which is all that the server learns.

    Attributes:
        refusal: the code and the request's field.
    """

    def __init__(self, code: RefusalCode, field: str = "") -> None:
        self.refusal = Refusal(code=code, field=outside_text(field))
        super().__init__(self.refusal.describe())

"""The only way out of a site for anything but a reply: a fixed code, whatever went wrong.

Flower sends the text of an exception to the server, and that text may quote a record. So no exception leaves here.
"""

import logging
from collections.abc import Callable
from functools import wraps

from flwr.app import Context, Message

from clients.messages import refusal_message
from clients.refused import RefusedError
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.models.rows import RowsDependError
from fl_dpbayes.privacy.ledger.ledger import LedgerError
from fl_dpbayes.protocol.refusal import Refusal, RefusalCode
from fl_dpbayes.samplers.chain import ChainDivergedError

Handler = Callable[[Message, Context], Message]
logger = logging.getLogger("fl_dpbayes.site")


def guarded(handler: Handler) -> Handler:
    """Wrap a handler so that every failure becomes a refusal with a fixed code; details go to the site's own log.

    Args:
        handler: a ClientApp handler.

    Returns:
        A handler that raises nothing but KeyboardInterrupt.
    """

    @wraps(handler)
    def answer(message: Message, context: Context) -> Message:
        try:
            return handler(message, context)
        except RefusedError as error:
            logger.info("refused: %s", error)
            refusal = error.refusal
        except LedgerError as error:
            logger.error("ledger: %s", error)
            refusal = Refusal(code=RefusalCode.LEDGER_ERROR)
        except ChainDivergedError as error:
            logger.error("%s", error)
            refusal = Refusal(code=RefusalCode.DIVERGED)
        except RowsDependError as error:
            logger.error("%s", error)
            refusal = Refusal(code=RefusalCode.NOT_REPEATABLE)
        except UserError as error:
            logger.error("%s", error)
            refusal = Refusal(code=RefusalCode.DATA_INVALID)
        except (Exception, SystemExit):
            logger.exception("a handler failed")
            refusal = Refusal(code=RefusalCode.INTERNAL)
        return refusal_message(message, refusal)

    return answer

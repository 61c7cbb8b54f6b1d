"""The guard around every handler: whatever went wrong, out comes a reply or a fixed code.

Each message becomes a line of the audit log. Nothing but Flower and Python is imported until a
message has come, so that a broken installation is a code as well.
"""

import json
import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict

Noted = dict[str, Any]
Handler = Callable[[Message, Context, Noted], Message]
logger = logging.getLogger("fl_dpbayes.site")
# For where the records of protocol/refusal.py cannot be imported.
_BARE = '{{"code":"{}","field":""}}'


def guarded(handler: Handler) -> Callable[[Message, Context], Message]:
    """Wrap a handler so that every failure becomes a refusal; details go to the site's own log.

    Where the audit log cannot be written, nothing but a refusal leaves.

    Args:
        handler: Writes what it learns of a message into its last argument, for the audit log of a
            node that has a site file of its own.

    Returns:
        A handler that raises nothing but KeyboardInterrupt.
    """

    @wraps(handler)
    def answer(message: Message, context: Context) -> Message:
        noted: Noted = {
            "message": message.metadata.message_type[:80],
            "flower_run": str(context.run_id),
        }
        try:
            reply = handler(message, context, noted)
            _record(context, noted | {"decision": "answered"})
        except (Exception, SystemExit) as error:
            refusal = _refusal(error, noted)
            try:
                _record(context, noted | {"decision": "refused", "refusal": json.loads(refusal)})
            except (Exception, SystemExit):
                logger.exception("the audit log cannot be written")
            return Message(
                RecordDict({"config": ConfigRecord({"refusal": refusal})}), reply_to=message
            )
        return reply

    return answer


def own_site_file(context: Context) -> str:
    """Return the path of a hospital's site file, which no message can change.

    A simulation's node has none.
    """
    return str(context.node_config.get("site-file") or "")


def _record(context: Context, event: Noted) -> None:
    site_file = own_site_file(context)
    if site_file:
        from fl_dpbayes.files.audit_log import record

        record(site_file, event)


def _refusal(error: BaseException, noted: Noted) -> str:
    try:
        from clients.messages import refusal_of
        from fl_dpbayes.protocol.wire import write_header

        return write_header(refusal_of(error, noted))
    except (Exception, SystemExit):
        logger.exception("a handler failed")
        code = "INSTALLATION_BROKEN" if isinstance(error, ImportError) else "INTERNAL"
        return _BARE.format(code)

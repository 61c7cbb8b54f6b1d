"""Which site file belongs to the node that a message has reached."""

from pathlib import Path

from flwr.app import ConfigRecord, Context, Message

from clients.refused import RefusedError
from fl_dpbayes.config.site_file import SiteFile, read_site_file
from fl_dpbayes.protocol.refusal import RefusalCode


def site_file_of(message: Message, context: Context) -> SiteFile:
    """Read the site file of this node.

    A hospital names its file in the node's own config (`site-file`), which no message can change. A node of Flower's
    simulation has no such key but a partition number; only there does the message say in which folder the virtual
    sites lie.

    Args:
        message: the request.
        context: Flower's context of the node.

    Returns:
        The validated site file.

    Raises:
        RefusedError: SITE_NOT_CONFIGURED if the node has neither.
        UserError: if the file is not valid.
    """
    own = context.node_config.get("site-file")
    if own:
        return read_site_file(Path(str(own)))
    partition = context.node_config.get("partition-id")
    config = message.content.config_records.get("config", ConfigRecord())
    folder = config.get("simulation-folder")
    if partition is None or not isinstance(folder, str) or not folder:
        raise RefusedError(RefusalCode.SITE_NOT_CONFIGURED)
    files = sorted(Path(folder).glob("*.toml"))
    number = int(partition)
    if not 0 <= number < len(files):
        raise RefusedError(RefusalCode.SITE_NOT_CONFIGURED)
    return read_site_file(files[number])

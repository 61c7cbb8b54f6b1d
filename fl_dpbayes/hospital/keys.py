"""Makes a node's own key at the hospital; only its public part goes to the coordinator."""

import os
import secrets
from pathlib import Path

from rich.console import Console

from fl_dpbayes.config import Connection, SiteFile, read_own_site_file
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import write_atomically, written
from fl_dpbayes.hospital.findings import say


def site_connection(site_file: Path) -> tuple[SiteFile, Connection]:
    """Read a hospital's site file and its connection.

    Args:
        site_file: Of the site.

    Returns:
        What the file says, and its connection.

    Raises:
        UserError: If it names no coordinator.
    """
    site = read_own_site_file(site_file)
    if site.connection is None:
        raise UserError(
            f"site file {site_file} names no coordinator: add [connection] with superlink "
            '= "HOST:PORT"'
        )
    return site, site.connection


def make_keys(site_file: Path, console: Console) -> None:
    """Make a node's key pair, and the secret between its two processes; overwrite nothing.

    Args:
        site_file: Of the site, with a connection.
        console: Where it is told.

    Raises:
        UserError: If the site file names no connection, a key is there already, or one cannot be
            written.
    """
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    site, connection = site_connection(site_file)
    if connection.key.exists():
        raise _exists_already(connection.key)
    key = ec.generate_private_key(ec.SECP384R1())
    private_bytes = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public_key = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    public_file = connection.key.with_name(f"{site.name}.pub")
    write_atomically(public_file, f"{public_key} {site.name}\n")
    if not connection.secret.exists():
        write_new(connection.secret, secrets.token_bytes(32), 0o640)
    # The key comes last: once it is there, nothing is made again.
    write_new(connection.key, private_bytes, 0o600)
    say(
        console,
        f"made {connection.key} (stays here, for the node's user alone) and "
        f"{connection.secret} (for the app's too)\n"
        f"send {public_file} to the coordinator, and read its end out on the telephone: "
        f"{public_key[-24:]}",
    )


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a file that is not there yet, which only those whom its mode names can ever read.

    Args:
        path: The file.
        content: Its bytes.
        mode: Its permissions, as of chmod.

    Raises:
        UserError: If it is there, or cannot be written.
    """
    with written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            raise _exists_already(path) from None
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, mode)
                file.write(content)
        except BaseException:
            path.unlink()
            raise


def _exists_already(path: Path) -> UserError:
    return UserError(f"{path} is there already: move it away first, if it is to be made anew")

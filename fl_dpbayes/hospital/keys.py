"""Makes a node's own key at the hospital: the private part stays, the public part is what the coordinator gets."""

import os
import secrets
from pathlib import Path

from rich.console import Console

from fl_dpbayes.config import Connection, SiteFile, read_own_site_file
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import write_atomically, written


def site_connection(site_file: Path) -> tuple[SiteFile, Connection]:
    """Read a hospital's site file and its connection; UserError if it names none."""
    record = read_own_site_file(site_file)
    if record.connection is None:
        raise UserError(
            f"site file {site_file} names no coordinator: add [connection] with superlink "
            '= "HOST:PORT"'
        )
    return record, record.connection


def make_keys(site_file: Path, console: Console) -> None:
    """Make a node's key pair, and the secret between its two processes; nothing is overwritten.

    Raises UserError if the site file names no connection, a key is there already, or one cannot be
    written.
    """
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    record, connection = site_connection(site_file)
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    public_file = connection.key.with_name(f"{record.name}.pub")
    if connection.key.exists():
        raise UserError(
            f"{connection.key} is there already: move it away first, if it is to be made anew"
        )
    # The key comes last: once it is there, nothing is made again.
    write_atomically(public_file, f"{public.decode()} {record.name}\n")
    if not connection.secret.exists():
        write_new(connection.secret, secrets.token_bytes(32), 0o640)
    write_new(
        connection.key,
        key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
        0o600,
    )
    made = (
        f"made {connection.key} (stays here, for the node's user alone) and "
        f"{connection.secret} (for the app's too)"
    )
    then = (
        f"send {public_file} to the coordinator, and read its end out on the telephone: "
        f"{public.decode()[-24:]}"
    )
    console.print(f"{made}\n{then}", markup=False, soft_wrap=True)


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a file that is not there yet, which only those whom `mode` names can ever read.

    UserError if it is.
    """
    with written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            raise UserError(
                f"{path} is there already: move it away first, if it is to be made anew"
            ) from None
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, mode)
                file.write(content)
        except BaseException:
            path.unlink()
            raise

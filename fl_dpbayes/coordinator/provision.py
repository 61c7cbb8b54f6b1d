"""`fl-dpbayes provision`: a certificate authority, the server's certificate, and the files of both ends."""

import hashlib
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from rich.console import Console

from fl_dpbayes.config import site_name
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import write_atomically
from fl_dpbayes.files.templates import templates
from fl_dpbayes.hospital.keys import write_new

CA_DAYS, SERVER_DAYS = 3650, 397


def provision(folder: Path, sites: Sequence[str], host: str, port: int, console: Console) -> None:
    """Write `coordinator/` and `hospital/` below a folder, or what is missing of them.

    Where they are whole, new names of sites are added to register.sh; without one the server's
    certificate is renewed. `host`: the name or address by which hospitals reach the coordinator.
    `port`: where the SuperLink listens on the coordinator's own machine. Raises UserError if a name
    is not one, the folder was made for another host or port, a key is not the one that belongs
    there, or a file cannot be written.
    """
    if len(set(sites)) < len(sites) or not all(name and site_name(name) == name for name in sites):
        allowed = "names of A-Z, a-z, 0-9, '.', '_', '-', each once, as a,b,c"
        raise UserError(f"--sites is {','.join(sites)}: give {allowed}")
    if not re.fullmatch(r"[A-Za-z0-9.-]{1,253}", host):
        raise UserError(
            f"--host is {host}: give the name or address by which hospitals reach the coordinator"
        )
    ours, theirs = folder / "coordinator", folder / "hospital"
    register, whole = ours / "register.sh", (ours / "keys").is_dir()
    text = register.read_text(encoding="utf-8") if register.is_file() else ""
    told = re.search(r'^host=(\S+) port=(\d+) sites="(.*)"$', text, re.M)
    if (whole and not told) or (told and (told[1], told[2]) != (host, str(port))):
        said = told[0] if told else "not what it was made for"
        raise UserError(f"{register} says {said}: give this host and port, or another folder")
    if told and (new := " ".join(site for site in sites if site not in told[3].split())):
        write_atomically(register, f"{text[: told.end(3)]} {new}{text[told.end(3) :]}")
        console.print(f"added {new} to {register}", markup=False, soft_wrap=True)
        if whole:
            return
    if (ours / "ca.crt").exists() and not (ours / "ca.key").exists():
        raise UserError(
            f"{ours / 'ca.key'} is not there: put it back while the server's certificate is renewed"
        )
    _write_certificates(ours, host)
    if whole:
        console.print(
            f"renewed server.pem in {ours} for {SERVER_DAYS} days; all else stays", markup=False
        )
        return
    from fl_dpbayes.hospital.node import own_bundle

    filled = {
        "@HOST@": host,
        "@PORT@": str(port),
        "@SITES@": " ".join(sites),
        "@BUNDLE@": hashlib.sha256(own_bundle()).hexdigest(),
    }
    made = {
        ours / "server.secret": (secrets.token_bytes(32), 0o640),
        theirs / "ca.crt": ((ours / "ca.crt").read_bytes(), 0o644),
    }
    for place in (ours, theirs):
        for name, form in templates(place.name).items():
            text = re.sub("|".join(filled), lambda found: filled[found[0]], form.lstrip("\n"))
            made[place / name] = text.encode(), 0o644
    for path in made:
        # What an earlier call made before it was cut off stays.
        if not path.exists():
            write_new(path, *made[path])
    # Made last: it says that the kit is whole.
    (ours / "keys").mkdir()
    said = (
        f"made {ours} (keep ca.key off this machine) and {theirs} (send it to every hospital; "
        "it holds no secret)"
    )
    then = f"each hospital sends NAME.pub: put it into {ours / 'keys'}, then run register.sh"
    console.print(f"{said}\n{then}", markup=False, soft_wrap=True)


def _write_certificates(folder: Path, host: str) -> None:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    def key(name: str) -> Any:
        if not (folder / name).exists():
            made = ec.generate_private_key(ec.SECP384R1())
            write_new(
                folder / name,
                made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
                0o600,
            )
        try:
            return load_pem_private_key((folder / name).read_bytes(), None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise UserError(
                f"{folder / name} is no private key without a passphrase: put the right one back"
            ) from None

    def certificate(
        name: str, public: Any, days: int, authority: bool, *extensions: x509.ExtensionType
    ) -> str:
        now, subject = datetime.now(UTC), x509.Name.from_rfc4514_string(f"CN={name}")
        # A clock that is a little behind must not find the certificate in the future.
        builder = x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(
            now + timedelta(days=days)
        )
        # To sign what is said, or certificates and lists of revoked ones.
        rights = x509.KeyUsage(not authority, *[False] * 4, *[authority] * 2, *[False] * 2)
        for extension in (x509.BasicConstraints(authority, 0 if authority else None), rights):
            builder = builder.add_extension(extension, critical=True)
        own = x509.SubjectKeyIdentifier.from_public_key(public)
        for more in (
            own,
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
            *extensions,
        ):
            builder = builder.add_extension(more, critical=False)
        return builder.sign(ca_key, hashes.SHA384()).public_bytes(Encoding.PEM).decode()

    ca_name = "fl-dpbayes certificate authority"
    issuer, ca_key, server_key = (
        x509.Name.from_rfc4514_string(f"CN={ca_name}"),
        key("ca.key"),
        key("server.key"),
    )
    if not (folder / "ca.crt").exists():
        write_atomically(
            folder / "ca.crt", certificate(ca_name, ca_key.public_key(), CA_DAYS, True)
        )
    if (
        x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()).public_key()
        != ca_key.public_key()
    ):
        raise UserError(
            f"{folder / 'ca.key'} is not the key of the ca.crt beside it: put that one back"
        )
    named = list[x509.GeneralName]()
    for one in dict.fromkeys(("localhost", "127.0.0.1", host)):
        try:
            named.append(x509.IPAddress(ip_address(one)))
        except ValueError:
            named.append(x509.DNSName(one))
    names = x509.SubjectAlternativeName(named)
    purpose = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH])
    pem = certificate(host[:64], server_key.public_key(), SERVER_DAYS, False, names, purpose)
    write_atomically(folder / "server.pem", pem)

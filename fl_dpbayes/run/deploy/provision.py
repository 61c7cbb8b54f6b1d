"""`fl-dpbayes provision`: a certificate authority, the server's certificate, and the files of both ends."""

import datetime as dt
import hashlib
import ipaddress
import re
import secrets
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.files.atomic_file import written
from fl_dpbayes.config.names import site_name
from fl_dpbayes.run.site.keys import write_new

CA_DAYS, SERVER_DAYS = 3650, 397
DEFAULT_PORT = 8443
REGISTER = "flwr supernode register keys/{site}.pub remote --name {site}"


def provision(folder: Path, sites: Sequence[str], host: str, console: Console, port: int = DEFAULT_PORT) -> None:
    """Write `coordinator/` and `hospital/` below a folder; where there is one, only the server's certificate is new.

    `host`: the name or address by which hospitals reach the coordinator. `port`: where the SuperLink listens on the
    coordinator's own machine. Raises UserError if a name is not one, or a file cannot be written.
    """
    wrong = [name for name in sites if site_name(name) != name or not name]
    if wrong or not sites or len(set(sites)) < len(sites):
        raise UserError(
            f"--sites is {','.join(sites)}: give names like a,b,c of A-Z, a-z, 0-9, '.', '_', '-', each once"
        )
    if not re.fullmatch(r"[A-Za-z0-9.-]{1,253}", host):
        raise UserError(f"--host is {host}: give the name or address by which hospitals reach the coordinator")
    ours, theirs = folder / "coordinator", folder / "hospital"
    renewed = (ours / "ca.key").exists()
    _write_certificates(ours, host)
    if renewed:
        console.print(f"renewed {ours / 'server.pem'} for {SERVER_DAYS} days; the rest stays", markup=False)
        return
    write_new(ours / "server.secret", secrets.token_bytes(32), 0o640)
    from fl_dpbayes.run.site.node import own_bundle

    filled = {
        "@HOST@": host, "@PORT@": str(port), "@BUNDLE@": hashlib.sha256(own_bundle()).hexdigest(),
        "@REGISTER@": "\n".join(REGISTER.format(site=site) for site in sites),
    }  # fmt: skip
    for place, name in ((ours, "coordinator"), (theirs, "hospital")):
        for file, text in templates(name).items():
            for mark, value in filled.items():
                text = text.replace(mark, value)
            write_new(place / file, text.lstrip("\n").encode(), 0o644)
    write_new(theirs / "ca.crt", (ours / "ca.crt").read_bytes(), 0o644)
    console.print(
        f"made {ours} (keep ca.key off this machine) and {theirs} (send it to every hospital; it holds no secret)\n"
        f"each hospital sends one file: put it into {ours / 'keys'} as {', '.join(f'{site}.pub' for site in sites)}, "
        "then run register.sh",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    (ours / "keys").mkdir()


def templates(name: str) -> dict[str, str]:
    """Return name -> text of the files that one end gets, with marks for what is filled in."""
    package = Path(__file__).parents[2]
    folder = package / "deploy" if (package / "deploy").is_dir() else package.parent / "deploy"
    return tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))


def _write_certificates(folder: Path, host: str) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def key_file(name: str) -> tuple[Any, bool]:
        path = folder / name
        if path.exists():
            return load_pem_private_key(path.read_bytes(), None), False
        key = ec.generate_private_key(ec.SECP384R1())
        write_new(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
        return key, True

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])

    def usage(*which: str) -> x509.KeyUsage:
        every = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
                 "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")  # fmt: skip
        return x509.KeyUsage(**{name: name in which for name in every})

    def certificate(subject: x509.Name, public: Any, days: int, extensions: Sequence[tuple[Any, bool]]) -> bytes:
        now = dt.datetime.now(dt.UTC)
        builder = x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number())
        # A clock that is a little behind must not find the certificate in the future.
        builder = builder.not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=days))
        identifiers = [
            (x509.SubjectKeyIdentifier.from_public_key(public), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False),
        ]
        for extension, critical in [*identifiers, *extensions]:
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(ca_key, hashes.SHA384()).public_bytes(Encoding.PEM)

    issuer = named("fl-dpbayes certificate authority")
    with written(folder):
        folder.mkdir(parents=True, exist_ok=True)
        ca_key, made = key_file("ca.key")
        if made:
            authority = [
                (x509.BasicConstraints(ca=True, path_length=0), True),
                (usage("key_cert_sign", "crl_sign"), True),
            ]
            write_new(folder / "ca.crt", certificate(issuer, ca_key.public_key(), CA_DAYS, authority), 0o644)
        server_key, _ = key_file("server.key")
        alternatives: list[x509.GeneralName] = [x509.DNSName("localhost")]
        addresses = ["127.0.0.1"]
        try:
            addresses.append(str(ipaddress.ip_address(host)))
        except ValueError:
            alternatives.append(x509.DNSName(host))
        alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in dict.fromkeys(addresses)]
        server = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (usage("digital_signature"), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (x509.SubjectAlternativeName(alternatives), False),
        ]
        pem = certificate(named(host), server_key.public_key(), SERVER_DAYS, server)
        (folder / "server.pem").write_bytes(pem)

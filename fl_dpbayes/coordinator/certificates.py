"""The coordinator's certificate authority, and the certificate of its server."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

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

from fl_dpbayes.errors import UserError
from fl_dpbayes.files import write_atomically
from fl_dpbayes.hospital.keys import write_new

CA_NAME = "fl-dpbayes certificate authority"
CA_DAYS = 3650
SERVER_DAYS = 397


def write_certificates(folder: Path, host: str) -> None:
    """Write keys and certificate of the authority where they are missing, and the server's anew.

    Args:
        folder: Gets ca.key, ca.crt, server.key and server.pem.
        host: The name or address by which hospitals reach the server.

    Raises:
        UserError: If a key is damaged or is not the one of the certificate beside it, or a file
            cannot be written.
    """
    authority_key = _read_or_make_key(folder / "ca.key")
    server_key = _read_or_make_key(folder / "server.key")
    ca_file = folder / "ca.crt"
    if not ca_file.exists():
        own_certificate = _certificate(
            authority_key, name=CA_NAME, key=authority_key, days=CA_DAYS, is_authority=True
        )
        write_atomically(ca_file, own_certificate)
    ca_certificate = x509.load_pem_x509_certificate(ca_file.read_bytes())
    if ca_certificate.public_key() != authority_key.public_key():
        raise UserError(
            f"{folder / 'ca.key'} is not the key of the ca.crt beside it: put that one back"
        )
    server_certificate = _certificate(
        authority_key,
        name=host[:64],
        key=server_key,
        days=SERVER_DAYS,
        is_authority=False,
        extensions=(
            x509.SubjectAlternativeName(_general_names(host)),
            x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]),
        ),
    )
    write_atomically(folder / "server.pem", server_certificate)


def _certificate(
    authority_key: ec.EllipticCurvePrivateKey,
    name: str,
    key: ec.EllipticCurvePrivateKey,
    days: int,
    is_authority: bool,
    extensions: Sequence[x509.ExtensionType] = (),
) -> str:
    """Certify a key by the authority's, and return the certificate as PEM."""
    now = datetime.now(UTC)
    public_key = key.public_key()
    builder = x509.CertificateBuilder(
        issuer_name=x509.Name.from_rfc4514_string(f"CN={CA_NAME}"),
        subject_name=x509.Name.from_rfc4514_string(f"CN={name}"),
        public_key=public_key,
        serial_number=x509.random_serial_number(),
        # A clock that is a little behind must not find the certificate in the future.
        not_valid_before=now - timedelta(days=1),
        not_valid_after=now + timedelta(days=days),
    )
    critical_extensions = (
        x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None),
        # A server signs what it says; an authority, certificates and lists of revoked ones.
        x509.KeyUsage(
            digital_signature=not is_authority,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=is_authority,
            crl_sign=is_authority,
            encipher_only=False,
            decipher_only=False,
        ),
    )
    for critical_extension in critical_extensions:
        builder = builder.add_extension(critical_extension, critical=True)
    identities = (
        x509.SubjectKeyIdentifier.from_public_key(public_key),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
    )
    for extension in (*identities, *extensions):
        builder = builder.add_extension(extension, critical=False)
    certificate = builder.sign(authority_key, hashes.SHA384())
    return certificate.public_bytes(Encoding.PEM).decode()


def _read_or_make_key(path: Path) -> ec.EllipticCurvePrivateKey:
    if not path.exists():
        new_key = ec.generate_private_key(ec.SECP384R1())
        content = new_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_new(path, content, 0o600)
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UserError(
            f"{path} is no private key without a passphrase: put the right one back"
        ) from None
    # A key of another kind that somebody put there signs as well.
    return key  # type: ignore[return-value]


def _general_names(host: str) -> list[x509.GeneralName]:
    """List the names and addresses of a server: its host's, and those on its own machine."""
    names: list[x509.GeneralName] = []
    for place in dict.fromkeys(("localhost", "127.0.0.1", host)):
        try:
            names.append(x509.IPAddress(ip_address(place)))
        except ValueError:
            names.append(x509.DNSName(place))
    return names

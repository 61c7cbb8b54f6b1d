"""The coordinator's certificate authority, and the certificate of its server."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from fl_dpbayes.errors import UserError
from fl_dpbayes.files import write_atomically
from fl_dpbayes.hospital.keys import write_new

# The library is imported where it is used: the command line must start fast.
if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA_NAME = "fl-dpbayes certificate authority"
CA_DAYS = 3650
SERVER_DAYS = 397


@dataclass(frozen=True)
class CertificateAuthority:
    """What certificates are signed with.

    Attributes:
        key: The authority's private key.
    """

    key: "EllipticCurvePrivateKey"

    def own_certificate(self) -> str:
        """Return the authority's certificate of itself, as PEM."""
        return self._sign(name=CA_NAME, key=self.key, days=CA_DAYS, is_authority=True)

    def server_certificate(self, key: "EllipticCurvePrivateKey", host: str) -> str:
        """Certify a server's key.

        Args:
            key: The server's private key, of which the public part is certified.
            host: The name or address by which hospitals reach it.

        Returns:
            The certificate, as PEM.
        """
        from cryptography import x509

        return self._sign(
            name=host[:64],
            key=key,
            days=SERVER_DAYS,
            is_authority=False,
            extensions=(
                x509.SubjectAlternativeName(_general_names(host)),
                x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]),
            ),
        )

    def _sign(
        self,
        name: str,
        key: "EllipticCurvePrivateKey",
        days: int,
        is_authority: bool,
        extensions: Sequence["x509.ExtensionType"] = (),
    ) -> str:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.serialization import Encoding

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
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
        )
        for extension in (*identities, *extensions):
            builder = builder.add_extension(extension, critical=False)
        certificate = builder.sign(self.key, hashes.SHA384())
        return certificate.public_bytes(Encoding.PEM).decode()


def write_certificates(folder: Path, host: str) -> None:
    """Write keys and certificate of the authority where they are missing, and the server's anew.

    Args:
        folder: Gets ca.key, ca.crt, server.key and server.pem.
        host: The name or address by which hospitals reach the server.

    Raises:
        UserError: If a key is damaged or is not the one of the certificate beside it, or a file
            cannot be written.
    """
    from cryptography import x509

    authority = CertificateAuthority(_read_or_make_key(folder / "ca.key"))
    server_key = _read_or_make_key(folder / "server.key")
    ca_file = folder / "ca.crt"
    if not ca_file.exists():
        write_atomically(ca_file, authority.own_certificate())
    ca_certificate = x509.load_pem_x509_certificate(ca_file.read_bytes())
    if ca_certificate.public_key() != authority.key.public_key():
        raise UserError(
            f"{folder / 'ca.key'} is not the key of the ca.crt beside it: put that one back"
        )
    write_atomically(folder / "server.pem", authority.server_certificate(server_key, host))


def _read_or_make_key(path: Path) -> "EllipticCurvePrivateKey":
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

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


def _general_names(host: str) -> list["x509.GeneralName"]:
    """List the names and addresses of a server: its host's, and those on its own machine."""
    from cryptography import x509

    names: list[x509.GeneralName] = []
    for place in dict.fromkeys(("localhost", "127.0.0.1", host)):
        try:
            names.append(x509.IPAddress(ip_address(place)))
        except ValueError:
            names.append(x509.DNSName(place))
    return names

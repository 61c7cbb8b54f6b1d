"""Tries the way to the coordinator's server step by step: name, port, certificate, clock, key.

Flower says "unavailable" of all of them. Nothing is registered or activated, and a node that runs
is left alone.
"""

import json
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from urllib.request import getproxies, proxy_bypass

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
)
from flwr.proto.fleet_pb2 import ActivateNodeRequest

from fl_dpbayes.config import SiteFile
from fl_dpbayes.hospital.findings import Finding, failed, passed, skipped, warned

SECONDS = 10.0
# Flower refuses what was signed more than 5 seconds in the future or 305 in the past.
MOST_AHEAD = 5.0
MOST_BEHIND = 240.0
# OpenSSL's codes of what is wrong with a certificate.
WRONG_NAME = (62, 64)
WRONG_TIME = {9: "is not valid yet", 10: "has expired"}
# A request to activate a node with no interval of heartbeats, which Flower looks at after the key
# and always refuses.
ACTIVATE = "/v1/fleet/activate-node"
REGISTERED = 2003
NOT_REGISTERED = 2004
# What is wrong, and what to do, where a step of the way to the server fails.
FAILURES = {
    "CA file": ("{ca} is no certificate", "put the coordinator's ca.crt there"),
    "name": ("{host!r} is not known to DNS here", "correct superlink, or ask IT for a DNS entry"),
    "port": (
        "{port} of {host}: {answer}",
        "is the server up, and the port right? else ask IT to let this machine reach it",
    ),
    "TLS": (
        "the server does not speak TLS there",
        "is the port right? does a firewall in between allow no TLS?",
    ),
    "server": (
        "it does not answer HTTP",
        "is superlink's port that of the server, or of its proxy?",
    ),
}
MAKE_KEYS = "make one:  fl-dpbayes site keys SITE_FILE"
Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class ServerAnswer:
    """What the server answered to a request.

    Attributes:
        status: Of HTTP.
        time: By the server's clock, in seconds since 1970.
        body: At most 64 KiB.
    """

    status: int
    time: float
    body: bytes


def secret_findings(path: Path, site_file: SiteFile) -> Iterator[Finding]:
    """Look at the files of a connection, which others on this machine may not read.

    Args:
        path: The site file.
        site_file: What it says.

    Yields:
        What the CA's certificate, the node's key and the secret of its two processes are like.
    """
    connection = site_file.connection
    if connection is None:
        return
    if not connection.ca.is_file():
        yield failed("CA file", f"{connection.ca} does not exist", FAILURES["CA file"][1])
    yield _read_private_key(connection.key)[1]
    if not connection.secret.is_file():
        yield failed("secret", f"{connection.secret} does not exist", MAKE_KEYS)
    elif connection.secret.stat().st_mode & 0o007:
        yield _readable("secret", connection.secret, "640")


def connection_findings(path: Path, site_file: SiteFile) -> Iterator[Finding]:
    """Try each step of the way to the server, up to the first that fails.

    Args:
        path: The site file.
        site_file: What it says.

    Yields:
        What each step is like.
    """
    connection = site_file.connection
    if connection is None:
        yield skipped("connection", "the site file has no table [connection]")
        return
    if not connection.ca.is_file():
        return
    key, _ = _read_private_key(connection.key)
    host, port = connection.superlink.rsplit(":", 1)
    if "https" in getproxies() and not proxy_bypass(host):
        yield warned(
            "proxy",
            "the variable HTTPS_PROXY is set: the node goes through that proxy, this check does "
            "not",
            f"add {host} to NO_PROXY if the proxy is not meant for it",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.hostname_checks_common_name = False
    step = "CA file"
    try:
        context.load_verify_locations(connection.ca)
        yield passed("CA file", f"{connection.ca}")
        step = "name"
        yield passed("name", f"{host} is {', '.join(_addresses(host, port))}")
        step = "port"
        with socket.create_connection((host, int(port)), SECONDS) as plain_socket:
            yield passed("port", f"{port} of {host} is open")
            step = "TLS"
            with context.wrap_socket(plain_socket, server_hostname=host):
                yield passed("CA", "signed the server's certificate")
                yield passed("certificate", f"is for the name {host!r}")
        step = "server"
        server = HTTPSConnection(host, int(port), timeout=SECONDS, context=context)
        yield from _server_findings(server, key)
    except ssl.SSLCertVerificationError as error:
        yield from _certificate_findings(error, host)
    except (OSError, HTTPException, ValueError) as error:
        is_refused = isinstance(error, ConnectionRefusedError)
        answer = "nothing listens there" if is_refused else "no answer"
        fault, remedy = FAILURES[step]
        message = fault.format(ca=connection.ca, host=host, port=port, answer=answer)
        yield failed(step, message, remedy)


def _addresses(host: str, port: str) -> list[str]:
    """Ask DNS for a host's addresses."""
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(socket_address[0]) for *_, socket_address in answers})


def _certificate_findings(error: ssl.SSLCertVerificationError, host: str) -> Iterator[Finding]:
    """Say why the server's certificate was not accepted."""
    if error.verify_code in WRONG_NAME:
        yield passed("CA", "signed the server's certificate")
        yield failed(
            "certificate",
            f"it is not for the name {host!r}",
            "use the name in the certificate, or have the coordinator add this one "
            "(subjectAltName)",
        )
    elif error.verify_code in WRONG_TIME:
        yield failed(
            "certificate",
            f"it {WRONG_TIME[error.verify_code]}",
            "look at this machine's clock; else the coordinator renews it",
        )
    else:
        yield failed(
            "CA",
            "the server's certificate is of another CA",
            "does a proxy in between inspect TLS? else get the coordinator's present ca.crt",
        )


def _read_private_key(path: Path) -> tuple[Key | None, Finding]:
    """Read the node's key, if this user may and Flower can use it."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except PermissionError:
        return None, skipped(
            "key",
            f"this user may not read {path}, which is right for the app's: check as the "
            "node's user, too",
        )
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        fault = "does not exist"
        if path.is_file():
            fault = "is no private key in OpenSSH format without a passphrase"
        return None, failed("key", f"{path} {fault}", MAKE_KEYS)
    if path.stat().st_mode & 0o077:
        return None, _readable("key", path, "600")
    if not isinstance(key, Key):
        return None, failed(
            "key", f"{path} is no key of an elliptic curve, which Flower needs", MAKE_KEYS
        )
    return key, passed("key", f"{path}")


def _readable(subject: str, path: Path, mode: str) -> Finding:
    return failed(subject, f"{path} can be read by others than it may", f"chmod {mode} {path}")


def _server_findings(server: HTTPSConnection, key: Key | None) -> Iterator[Finding]:
    """Compare the clocks, and ask whether the server knows the key."""
    answer = _ask(server, b"", {})
    yield _clock_finding(time.time() - answer.time)
    if answer.status != 401:
        yield failed(
            "server",
            f"it answers a request without a key with {answer.status}, not 401",
            "the coordinator must start it with --enable-supernode-auth, and let /v1/fleet/ "
            "through its proxy",
        )
        return
    if key is None:
        yield skipped("registration", "there is no key to ask with")
        return
    yield _registration_finding(server, key)


def _clock_finding(seconds_ahead: float) -> Finding:
    if -MOST_BEHIND < seconds_ahead < MOST_AHEAD:
        return passed("clock", "this machine's and the server's agree")
    direction = "ahead of" if seconds_ahead > 0 else "behind"
    return failed(
        "clock",
        f"this machine's is {abs(seconds_ahead):.0f} s {direction} the server's, which then "
        "refuses the key",
        "keep this machine's clock by NTP",
    )


def _registration_finding(server: HTTPSConnection, key: Key) -> Finding:
    public_key = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    timestamp = datetime.now(UTC).isoformat()
    signature = key.sign(timestamp.encode(), ec.ECDSA(hashes.SHA256()))
    headers = {
        "flwr-public-key": b64encode(public_key).decode(),
        "flwr-timestamp": timestamp,
        "flwr-signature": b64encode(signature).decode(),
    }
    request = ActivateNodeRequest(public_key=public_key)
    answer = _ask(server, request.SerializeToString(), headers)
    code = json.loads(answer.body or b"{}").get("code")
    if code == REGISTERED:
        return passed("registration", "the server knows this site's key")
    if code == NOT_REGISTERED:
        return failed(
            "registration",
            "the server does not know this key",
            "send the .pub file to the coordinator",
        )
    return failed(
        "registration",
        f"the server does not accept the key ({answer.status})",
        "compare this machine's clock and its version of Flower with the server's",
    )


def _ask(server: HTTPSConnection, body: bytes, headers: dict[str, str]) -> ServerAnswer:
    try:
        server.request("POST", ACTIVATE, body, {"Content-Type": "application/protobuf", **headers})
        response = server.getresponse()
        return ServerAnswer(
            status=response.status,
            time=parsedate_to_datetime(response.getheader("Date", "")).timestamp(),
            body=response.read(2**16),
        )
    finally:
        server.close()

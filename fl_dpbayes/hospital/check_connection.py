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
MOST_AHEAD, MOST_BEHIND = 5.0, 240.0
# OpenSSL's codes of what is wrong with a certificate.
WRONG_NAME, WRONG_TIME = (62, 64), {9: "is not valid yet", 10: "has expired"}
# A request to activate a node with no interval of heartbeats, which Flower looks at after the key
# and always refuses.
ACTIVATE, REGISTERED, NOT_REGISTERED = "/v1/fleet/activate-node", 2003, 2004
Key = ec.EllipticCurvePrivateKey


def connection_findings(site_file: SiteFile) -> Iterator[Finding]:
    """Try each step of the way to the server, up to the first that fails.

    Key and CA are looked at in any case.
    """
    given = site_file.connection
    if given is None:
        yield skipped("connection", "the site file has no table [connection]")
        return
    key, found = _private_key(given.key)
    yield found
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.hostname_checks_common_name = False
    host, port = given.superlink.rsplit(":", 1)
    if "https" in getproxies() and not proxy_bypass(host):
        said = (
            "the variable HTTPS_PROXY is set: the node goes through that proxy, this check does not"
        )
        yield warned("proxy", said, f"add {host} to NO_PROXY if the proxy is not meant for it")
    what, remedy = "CA file", "put the coordinator's ca.crt there"
    try:
        context.load_verify_locations(given.ca)
        yield passed(what, f"{given.ca}")
        what, remedy = "name", "correct superlink, or ask IT for a DNS entry"
        addresses = sorted(
            {str(one[4][0]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        )
        yield passed(what, f"{host} is {', '.join(addresses)}")
        what, remedy = (
            "port",
            "is the server up, and the port right? else ask IT to let this machine reach it",
        )
        with socket.create_connection((host, int(port)), SECONDS) as plain:
            yield passed(what, f"{port} of {host} is open")
            what, remedy = "TLS", "is the port right? does a firewall in between allow no TLS?"
            with context.wrap_socket(plain, server_hostname=host):
                yield passed("CA", "signed the server's certificate")
                yield passed("certificate", f"is for the name {host!r}")
        what, remedy = "server", "is superlink's port that of the server, or of its proxy?"
        yield from _server_findings(
            HTTPSConnection(host, int(port), timeout=SECONDS, context=context), key
        )
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in WRONG_NAME:
            yield passed("CA", "signed the server's certificate")
            remedy = (
                "use the name in the certificate, or have the coordinator add this one "
                "(subjectAltName)"
            )
            yield failed("certificate", f"it is not for the name {host!r}", remedy)
        elif why := WRONG_TIME.get(error.verify_code):
            yield failed(
                "certificate",
                f"it {why}",
                "look at this machine's clock; else the coordinator renews it",
            )
        else:
            remedy = (
                "does a proxy in between inspect TLS? else get the coordinator's present ca.crt"
            )
            yield failed("CA", "the server's certificate is of another CA", remedy)
    except (OSError, HTTPException, ValueError) as error:
        ca = "is no certificate" if given.ca.is_file() else "does not exist"
        there = (
            "nothing listens there" if isinstance(error, ConnectionRefusedError) else "no answer"
        )
        reasons = {
            "CA file": f"{given.ca} {ca}",
            "name": f"{host!r} is not known to DNS here",
            "port": f"{port} of {host}: {there}",
            "TLS": "the server does not speak TLS there",
            "server": "it does not answer HTTP",
        }
        yield failed(what, reasons[what], remedy)


def _private_key(path: Path) -> tuple[Key | None, Finding]:
    remedy = "make one:  fl-dpbayes site keys SITE_FILE"
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except PermissionError:
        said = (
            f"this user may not read {path}, which is right for the app's: check as the "
            "node's user, too"
        )
        return None, skipped("key", said)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        said = (
            "is no private key in OpenSSH format without a passphrase"
            if path.is_file()
            else "does not exist"
        )
        return None, failed("key", f"{path} {said}", remedy)
    if path.stat().st_mode & 0o077:
        return None, failed("key", f"others on this machine may read {path}", f"chmod 600 {path}")
    if not isinstance(key, Key):
        return None, failed(
            "key", f"{path} is no key of an elliptic curve, which Flower needs", remedy
        )
    return key, passed("key", f"{path}")


def _server_findings(server: HTTPSConnection, key: Key | None) -> Iterator[Finding]:
    status, date, _ = _asked(server, b"", {})
    ahead, remedy = time.time() - date, "keep this machine's clock by NTP"
    if -MOST_BEHIND < ahead < MOST_AHEAD:
        yield passed("clock", "this machine's and the server's agree")
    else:
        side = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'}"
        yield failed(
            "clock", f"this machine's is {side} the server's, which then refuses the key", remedy
        )
    if status != 401:
        remedy = (
            "the coordinator must start it with --enable-supernode-auth, and let /v1/fleet/ "
            "through its proxy"
        )
        yield failed("server", f"it answers a request without a key with {status}, not 401", remedy)
        return
    if key is None:
        yield skipped("registration", "there is no key to ask with")
        return
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    stamp = datetime.now(UTC).isoformat()
    signed = key.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
    headers = {"flwr-public-key": b64encode(public).decode(), "flwr-timestamp": stamp}
    headers["flwr-signature"] = b64encode(signed).decode()
    status, _, body = _asked(
        server, ActivateNodeRequest(public_key=public).SerializeToString(), headers
    )
    code = json.loads(body or b"{}").get("code")
    if code == REGISTERED:
        yield passed("registration", "the server knows this site's key")
    elif code == NOT_REGISTERED:
        yield failed(
            "registration",
            "the server does not know this key",
            "send the .pub file to the coordinator",
        )
    else:
        yield failed(
            "registration",
            f"the server does not accept the key ({status})",
            "look at clocks and versions",
        )


def _asked(
    server: HTTPSConnection, body: bytes, headers: dict[str, str]
) -> tuple[int, float, bytes]:
    try:
        server.request("POST", ACTIVATE, body, {"Content-Type": "application/protobuf", **headers})
        answer = server.getresponse()
        return (
            answer.status,
            parsedate_to_datetime(answer.getheader("Date", "")).timestamp(),
            answer.read(2**16),
        )
    finally:
        server.close()

"""Tries the way to the coordinator's server step by step: name, port, certificate, clock, key.

Flower says "unavailable" of all of them. Nothing is registered or activated, and a node that runs is left alone.
"""

import json
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from urllib.request import getproxies, proxy_bypass

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

from fl_dpbayes.config.site_file import SiteFile
from fl_dpbayes.run.site.findings import Finding, failed, passed

SECONDS = 10.0
# Flower refuses a request that was signed more than 5 seconds in the future or 305 in the past.
MOST_AHEAD, MOST_BEHIND = 4.0, 240.0
WRONG_NAME = (62, 64)  # OpenSSL: host name, IP address
REASONS = {
    9: "is not valid yet",
    10: "has expired",
    18: "signed itself",
    19: "is of another CA",
    20: "is of another CA",
}
# A request to activate a node with no interval of heartbeats, which Flower looks at after the key and always refuses.
ACTIVATE, REGISTERED, NOT_REGISTERED = "/v1/fleet/activate-node", 2003, 2004


def connection_findings(site_file: SiteFile) -> Iterator[Finding]:
    """Try each step of the way to the server, up to the first that fails; the key and the CA are looked at anyway."""
    given = site_file.connection
    if given is None:
        yield Finding("SKIP", "connection", "the site file has no table [connection]")
        return
    key, found = _private_key(given.key)
    yield found
    context, found = _context(given.ca)
    yield found
    host, _, port = given.superlink.rpartition(":")
    if "https" in getproxies() and not proxy_bypass(host):
        said = "the variable HTTPS_PROXY is set: the node will go through that proxy, this check does not"
        yield Finding("WARN", "proxy", said, f"add {host} to NO_PROXY if the proxy is not meant for it")
    try:
        addresses = {str(one[4][0]) for one in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)}
    except OSError:
        yield failed("name", f"{host!r} is not known to DNS here", "correct superlink, or ask IT for a DNS entry")
        return
    yield passed("name", f"{host} is {', '.join(sorted(addresses))}")
    try:
        socket.create_connection((host, int(port)), SECONDS).close()
    except OSError as error:
        refused = isinstance(error, ConnectionRefusedError)
        said = "nothing listens there" if refused else "no answer"
        remedy = "is the server up, and the port right?" if refused else "ask IT to let this machine reach it"
        yield failed("port", f"{port} of {host}: {said}", remedy)
        return
    yield passed("port", f"{port} of {host} is open")
    if context is None:
        return
    reached = yield from _tls_findings(context, host, int(port))
    if reached:
        yield from _server_findings(context, (host, int(port)), key)


def _private_key(path: Path) -> tuple[ec.EllipticCurvePrivateKey | None, Finding]:
    remedy = "make one:  fl-dpbayes site keys SITE_FILE"
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
        if path.stat().st_mode & 0o077:
            return None, failed("key", f"others on this machine may read {path}", f"chmod 600 {path}")
    except PermissionError:
        said = f"this user may not read {path}, which is right for the app's: check as the node's user, too"
        return None, Finding("SKIP", "key", said)
    except FileNotFoundError:
        return None, failed("key", f"{path} does not exist", remedy)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        return None, failed("key", f"{path} is no private key in OpenSSH format without a passphrase", remedy)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return None, failed("key", f"{path} is no key of an elliptic curve, which Flower needs", remedy)
    return key, passed("key", f"{path}")


def _context(path: Path) -> tuple[ssl.SSLContext | None, Finding]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.hostname_checks_common_name = False
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError):
        said = "is no certificate" if path.is_file() else "does not exist"
        return None, failed("CA file", f"{path} {said}", "put the coordinator's ca.crt there")
    return context, passed("CA file", f"{path}")


def _tls_findings(context: ssl.SSLContext, host: str, port: int) -> Generator[Finding, None, bool]:
    try:
        with socket.create_connection((host, port), SECONDS) as plain, context.wrap_socket(plain, server_hostname=host):
            pass
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in WRONG_NAME:
            yield passed("CA", "signed the server's certificate")
            remedy = "use the name in the certificate, or have the coordinator add this one (subjectAltName)"
            yield failed("certificate", f"it is not for the name {host!r}", remedy)
        else:
            why = REASONS.get(error.verify_code, error.verify_message)
            remedy = "does a proxy in between inspect TLS? else get the coordinator's present ca.crt"
            if error.verify_code in (9, 10):
                remedy = "look at this machine's clock; else the coordinator renews the certificate"
            yield failed("CA", f"the server's certificate {why}", remedy)
        return False
    except ssl.SSLError:
        yield failed("TLS", "the server does not speak TLS there", "is the port right? the server must have TLS")
        return False
    except OSError:
        yield failed("TLS", "the server ended the connection", "a firewall in between may allow no TLS: ask IT")
        return False
    yield passed("CA", "signed the server's certificate")
    yield passed("certificate", f"is for the name {host!r}")
    return True


def _server_findings(
    context: ssl.SSLContext, place: tuple[str, int], key: ec.EllipticCurvePrivateKey | None
) -> Iterator[Finding]:
    try:
        status, date, _ = _asked(context, place, b"", {})
    except (OSError, HTTPException, ValueError):
        yield failed("server", "it does not answer HTTP", "is superlink's port that of the server, or of its proxy?")
        return
    ahead = None if date is None else time.time() - date
    if ahead is None:
        yield Finding("WARN", "clock", "the server does not say its time", "keep this machine's clock by NTP")
    elif not -MOST_BEHIND < ahead < MOST_AHEAD + 1:
        said = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's, which then refuses the key"
        yield failed("clock", f"this machine's clock is {said}", "keep this machine's clock by NTP")
    else:
        yield passed("clock", "this machine's and the server's agree")
    if status != 401:
        remedy = "the coordinator must start it with --enable-supernode-auth, and let /v1/fleet/ through its proxy"
        yield failed("server", f"it answers a request without a key with {status}, not 401", remedy)
    elif key is None:
        yield Finding("SKIP", "registration", "there is no key to ask with")
    else:
        yield _registration(context, place, key)


def _registration(context: ssl.SSLContext, place: tuple[str, int], key: ec.EllipticCurvePrivateKey) -> Finding:
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    stamp = datetime.now(UTC).isoformat()
    signed = key.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
    headers = {"flwr-public-key": b64encode(public).decode(), "flwr-signature": b64encode(signed).decode(),
               "flwr-timestamp": stamp}  # fmt: skip
    try:
        # A protobuf message with one field, the key, of 128 to 16,383 bytes.
        size = bytes([len(public) & 0x7F | 0x80, len(public) >> 7])
        status, _, body = _asked(context, place, b"\x0a" + size + public, headers)
        code = json.loads(body).get("code")
    except (OSError, HTTPException, ValueError, AttributeError):
        status, code = 0, None
    if code == REGISTERED:
        return passed("registration", "the server knows this site's key")
    if code == NOT_REGISTERED:
        return failed("registration", "the server does not know this key", "send the .pub file to the coordinator")
    return failed("registration", f"the server does not accept the key (status {status})", "look at clock and versions")


def _asked(
    context: ssl.SSLContext, place: tuple[str, int], body: bytes, headers: dict[str, str]
) -> tuple[int, float | None, bytes]:
    """Post a request; return the status, the server's time if it says it, and the first of its answer."""
    server = HTTPSConnection(*place, timeout=SECONDS, context=context)
    try:
        server.request("POST", ACTIVATE, body, {"Content-Type": "application/protobuf", **headers})
        answer = server.getresponse()
        said = answer.getheader("Date")
        return answer.status, parsedate_to_datetime(said).timestamp() if said else None, answer.read(2**16)
    finally:
        server.close()

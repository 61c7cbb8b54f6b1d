"""Each step of the way to the server is told apart, and each failure has its remedy.

Nothing is activated.
"""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from fastapi import HTTPException
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supercore.error import FlowerError
from flwr.superlink.routers.fleet.node_auth import authenticate_node
from flwr.superlink.servicer.fleet.fleet_handlers import activate_node

from fl_dpbayes.config.site_file import Connection
from fl_dpbayes.coordinator.certificates import write_certificates
from fl_dpbayes.hospital.check_connection import connection_findings, secret_findings
from fl_dpbayes.hospital.findings import Finding
from fl_dpbayes.hospital.keys import write_new


class Server(ThreadingHTTPServer):
    """A SuperLink's door: Flower's own code looks at the signature and at the request.

    Its state is a mock.
    """

    known, authenticates, ahead = True, True, 0.0

    def __init__(self, certificates: Path | None) -> None:
        super().__init__(("127.0.0.1", 0), Door)
        self.state = Mock()
        if certificates is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
            self.socket = context.wrap_socket(self.socket, server_side=True)


class Door(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        request = ActivateNodeRequest.FromString(
            self.rfile.read(int(self.headers["content-length"]))
        )
        self.server.state.get_node_id_by_public_key.return_value = 7 if self.server.known else None
        status, said = 200, ""
        try:
            if self.server.authenticates:
                asked = SimpleNamespace(protobuf_request=request)
                authenticate_node(SimpleNamespace(headers=self.headers, state=asked))
            activate_node(request, self.server.state)
        except HTTPException as error:
            status = error.status_code
        except FlowerError as error:
            status, said = 400, f'{{"code": {int(error.code)}}}'
        self.send_response_only(status)
        self.send_header("Date", formatdate(time.time() + self.server.ahead, usegmt=True))
        self.end_headers()
        self.wfile.write(said.encode())


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> tuple[Path, Path]:
    """What two coordinators' `provision` made."""
    found = tmp_path_factory.mktemp("ours"), tmp_path_factory.mktemp("theirs")
    for folder in found:
        write_certificates(folder, "localhost")
    return found


@pytest.fixture
def server(places, request) -> Iterator[Server]:
    made = Server(places[0] if getattr(request, "param", "TLS") == "TLS" else None)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def try_way(server, places, tmp_path):
    """Try the way to the server with changes of the connection; return name -> finding."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP384R1()).private_bytes(
        Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
    )
    own = tmp_path / "node.key"
    write_new(own, key, 0o600)
    write_new(tmp_path / "node.secret", b"secret", 0o640)

    def tried(**changes: object) -> dict[str, Finding]:
        values = {
            "superlink": f"localhost:{server.server_port}",
            "ca": places[0] / "ca.crt",
            "key": own,
            "secret": tmp_path / "node.secret",
        }
        connection = Connection.model_validate(values | changes)
        site_file = SimpleNamespace(connection=connection)
        path = tmp_path / "north.toml"
        findings = [*secret_findings(path, site_file), *connection_findings(path, site_file)]
        return {finding.subject: finding for finding in findings}

    return tried


def only_failure(found: dict[str, Finding]) -> tuple[str, str]:
    (one,) = (finding for finding in found.values() if finding.status == "FAIL")
    assert one.remedy
    return one.subject, one.message


def test_each_step_passes_and_no_node_is_activated(server, try_way) -> None:
    steps = ("key", "CA file", "name", "port", "CA", "certificate", "clock", "registration")
    assert {what: one.status for what, one in try_way().items()} == dict.fromkeys(steps, "PASS")
    server.state.activate_node.assert_not_called()


def test_wrong_certificate_authority_name_and_port_are_told_apart(
    server, try_way, places, monkeypatch
) -> None:
    assert only_failure(try_way(ca=places[1] / "ca.crt")) == (
        "CA",
        "the server's certificate is of another CA",
    )
    assert only_failure(try_way(superlink="localhost:9")) == (
        "port",
        "9 of localhost: nothing listens there",
    )
    known = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *more, **keys: known("127.0.0.1", *more, **keys)
    )
    found = try_way(superlink=f"other.example:{server.server_port}")
    assert only_failure(found) == ("certificate", "it is not for the name 'other.example'")
    assert found["CA"].status == "PASS"
    assert only_failure(try_way(ca=places[0] / "absent.crt"))[0] == "CA file"
    assert only_failure(try_way(ca=places[0] / "ca.key"))[1].endswith("ca.key is no certificate")
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=socket.gaierror))
    assert only_failure(try_way(superlink="nowhere.invalid:443"))[0] == "name"


@pytest.mark.parametrize("server", ["plain"], indirect=True)
def test_server_without_tls(try_way) -> None:
    assert only_failure(try_way()) == ("TLS", "the server does not speak TLS there")


def test_expired_certificate_is_told_from_a_foreign_one(try_way, monkeypatch) -> None:
    wrap = ssl.SSLContext.wrap_socket

    def expired(context: ssl.SSLContext, *arguments, **keys):
        error = ssl.SSLCertVerificationError(1, "certificate has expired")
        error.verify_code, error.verify_message = 10, ""
        if keys.get("server_hostname"):
            raise error
        return wrap(context, *arguments, **keys)

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", expired)
    assert only_failure(try_way()) == ("certificate", "it has expired")


@pytest.mark.parametrize(("ahead", "fails"), [(600.0, True), (-30.0, True), (30.0, False)])
def test_clock(server, try_way, ahead: float, fails: bool) -> None:
    server.ahead = ahead
    assert (try_way()["clock"].status == "FAIL") == fails


def test_key_that_the_server_does_not_know_or_others_may_read(server, try_way, tmp_path) -> None:
    server.known = False
    assert only_failure(try_way()) == ("registration", "the server does not know this key")
    (tmp_path / "node.key").chmod(0o644)
    found = try_way()
    assert (only_failure(found)[0], found["registration"].status) == ("key", "SKIP")
    assert only_failure(try_way(key=tmp_path / "absent.key"))[1].endswith("does not exist")
    (tmp_path / "node.key").chmod(0o600)
    server.known = True
    (tmp_path / "node.secret").chmod(0o644)
    assert only_failure(try_way())[1].endswith("node.secret can be read by others than it may")
    (tmp_path / "node.secret").unlink()
    assert only_failure(try_way())[1].endswith("node.secret does not exist")


def test_server_that_does_not_ask_for_keys(server, try_way) -> None:
    server.authenticates = False
    assert only_failure(try_way())[1] == "it answers a request without a key with 400, not 401"

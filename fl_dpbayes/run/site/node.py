"""Starts a site's SuperNode so that only approved bundles run. The one file that uses names that Flower keeps private.

Two locks, of which each holds alone. Flower is told to trust bundles with the signature of a key that lives in this
process only; and where it receives a bundle, a gate signs what the site allows and empties whatever it does not. The
gate is tried on Flower's own loop before the node connects: a Flower that goes round it starts no node.
"""

import atexit
import base64
import hashlib
import io
import json
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from stat import S_IMODE
from typing import Any, NoReturn

import tomli_w

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.site_file import Connection, read_own_site_file
from fl_dpbayes.run.flower_engine import APP_PROJECT
from fl_dpbayes.run.site.bundle import PROJECT, Bundle, decision, logger, read_bundle

SIGNER, LOOPBACK = "this-site", "127.0.0.1"
TRY_SECONDS = 60.0
# Neither telemetry nor a question for updates leaves a hospital, and no package is fetched for a bundle.
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "PYTHONUNBUFFERED": "1",
}  # fmt: skip
Decide = Callable[[Bundle, bytes, str], str]
Connect = Callable[..., Any]


class Gate:
    """Stands between Flower's connection and its loop, where every bundle passes.

    `decide`: bundle, bytes, what the SuperLink said wrongly -> an empty text, or why it may not run. `seen`: SHA-256 of each bundle that has passed.
    """

    def __init__(self, decide: Decide) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        self.decide = decide
        self.seen: list[str] = []
        self._key = Ed25519PrivateKey.generate()
        public = self._key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        self.trusted = {SIGNER: public.decode()}

    def around(self, connect: Connect) -> Connect:
        """Put the gate around Flower's connection, a context manager that yields its callbacks."""

        @contextmanager
        def connection(*args: Any, **kwargs: Any) -> Iterator[tuple[Any, ...]]:
            with connect(*args, **kwargs) as (node_id, receive, send, get_run, get_fab, *others):
                runs: dict[int, Any] = {}

                def checked_run(run_id: int) -> Any:
                    runs.clear()
                    runs[run_id] = get_run(run_id)
                    return runs[run_id]

                def checked_fab(fab_hash: str, run_id: int) -> Any:
                    return self._passed(get_fab(fab_hash, run_id), runs.get(run_id))

                yield (node_id, receive, send, checked_run, checked_fab, *others)

        return connection

    def _passed(self, fab: Any, run: Any) -> Any:
        """Return the bundle signed if it may run, else with nothing in it and no signature, which Flower refuses."""
        content = bytes(fab.content)
        bundle = read_bundle(content)
        reason = self.decide(bundle, content, _mismatch(bundle, fab, run))
        self.seen.append(bundle.sha256)
        del self.seen[:-10]
        if reason:
            logger.warning("bundle %s refused: %s", bundle.sha256, reason)
            return type(fab)(bundle.sha256, b"", {})
        logger.info("bundle %s runs", bundle.sha256)
        digest = hashlib.sha256(content).digest()
        signature = base64.urlsafe_b64encode(self._key.sign(bytes(8) + digest)).decode()
        verified = {"valid_license": SIGNER, SIGNER: json.dumps({"signed_at": 0, "signature": signature})}
        return type(fab)(bundle.sha256, content, verified)


def _mismatch(bundle: Bundle, fab: Any, run: Any) -> str:
    """Say where the SuperLink tells other things of a bundle than its bytes do: an app is looked up by them."""
    if bundle.problem:
        return ""
    told = [run.fab_hash, fab.hash_str, run.fab_id, run.fab_version] if run is not None else []
    if told != [bundle.sha256, bundle.sha256, bundle.app, bundle.version]:
        return "the SuperLink names another bundle than it sent"
    return "" if run.primary_task_type in ("", "flwr-serverapp") else "the run is of another kind"


def try_gate(gate: Gate) -> None:
    """Run Flower's own loop over a made-up connection: a foreign bundle must be refused, an approved one go through.

    Flower's private names are in place of `install` already. Raises UserError if the loop does not ask the gate, lets
    the foreign bundle through, or cannot be tried.
    """
    decide, gate.decide = gate.decide, lambda bundle, _, mismatch: mismatch or bundle.problem
    trial = _Trial(gate)
    thread = threading.Thread(target=trial.run, daemon=True)
    loggers = logging.getLogger("flwr"), logger
    levels = [each.level for each in loggers]
    try:
        for each in loggers:
            each.setLevel(logging.CRITICAL)
        thread.start()
        thread.join(TRY_SECONDS)
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)
        gate.decide = decide
        gate.seen.clear()
    if trial.found != "":
        raise UserError(
            f"the node does not start: {trial.found}. This Flower ({version('flwr')}) does not let a site decide "
            "what runs; install the version that this package asks for"
        )


class _Over(BaseException):
    """Ends Flower's loop, which ends by itself only with the process."""


class _Trial:
    """One run of Flower's loop; `found`: what is wrong, empty if the gate holds."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.found: str = f"its own check did not end within {TRY_SECONDS:.0f} s"
        self.bundles = [_with_code(own_bundle()), own_bundle()]
        self.asked, self.replies, self.pulled = 0, list[Any](), list[int]()
        self.objects: dict[str, bytes] = {}

    def run(self) -> None:
        try:
            from flwr.supercore.object_store import ObjectStoreFactory
            from flwr.supernode import start_client_internal as private
            from flwr.supernode.cli.flower_supernode import start_client_internal
            from flwr.supernode.nodestate import NodeStateFactory

            module: Any = private
            kept = module.http_request_response, module.register_signal_handlers
            module.http_request_response, module.register_signal_handlers = self._connection, lambda **_: None
            try:
                start_client_internal(
                    state_factory=NodeStateFactory(objectstore_factory=ObjectStoreFactory()),
                    server_address="127.0.0.1:1", node_config={}, insecure=True, isolation="process",
                    trusted_entities=self.gate.trusted,
                )  # fmt: skip
            finally:
                module.http_request_response, module.register_signal_handlers = kept
        except _Over:
            self.found = self._verdict()
        # Whatever Flower raises where a private name is another: the node must not start.
        except BaseException as error:
            self.found = f"Flower's loop cannot be tried ({type(error).__name__}: {error})"

    def _verdict(self) -> str:
        from flwr.common.constant import ErrorCode

        foreign, thin = (hashlib.sha256(bundle).hexdigest() for bundle in self.bundles)
        if self.gate.seen != [foreign, thin]:
            return "Flower did not ask which bundles may run"
        answers = [
            (reply.metadata.reply_to_message_id, reply.error.code) for reply in self.replies if reply.has_error()
        ]
        if 1 in self.pulled or answers != [("1", ErrorCode.INVALID_FAB)]:
            return "Flower let a foreign bundle through"
        return "" if self.pulled == [2] else "Flower did not take an approved bundle"

    @contextmanager
    def _connection(self, *_: Any) -> Iterator[tuple[Any, ...]]:
        yield (1, self._receive, self._send, self._run, self._fab, self._pull, print, self._confirm)

    def _receive(self) -> Any:
        from flwr.app import Message, RecordDict
        from flwr.app.metadata import Metadata
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

        self.asked += 1
        if self.asked > len(self.bundles):
            raise _Over
        metadata = Metadata(self.asked, str(self.asked), 2, 1, "", "", time.time(), 3600.0, "query")
        message = Message(RecordDict(), metadata=metadata)  # type: ignore[call-overload]
        self.objects = {key: part.deflate() for key, part in get_all_nested_objects(message).items()}
        return message, get_object_tree(message)

    def _send(self, message: Any, *_: Any) -> tuple[set[str], str]:
        self.replies.append(message)
        return set(), ""  # nothing of it is asked for, so nothing is pushed

    def _run(self, run_id: int) -> Any:
        from flwr.supercore.run import Run

        run, bundle = Run.create_empty(run_id), read_bundle(self.bundles[run_id - 1])
        run.fab_id, run.fab_version, run.fab_hash = bundle.app, bundle.version, bundle.sha256
        return run

    def _fab(self, fab_hash: str, run_id: int) -> Any:
        from flwr.supercore.fab import Fab

        return Fab(fab_hash, self.bundles[run_id - 1], {})

    def _pull(self, _: int, object_id: str) -> bytes:
        return self.objects[object_id]

    def _confirm(self, run_id: int, _: str) -> None:
        self.pulled.append(run_id)
        raise _Over


def own_bundle() -> bytes:
    """Build the thin bundle of the installed version, as `flwr run` sends it from this machine."""
    from flwr.cli.build import build_fab_from_files

    project = APP_PROJECT.format(version=version("fl-dpbayes")).encode()
    return build_fab_from_files({PROJECT: project})[0]


def _with_code(bundle: bytes) -> bytes:
    buffer = io.BytesIO(bundle)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("foreign.py", "raise SystemExit")
    return buffer.getvalue()


def install(gate: Gate) -> None:
    """Put the gate where Flower connects. Raises UserError if there is no such place."""
    try:
        from flwr.supernode import start_client_internal as module

        module._init_connection = gate.around(module._init_connection)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"the node does not start: this Flower ({version('flwr')}) has no place where a site decides what runs "
            f"({error}); install the version that this package asks for"
        ) from None


def start_node(site_file: Path) -> NoReturn:
    """Start a site's SuperNode in this process, until it is stopped.

    Raises UserError if the site file names no connection, a key can be read by others, or the gate does not hold.
    """
    connection = _connection_of(site_file)
    _check_secrets(connection)
    home = _prepare_home()
    gate = Gate(lambda bundle, content, mismatch: decision(site_file, bundle, content, mismatch))
    install(gate)
    try_gate(gate)
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler())
    logger.info("bundle of the version installed here: %s", hashlib.sha256(own_bundle()).hexdigest())
    trusted, node = home / "trusted.yaml", home / "node.toml"
    # JSON is YAML.
    trusted.write_text(json.dumps(gate.trusted), encoding="utf-8")
    node.write_text(tomli_w.dumps({"site-file": str(site_file.resolve())}), encoding="utf-8")
    sys.argv = [
        "flower-supernode", "--root-certificates", str(connection.ca), "--superlink", connection.superlink,
        "--auth-supernode-private-key", str(connection.key), "--host", LOOPBACK, "--port", str(connection.port),
        "--isolation", connection.isolation, "--trusted-entities", str(trusted), "--node-config", str(node),
    ]  # fmt: skip
    if connection.isolation == "process":
        sys.argv += ["--superexec-auth-secret-file", str(connection.secret)]
    from flwr.supernode.cli.flower_supernode import flower_supernode

    flower_supernode()
    raise SystemExit(1)


def start_app(site_file: Path) -> NoReturn:
    """Become the process that runs the app for a site's node, under process isolation; best as another user.

    It takes bundles from the node on this machine alone. Raises UserError if the site file names no connection.
    """
    connection = _connection_of(site_file)
    if connection.isolation != "process":
        raise UserError(f"site file {site_file}: connection.isolation is 'subprocess', so the node runs the app itself")
    _prepare_home()
    command = ["flower-superexec", "--insecure", "--runtime-api-address", f"{LOOPBACK}:{connection.port}"]
    command += ["--superexec-auth-secret-file", str(connection.secret)]
    os.execvp(command[0], command)


def _connection_of(site_file: Path) -> Connection:
    connection = read_own_site_file(site_file).connection
    if connection is None:
        raise UserError(f'site file {site_file} names no coordinator: add [connection] with superlink = "HOST:PORT"')
    return connection


def _check_secrets(connection: Connection) -> None:
    secrets = [(connection.key, 0o077, "600")]
    if connection.isolation == "process":
        secrets.append((connection.secret, 0o007, "640"))
    for path, forbidden, mode in secrets:
        if not path.is_file():
            raise UserError(f"{path} does not exist: `fl-dpbayes site keys SITE_FILE` makes it")
        if S_IMODE(path.stat().st_mode) & forbidden:
            raise UserError(f"{path} can be read by others than it may: chmod {mode} {path}")
    if not connection.ca.is_file():
        raise UserError(f"{connection.ca} does not exist: it is the coordinator's ca.crt")


def _prepare_home() -> Path:
    """Give Flower an empty folder of its own: it runs again what it finds installed there, without a look."""
    home = Path(tempfile.mkdtemp(prefix="fl-dpbayes-node-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    bin_folder = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ.update(ENVIRONMENT, FLWR_HOME=str(home), PATH=bin_folder)
    return home

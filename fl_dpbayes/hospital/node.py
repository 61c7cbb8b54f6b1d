"""Starts a site's SuperNode so that only approved bundles run.

The one file that uses names that Flower keeps private. Two locks, of which each holds alone: Flower
trusts only bundles signed with a key of this process, and a gate signs what the site allows and
empties the rest. The gate is tried on Flower's own loop before the node connects: a Flower that
goes round it starts no node.
"""

import atexit
import base64
import hashlib
import json
import logging
import os
import shutil
import ssl
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import tomli_w
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fl_dpbayes.config import Connection
from fl_dpbayes.engine.flower_command import APP_PROJECT, ENVIRONMENT
from fl_dpbayes.errors import UserError
from fl_dpbayes.hospital.bundle import PROJECT, Bundle, decision, logger, read_bundle
from fl_dpbayes.hospital.check_connection import secret_findings
from fl_dpbayes.hospital.keys import site_connection

SIGNER = "this-site"
LOOPBACK = "127.0.0.1"
SERVER_APP = "flwr-serverapp"

# The two runs of the trial connection.
FOREIGN_RUN = 1
APPROVED_RUN = 2

# Takes a bundle, its bytes and how the SuperLink misnamed it; returns why it may not run, or "".
Decide = Callable[[Bundle, bytes, str], str]


class Gate:
    """Stands between Flower's connection and its loop, where every bundle passes.

    Attributes:
        decide: Says why a bundle may not run; an empty text lets it run.
        checked_bundles: SHA-256 of the last ten bundles that came to the gate.
        trusted: The public key that Flower is told to trust, by the name of its signer.
    """

    def __init__(self, decide: Decide) -> None:
        self.decide = decide
        self.checked_bundles: list[str] = []
        self._key = Ed25519PrivateKey.generate()
        public_key = self._key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        self.trusted = {SIGNER: public_key.decode()}

    def around(self, connect: Callable[..., Any]) -> Callable[..., Any]:
        """Put the gate around Flower's connection.

        Args:
            connect: Flower's context manager, which yields the node's id and its callbacks.

        Returns:
            The same context manager, whose `get_fab` passes bundles through the gate.
        """

        @contextmanager
        def gated_connection(*args: Any, **kwargs: Any) -> Iterator[tuple[Any, ...]]:
            with connect(*args, **kwargs) as (node_id, receive, send, get_run, get_fab, *callbacks):
                runs: dict[int, Any] = {}

                def get_noted_run(run_id: int) -> Any:
                    runs.clear()
                    runs[run_id] = get_run(run_id)
                    return runs[run_id]

                def get_gated_fab(fab_hash: str, run_id: int) -> Any:
                    return self._sign_or_empty(get_fab(fab_hash, run_id), runs.get(run_id))

                yield (node_id, receive, send, get_noted_run, get_gated_fab, *callbacks)

        return gated_connection

    def _sign_or_empty(self, fab: Any, run: Any) -> Any:
        """Sign a bundle that may run; empty any other, unsigned, so that Flower refuses it."""
        content = bytes(fab.content)
        bundle = read_bundle(content)
        mismatch = "" if bundle.problem else _mismatch(bundle, fab, run)
        reason = self.decide(bundle, content, mismatch)
        self.checked_bundles = [*self.checked_bundles[-9:], bundle.sha256]
        if reason:
            logger.warning("bundle %s refused: %s", bundle.sha256, reason)
            return type(fab)(bundle.sha256, b"", {})
        logger.info("bundle %s runs", bundle.sha256)
        # Flower signs the time of signing, eight bytes, and the digest.
        signature = self._key.sign(bytes(8) + hashlib.sha256(content).digest())
        encoded_signature = base64.urlsafe_b64encode(signature).decode()
        verification = json.dumps({"signed_at": 0, "signature": encoded_signature})
        verifications = {"valid_license": SIGNER, SIGNER: verification}
        return type(fab)(bundle.sha256, content, verifications)


def _mismatch(bundle: Bundle, fab: Any, run: Any) -> str:
    """Say where the SuperLink names another bundle than it sent: an app is looked up by that."""
    if (
        not run
        or run.fab_hash != bundle.sha256
        or fab.hash_str != bundle.sha256
        or run.fab_id != bundle.app
        or run.fab_version != bundle.version
    ):
        return "the SuperLink names another bundle than it sent"
    if run.primary_task_type not in ("", SERVER_APP):
        return "the run is of another kind"
    return ""


def install(gate: Gate) -> None:
    """Put a gate where Flower connects.

    Args:
        gate: Asked for every bundle from now on.

    Raises:
        UserError: If this Flower has no such place.
    """
    try:
        from flwr.supernode import start_client_internal as flower_loop

        flower_loop._init_connection = gate.around(flower_loop._init_connection)
    except (ImportError, AttributeError) as error:
        raise _unfit_flower(f"it has no place where a site decides what runs ({error})") from None


def _unfit_flower(problem: str) -> UserError:
    refusal = (
        f"the node does not start: this Flower ({version('flwr')}) does not let a site "
        "decide what runs"
    )
    return UserError(f"{refusal}: {problem}. Install the version that this package asks for")


def try_gate(gate: Gate) -> None:
    """Run Flower's loop on a made-up connection, with a foreign bundle and an approved one.

    Args:
        gate: Installed already; it decides as before once the trial is over.

    Raises:
        UserError: Unless Flower refuses the foreign bundle and runs the approved one.
    """
    decide = gate.decide
    gate.decide = lambda bundle, _, mismatch: mismatch or bundle.problem
    logging.disable(logging.ERROR)
    problem = _trial_problem(gate)
    logging.disable(logging.NOTSET)
    gate.decide = decide
    gate.checked_bundles = []
    if problem:
        raise _unfit_flower(problem)


class _TrialOver(BaseException):
    """Ends Flower's loop, which ends by itself only with the process."""


class _TrialConnection:
    """Stands in for the SuperLink: one message of a foreign bundle's run, one of an approved one's.

    Attributes:
        bundles: The bytes of each run's bundle.
        replies: What the node answered: the number of the message, and its error code.
        started_runs: Runs whose message the node took, so whose bundle passed.
    """

    def __init__(self) -> None:
        self.bundles = {
            FOREIGN_RUN: own_bundle({"foreign.py": b""}),
            APPROVED_RUN: own_bundle(),
        }
        self.replies: list[tuple[str, int]] = []
        self.started_runs: list[int] = []
        self._waiting_runs = list(self.bundles)
        self._objects: dict[str, bytes] = {}

    def callbacks(self) -> tuple[object, ...]:
        """List what Flower's own connection yields, in its order."""
        return (
            1,
            self.receive,
            self.send,
            self.get_run,
            self.get_fab,
            self.get_object,
            print,
            self.confirm,
        )

    def receive(self) -> Any:
        """Hand out the next run's message."""
        from flwr.app import Message, RecordDict
        from flwr.app.metadata import Metadata
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            get_object_tree,
        )

        if not self._waiting_runs:
            raise _TrialOver
        run_id = self._waiting_runs.pop(0)
        metadata = Metadata(run_id, str(run_id), 2, 1, "", "", time.time(), 3600.0, "query")
        message = Message(RecordDict(), metadata=metadata)  # type: ignore[call-overload]
        for object_id, nested_object in get_all_nested_objects(message).items():
            self._objects[object_id] = nested_object.deflate()
        return message, get_object_tree(message)

    def send(self, message: Any, *_: Any) -> tuple[set[str], str]:
        """Note an answer of the node."""
        self.replies.append((message.metadata.reply_to_message_id, message.error.code))
        return set(), ""

    def get_run(self, run_id: int) -> Any:
        """Describe a run as the SuperLink does."""
        from flwr.supercore.run import Run

        run = Run.create_empty(run_id)
        bundle = read_bundle(self.bundles[run_id])
        run.fab_id = bundle.app
        run.fab_version = bundle.version
        run.fab_hash = bundle.sha256
        return run

    def get_fab(self, fab_hash: str, run_id: int) -> Any:
        """Hand out a run's bundle."""
        from flwr.supercore.fab import Fab

        return Fab(fab_hash, self.bundles[run_id], {})

    def get_object(self, _: int, object_id: str) -> bytes:
        """Hand out a part of a message."""
        return self._objects[object_id]

    def confirm(self, run_id: int, _: str) -> None:
        """Note that the node took a run's message."""
        self.started_runs.append(run_id)
        raise _TrialOver


@contextmanager
def _replaced(module: ModuleType, replacements: Mapping[str, object]) -> Iterator[None]:
    """Replace names of a module, which must have them, and put them back."""
    originals = {name: getattr(module, name) for name in replacements}
    try:
        for name, replacement in replacements.items():
            setattr(module, name, replacement)
        yield
    finally:
        for name, original in originals.items():
            setattr(module, name, original)


def _trial_problem(gate: Gate) -> str:
    """Say what is wrong with Flower's loop; nothing, if it obeys the gate."""
    try:
        connection = _TrialConnection()
        _run_loop(gate, connection)
    except _TrialOver:
        return _disobedience(gate, connection)
    # Whatever Flower raises where a private name is another: the node must not start.
    except BaseException as error:
        return f"its loop cannot be tried ({type(error).__name__}: {error})"
    return "its loop ended"


def _run_loop(gate: Gate, connection: _TrialConnection) -> None:
    """Run the loop of Flower's SuperNode on a trial connection."""
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supernode import start_client_internal as flower_loop
    from flwr.supernode.cli.flower_supernode import start_client_internal as start_loop
    from flwr.supernode.nodestate import NodeStateFactory

    replacements = {
        "http_request_response": lambda *_: nullcontext(connection.callbacks()),
        "register_signal_handlers": lambda **_: None,
    }
    with _replaced(flower_loop, replacements):
        start_loop(
            state_factory=NodeStateFactory(objectstore_factory=ObjectStoreFactory()),
            server_address="127.0.0.1:1",
            node_config={},
            insecure=True,
            isolation="process",
            trusted_entities=gate.trusted,
        )


def _disobedience(gate: Gate, connection: _TrialConnection) -> str:
    """Say where the loop, once it is over, did not obey the gate."""
    from flwr.common.constant import ErrorCode

    if FOREIGN_RUN in connection.started_runs:
        return "it let a foreign bundle through"
    digests = [hashlib.sha256(bundle).hexdigest() for bundle in connection.bundles.values()]
    if gate.checked_bundles != digests:
        return "it did not ask which bundles may run"
    foreign_refused = connection.replies == [(str(FOREIGN_RUN), ErrorCode.INVALID_FAB)]
    if not foreign_refused or connection.started_runs != [APPROVED_RUN]:
        return "it did not answer as it should"
    return ""


def own_bundle(extra_files: Mapping[str, bytes] | None = None) -> bytes:
    """Build the thin bundle of the installed version, as `flwr run` sends it.

    Args:
        extra_files: Further files by name; with any, no site runs the bundle.

    Returns:
        The bundle's bytes.
    """
    from flwr.cli.build import build_fab_from_files

    project = APP_PROJECT.format(version=version("fl-dpbayes")).encode()
    files = {PROJECT: project, **(extra_files or {})}
    with warnings.catch_warnings():
        # Flower calls a library by a name that the library has given up.
        warnings.simplefilter("ignore", DeprecationWarning)
        return build_fab_from_files(files)[0]


def start_node(site_file: Path) -> NoReturn:
    """Run a site's SuperNode until it is stopped.

    Args:
        site_file: With a connection, whose private keys exist.

    Raises:
        UserError: Without a connection, private keys or a gate that holds.
    """
    site, connection = site_connection(site_file)
    for finding in secret_findings(site_file, site):
        if finding.status == "FAIL":
            raise UserError(f"{finding.message}: {finding.remedy}")
    home = _prepare_home()
    gate = Gate(lambda bundle, content, mismatch: decision(site_file, bundle, content, mismatch))
    install(gate)
    try_gate(gate)
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler())
    sys.argv = _node_command(site_file, connection, gate, home)
    from flwr.supernode.cli.flower_supernode import flower_supernode

    try:
        # Flower looks at it in a thread that outlives the failure.
        ssl.create_default_context(cafile=connection.ca)
        flower_supernode()
    except (ssl.SSLError, RuntimeError) as error:
        question = (
            f"is {connection.ca} a certificate, and connection.port, {connection.port}, free "
            "on this machine?"
        )
        raise UserError(f"the node does not start ({error}): {question}") from error
    raise SystemExit(1)


def _node_command(site_file: Path, connection: Connection, gate: Gate, home: Path) -> list[str]:
    """Write what the SuperNode reads into its home, and return its command line."""
    trusted = home / "trusted.yaml"
    # JSON is YAML.
    trusted.write_text(json.dumps(gate.trusted), encoding="utf-8")
    node_config = home / "node.toml"
    node_config.write_text(tomli_w.dumps({"site-file": str(site_file.resolve())}), encoding="utf-8")
    options = {
        "root-certificates": connection.ca,
        "superlink": connection.superlink,
        "auth-supernode-private-key": connection.key,
        "host": LOOPBACK,
        "port": connection.port,
        "isolation": "process",
        "superexec-auth-secret-file": connection.secret,
        "trusted-entities": trusted,
        "node-config": node_config,
    }
    command = ["flower-supernode"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    return command


def start_app(site_file: Path) -> NoReturn:
    """Become the process, best of another user, that runs this machine's bundles.

    Args:
        site_file: With a connection.

    Raises:
        UserError: If it names no connection.
    """
    connection = site_connection(site_file)[1]
    _prepare_home()
    command = [
        "flower-superexec",
        "--insecure",
        "--runtime-api-address",
        f"{LOOPBACK}:{connection.port}",
        "--superexec-auth-secret-file",
        str(connection.secret),
    ]
    os.execvp(command[0], command)


def _prepare_home() -> Path:
    """Give Flower an empty folder, where it finds nothing to run, and no proxy to the node."""
    home = Path(tempfile.mkdtemp(prefix="fl-dpbayes-node-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    unproxied = (os.environ.get("NO_PROXY"), os.environ.get("no_proxy"), LOOPBACK)
    no_proxy = ",".join(host for host in unproxied if host)
    os.environ.update(
        ENVIRONMENT, FLWR_HOME=str(home), PATH=programs, NO_PROXY=no_proxy, no_proxy=no_proxy
    )
    return home

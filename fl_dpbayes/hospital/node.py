"""Starts a site's SuperNode so that only approved bundles run.

The one file that uses names that Flower keeps private.

Two locks, of which each holds alone. Flower is told to trust bundles with the signature of a key
that lives in this process only; and where it receives a bundle, a gate signs what the site allows
and empties whatever it does not. The gate is tried on Flower's own loop before the node connects: a
Flower that goes round it starts no node.
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
from stat import S_IMODE
from typing import Any, NoReturn
from unittest.mock import patch

import tomli_w
from rich.console import Console

from fl_dpbayes.config import Connection
from fl_dpbayes.engine.flower_command import APP_PROJECT, ENVIRONMENT
from fl_dpbayes.errors import UserError
from fl_dpbayes.hospital.bundle import PROJECT, Bundle, decision, logger, read_bundle
from fl_dpbayes.hospital.keys import site_connection

SIGNER, LOOPBACK = "this-site", "127.0.0.1"
SERVER_APP = "flwr-serverapp"


class Gate:
    """Stands between Flower's connection and its loop, where every bundle passes.

    `decide`: bundle, its bytes, what was said wrongly of it -> why it may not run. `seen`: SHA-256
    of the last bundles.
    """

    def __init__(self, decide: Callable[[Bundle, bytes, str], str]) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        self.decide = decide
        self.seen: list[str] = []
        self._key = Ed25519PrivateKey.generate()
        self.trusted = {
            SIGNER: self._key.public_key()
            .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
            .decode()
        }

    def around(self, connect: Callable[..., Any]) -> Callable[..., Any]:
        """Put the gate around Flower's connection, a context manager that yields its callbacks."""

        @contextmanager
        def connection(*args: Any, **kwargs: Any) -> Iterator[tuple[Any, ...]]:
            with connect(*args, **kwargs) as (node_id, receive, send, get_run, get_fab, *others):
                runs: dict[int, Any] = {}

                def noted_run(run_id: int) -> Any:
                    runs.clear()
                    return runs.setdefault(run_id, get_run(run_id))

                def passed_fab(fab_hash: str, run_id: int) -> Any:
                    return self._passed(get_fab(fab_hash, run_id), runs.get(run_id))

                yield (node_id, receive, send, noted_run, passed_fab, *others)

        return connection

    def _passed(self, fab: Any, run: Any) -> Any:
        """Return the bundle signed if it may run, else with nothing in it and no signature, which Flower refuses."""
        content = bytes(fab.content)
        bundle = read_bundle(content)
        reason = self.decide(bundle, content, "" if bundle.problem else _mismatch(bundle, fab, run))
        self.seen = [*self.seen[-9:], bundle.sha256]
        if reason:
            logger.warning("bundle %s refused: %s", bundle.sha256, reason)
            return type(fab)(bundle.sha256, b"", {})
        logger.info("bundle %s runs", bundle.sha256)
        # Flower signs the time of signing, eight bytes, and the digest.
        signature = self._key.sign(bytes(8) + hashlib.sha256(content).digest())
        signed = json.dumps(
            {"signed_at": 0, "signature": base64.urlsafe_b64encode(signature).decode()}
        )
        return type(fab)(bundle.sha256, content, {"valid_license": SIGNER, SIGNER: signed})


def _mismatch(bundle: Bundle, fab: Any, run: Any) -> str:
    """Say where the SuperLink tells other things of a bundle than its bytes do: an app is looked up by them."""
    told = run and [run.fab_hash, fab.hash_str, run.fab_id, run.fab_version]
    if told != [bundle.sha256, bundle.sha256, bundle.app, bundle.version]:
        return "the SuperLink names another bundle than it sent"
    return "" if run.primary_task_type in ("", SERVER_APP) else "the run is of another kind"


def install(gate: Gate) -> None:
    """Put the gate where Flower connects; UserError if there is no such place."""
    try:
        from flwr.supernode import start_client_internal as flower

        flower._init_connection = gate.around(flower._init_connection)
    except (ImportError, AttributeError) as error:
        raise _unfit(f"it has no place where a site decides what runs ({error})") from None


def _unfit(why: str) -> UserError:
    said = (
        f"the node does not start: this Flower ({version('flwr')}) does not let a site "
        "decide what runs"
    )
    return UserError(f"{said}: {why}. Install the version that this package asks for")


class _Over(BaseException):
    """Ends Flower's loop, which ends by itself only with the process."""


def try_gate(gate: Gate) -> None:
    """Run Flower's loop on a made-up connection: UserError unless it refuses a foreign bundle, not an approved one."""
    decide, gate.decide = gate.decide, lambda bundle, _, mismatch: mismatch or bundle.problem
    logging.disable(logging.ERROR)
    found = _trial(gate)
    logging.disable(logging.NOTSET)
    gate.decide, gate.seen = decide, []
    if found:
        raise _unfit(found)


def _trial(gate: Gate) -> str:
    """Say what is wrong with Flower's loop, in which run 1 has a foreign bundle and run 2 an approved one."""
    answers, taken, objects = list[tuple[str, int]](), list[int](), dict[str, bytes]()
    try:
        from flwr.app import Message, RecordDict
        from flwr.app.metadata import Metadata
        from flwr.common.constant import ErrorCode
        from flwr.supercore.fab import Fab
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            get_object_tree,
        )
        from flwr.supercore.object_store import ObjectStoreFactory
        from flwr.supercore.run import Run
        from flwr.supernode import start_client_internal
        from flwr.supernode.cli.flower_supernode import start_client_internal as loop
        from flwr.supernode.nodestate import NodeStateFactory

        flower: Any = start_client_internal
        bundles = {1: own_bundle({"foreign.py": b""}), 2: own_bundle()}
        waiting = iter(bundles)

        def receive() -> Any:
            if (number := next(waiting, 0)) == 0:
                raise _Over
            metadata = Metadata(number, str(number), 2, 1, "", "", time.time(), 3600.0, "query")
            message = Message(RecordDict(), metadata=metadata)  # type: ignore[call-overload]
            objects.update(
                {key: part.deflate() for key, part in get_all_nested_objects(message).items()}
            )
            return message, get_object_tree(message)

        def send(message: Any, *_: Any) -> tuple[set[str], str]:
            answers.append((message.metadata.reply_to_message_id, message.error.code))
            return set(), ""

        def get_run(number: int) -> Any:
            run, bundle = Run.create_empty(number), read_bundle(bundles[number])
            run.fab_id, run.fab_version, run.fab_hash = bundle.app, bundle.version, bundle.sha256
            return run

        def confirm(number: int, _: str) -> None:
            taken.append(number)
            raise _Over

        get_fab, get_object = (
            lambda fab_hash, number: Fab(fab_hash, bundles[number], {}),
            lambda _, key: objects[key],
        )
        connection = nullcontext((1, receive, send, get_run, get_fab, get_object, print, confirm))
        stood_in: dict[str, Any] = {"http_request_response": lambda *_: connection}
        with patch.multiple(flower, **stood_in, register_signal_handlers=lambda **_: None):
            loop(
                state_factory=NodeStateFactory(objectstore_factory=ObjectStoreFactory()),
                server_address="127.0.0.1:1",
                node_config={},
                insecure=True,
                isolation="process",
                trusted_entities=gate.trusted,
            )
    except _Over:
        if 1 in taken:
            return "it let a foreign bundle through"
        if gate.seen != [hashlib.sha256(bundle).hexdigest() for bundle in bundles.values()]:
            return "it did not ask which bundles may run"
        good = answers == [("1", ErrorCode.INVALID_FAB)] and taken == [2]
        return "" if good else "it did not answer as it should"
    # Whatever Flower raises where a private name is another: the node must not start.
    except BaseException as error:
        return f"its loop cannot be tried ({type(error).__name__}: {error})"
    return "its loop ended"


def own_bundle(more: Mapping[str, bytes] = {}) -> bytes:
    """Build the thin bundle of the installed version, as `flwr run` sends it.

    With more files, one that none runs.
    """
    from flwr.cli.build import build_fab_from_files

    with warnings.catch_warnings():
        # Of a library that Flower calls by a name it has given up.
        warnings.simplefilter("ignore", DeprecationWarning)
        return build_fab_from_files(
            {PROJECT: APP_PROJECT.format(version=version("fl-dpbayes")).encode(), **more}
        )[0]


def start_node(site_file: Path, _: Console | None = None) -> NoReturn:
    """Run a site's SuperNode until it is stopped.

    UserError without a connection, private keys or a gate that holds.
    """
    connection = site_connection(site_file)[1]
    _check_secrets(connection)
    home = _prepare_home()
    gate = Gate(lambda *given: decision(site_file, *given))
    install(gate)
    try_gate(gate)
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler())
    trusted, node = home / "trusted.yaml", home / "node.toml"
    # JSON is YAML.
    trusted.write_text(json.dumps(gate.trusted), encoding="utf-8")
    node.write_text(tomli_w.dumps({"site-file": str(site_file.resolve())}), encoding="utf-8")
    options = {
        "root-certificates": connection.ca,
        "superlink": connection.superlink,
        "auth-supernode-private-key": connection.key,
        "host": LOOPBACK,
        "port": connection.port,
        "isolation": "process",
        "superexec-auth-secret-file": connection.secret,
        "trusted-entities": trusted,
        "node-config": node,
    }
    sys.argv = [
        "flower-supernode",
        *(str(word) for name, value in options.items() for word in (f"--{name}", value)),
    ]
    from flwr.supernode.cli.flower_supernode import flower_supernode

    try:
        # Flower looks at it in a thread that outlives the failure.
        ssl.create_default_context(cafile=connection.ca)
        flower_supernode()
    except (ssl.SSLError, RuntimeError) as error:
        asked = (
            f"is {connection.ca} a certificate, and connection.port, {connection.port}, free "
            "on this machine?"
        )
        raise UserError(f"the node does not start ({error}): {asked}") from error
    raise SystemExit(1)


def start_app(site_file: Path, _: Console | None = None) -> NoReturn:
    """Become the process, best of another user, that runs this machine's bundles.

    UserError without a connection.
    """
    connection = site_connection(site_file)[1]
    _prepare_home()
    command = [
        "flower-superexec",
        "--insecure",
        "--runtime-api-address",
        f"{LOOPBACK}:{connection.port}",
    ]
    os.execvp(command[0], [*command, "--superexec-auth-secret-file", str(connection.secret)])


def _check_secrets(connection: Connection) -> None:
    for path, allowed in {
        connection.ca: 0o777,
        connection.key: 0o700,
        connection.secret: 0o770,
    }.items():
        if not path.is_file():
            raise UserError(
                f"{path} does not exist: ca.crt is the coordinator's, `fl-dpbayes site "
                "keys` makes keys"
            )
        if S_IMODE(path.stat().st_mode) & ~allowed & 0o777:
            raise UserError(
                f"{path} can be read by others than it may: chmod {allowed & 0o640:o} {path}"
            )


def _prepare_home() -> Path:
    """Give Flower an empty folder of its own, in which it finds nothing to run, and no proxy on the way to the node."""
    home = Path(tempfile.mkdtemp(prefix="fl-dpbayes-node-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    direct = ",".join(
        filter(None, (os.environ.get("NO_PROXY"), os.environ.get("no_proxy"), LOOPBACK))
    )
    os.environ.update(
        ENVIRONMENT, FLWR_HOME=str(home), PATH=programs, NO_PROXY=direct, no_proxy=direct
    )
    return home

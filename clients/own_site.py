"""What a node knows of its site before it reads a record: file, card, device and randomness."""

import os
from collections.abc import Callable
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message

from clients.guard import own_site_file
from clients.messages import RefusedError
from fl_dpbayes.config import SiteFile, check_prevalence, read_own_site_file, read_site_file
from fl_dpbayes.config.installed_code import installed_code
from fl_dpbayes.config.record_schema import record_schema
from fl_dpbayes.data import shift_label
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import KEPT
from fl_dpbayes.models import keep_share, repeatable
from fl_dpbayes.privacy import Streams
from fl_dpbayes.protocol import RefusalCode, SiteCard


def site_file_of(message: Message, context: Context) -> SiteFile:
    """Read and validate the site file of this node.

    A hospital names its file in the node's own config (`site-file`), which no message can change. A
    node of Flower's simulation has no such key but a partition number; only there does the message
    say in which folder the virtual sites lie.

    Args:
        message: The message that came.
        context: The node's context.

    Raises:
        RefusedError: SITE_NOT_CONFIGURED if the node has neither, SITE_FILE_MISSING or
            SITE_FILE_INVALID if the named file is not there or not valid.
    """
    site_file_path = own_site_file(context)
    if site_file_path:
        return _hospitals_file(Path(site_file_path))
    partition = context.node_config.get("partition-id")
    config = message.content.config_records.get("config", ConfigRecord())
    folder = config.get("simulation-folder")
    if partition is None or not isinstance(folder, str) or not folder:
        raise RefusedError(RefusalCode.SITE_NOT_CONFIGURED)
    paths = _simulated_sites(Path(folder))
    number = int(partition)
    if not 0 <= number < len(paths):
        raise RefusedError(RefusalCode.SITE_NOT_CONFIGURED)
    return _read_once(read_site_file, paths[number])


def _hospitals_file(path: Path) -> SiteFile:
    try:
        return _read_once(read_own_site_file, path)
    except UserError as error:
        code = RefusalCode.SITE_FILE_MISSING
        if os.path.isfile(path):
            code = RefusalCode.SITE_FILE_INVALID
        raise RefusedError(code, detail=str(error)) from None


def _simulated_sites(folder: Path) -> list[Path]:
    """Return the files of a folder's virtual sites; one of thousands of sites is listed once."""
    return KEPT.get(
        ("site files", folder),
        lambda: sorted(folder.glob("*.toml")),
        lambda paths: 200 * len(paths),
        [folder],
    )


def _read_once(read: Callable[[Path], SiteFile], path: Path) -> SiteFile:
    # The resolved path belongs to the key, as relative paths in the file start where it lies.
    key = (read.__name__, path, path.resolve())
    return KEPT.get(key, lambda: read(path), lambda _: 2**14, [path])


def card_of(site_file: SiteFile) -> SiteCard:
    """Write a site's card from its file alone.

    Raises:
        UserError: The declared prevalence does not fit the classes.
    """
    task = site_file.source.task
    check_prevalence("prevalence", site_file.prevalence, task.outcome)
    allowed_code = (installed_code(name) for name in site_file.policy.allowed_code)
    return SiteCard(
        name=site_file.name,
        role=site_file.role,
        task=task,
        data_schema=record_schema(site_file.source),
        units=site_file.units,
        unit=site_file.source.unit,
        shift=shift_label(site_file.shift),
        evaluation_release=site_file.policy.evaluation_release,
        prevalence=site_file.prevalence,
        seeded=site_file.insecure_seed is not None,
        code=tuple(code for code in allowed_code if code is not None),
    )


def compute_device(site_file: SiteFile) -> torch.device:
    """Return the site file's device, set to exact arithmetic.

    `auto` is CUDA where present, else the CPU.
    """
    name: str = site_file.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    repeatable(device)
    keep_share(device)
    return device


def site_streams(site_file: SiteFile, run: str, round_number: int, purpose: str) -> Streams:
    """Return the random streams of one message.

    Args:
        site_file: The site's own file. Only a simulation's has a seed, from which the streams
            follow; they are then not private.
        run: The run's id.
        round_number: The message's round.
        purpose: What the streams are for; two purposes never share one.
    """
    if site_file.insecure_seed is None:
        return Streams.from_entropy()
    return Streams.from_insecure_seed(
        site_file.insecure_seed, f"{site_file.name}|{run}|{round_number}|{purpose}"
    )

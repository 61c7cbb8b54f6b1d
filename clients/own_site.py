"""What a node knows of its own site before it reads a record: its file, its card, its device, its randomness."""

import os
from collections.abc import Callable
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message

from clients.guard import own_site_file
from clients.messages import RefusedError
from fl_dpbayes.config import SiteFile, check_prevalence_classes, read_own_site_file, read_site_file
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
    say in which folder the virtual sites lie. Raises RefusedError SITE_NOT_CONFIGURED if the node
    has neither, SITE_FILE_MISSING or SITE_FILE_INVALID if the named file is not there or not valid.
    """
    if own := own_site_file(context):
        try:
            return _kept(read_own_site_file, Path(own))
        except UserError as error:
            code = (
                RefusalCode.SITE_FILE_INVALID
                if os.path.isfile(own)
                else RefusalCode.SITE_FILE_MISSING
            )
            raise RefusedError(code, detail=str(error)) from None
    partition = context.node_config.get("partition-id")
    folder = message.content.config_records.get("config", ConfigRecord()).get("simulation-folder")
    if partition is None or not isinstance(folder, str) or not folder:
        raise RefusedError(RefusalCode.SITE_NOT_CONFIGURED)
    # A folder of thousands of sites is listed once.
    place, number = Path(folder), int(partition)
    asked = ("site files", place)
    files = KEPT.get(
        asked, lambda: sorted(place.glob("*.toml")), lambda found: 200 * len(found), [place]
    )
    if not 0 <= number < len(files):
        raise RefusedError(RefusalCode.SITE_NOT_CONFIGURED)
    return _kept(read_site_file, files[number])


def _kept(read: Callable[[Path], SiteFile], path: Path) -> SiteFile:
    # Relative paths in it start where it lies.
    return KEPT.get(
        (read.__name__, path, path.resolve()), lambda: read(path), lambda _: 2**14, [path]
    )


def card_of(site_file: SiteFile) -> SiteCard:
    """Write a site's card from its file alone.

    UserError if the declared prevalence does not fit the classes.
    """
    task = site_file.source.task
    check_prevalence_classes("prevalence", site_file.prevalence, task.classes)
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
        code=tuple(
            code
            for name in site_file.policy.allowed_code
            if (code := installed_code(name)) is not None
        ),
    )


def compute_device(site_file: SiteFile) -> torch.device:
    """Return the site file's device, set to exact arithmetic.

    `auto` is CUDA where present, else the CPU.
    """
    named = site_file.device
    device = torch.device(
        ("cuda" if torch.cuda.is_available() else "cpu") if named == "auto" else named
    )
    repeatable(device)
    keep_share(device)
    return device


def site_streams(site_file: SiteFile, run: str, round_number: int, purpose: str) -> Streams:
    """Return the random streams of one message.

    Only a simulation's follow from a seed, and are then not private.
    """
    if site_file.insecure_seed is None:
        return Streams.from_entropy()
    return Streams.from_insecure_seed(
        site_file.insecure_seed, f"{site_file.name}|{run}|{round_number}|{purpose}"
    )

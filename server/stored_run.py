"""What a run directory holds of a run, compared with its checksums before anything goes on from it."""

from collections.abc import Sequence
from pathlib import Path

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.files.file_list import check_files, check_no_others, file_entry, listed_files
from fl_dpbayes.config.files.journal import JOURNAL_FILE, REMEDY, Entry, Journal, JournalMark, read_journal
from fl_dpbayes.data.simulation import PARTITION_FILE, SCENARIO_FILE, SITES_FOLDER
from fl_dpbayes.posterior.sample_store import PosteriorBank
from server.checkpoint import CHECKPOINT_FILE, Checkpoint

BANK_FOLDER = "bank"
BEGUN = "begun"


def read_run_journal(folder: Path, checkpoint: Checkpoint | None) -> tuple[Journal, Sequence[Entry]]:
    """Read a run's journal as far as it belongs to a checkpoint.

    Args:
        folder: the run directory.
        checkpoint: its checkpoint; None: it has none.

    Returns:
        The journal, to be gone on with, and its entries.

    Raises:
        UserError: if it is damaged, or its run has asked sites and has no checkpoint.
    """
    path = folder / JOURNAL_FILE
    entries, mark = read_journal(path, checkpoint.journal if checkpoint is not None else None)
    if checkpoint is None and (any(BEGUN in entry for entry in entries) or (folder / BANK_FOLDER).exists()):
        raise UserError(f"{folder / CHECKPOINT_FILE} is missing, and the run has asked its sites: {REMEDY}")
    # A run that has asked nothing begins its journal anew.
    return Journal(path, mark if checkpoint is not None else JournalMark()), entries


def prepared_files(folder: Path) -> list[Entry]:
    """Return a journal's entries for what a run is made of before its first round."""
    files = [folder / SCENARIO_FILE, folder / PARTITION_FILE, *sorted((folder / SITES_FOLDER).glob("*"))]
    return [file_entry(path.relative_to(folder).as_posix(), path) for path in files if path.is_file()]


def check_run_files(folder: Path, entries: Sequence[Entry], checkpoint: Checkpoint) -> None:
    """Compare all files that a run goes on from with its journal; those of a round that was cut off go.

    Args:
        folder: the run directory.
        entries: its journal's.
        checkpoint: its checkpoint.

    Raises:
        UserError: naming the first file that is missing, damaged or not of the run.
    """
    listed = {name: entry for name, entry in listed_files(entries).items() if not name.startswith(f"{BANK_FOLDER}/")}
    check_files(folder, listed)
    check_no_others(folder, f"{SITES_FOLDER}/*.toml", listed)
    PosteriorBank(folder / BANK_FOLDER).check(entries, checkpoint.round)

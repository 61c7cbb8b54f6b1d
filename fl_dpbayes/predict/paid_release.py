"""A hospital's records for one command, and one release of them, paid for by its ledger."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from fl_dpbayes.calibration import BoundedSum, NoisedTable, noised
from fl_dpbayes.config import SiteFile, import_apps, read_site_file, unapproved_code
from fl_dpbayes.data import Site, is_delta_allowed, load_site, open_ledger
from fl_dpbayes.errors import FailedError, UserError
from fl_dpbayes.files import ASKED, AuditLine, AuditLogError
from fl_dpbayes.files.audit_log import record
from fl_dpbayes.predict.finished_run import FinishedRun
from fl_dpbayes.predict.new_records import read_new_records
from fl_dpbayes.privacy import (
    GaussianEvent,
    Ledger,
    Part,
    Refused,
    Reserved,
    Spending,
    StoredReply,
    solve_multiplier,
)


@dataclass(frozen=True)
class PayingSite:
    """A site whose ledger pays for one release.

    Attributes:
        path: The site file.
        site_file: What it says.
        site: The site's records.
        part: The part of the records that is used, and whose budget pays.
        epsilon: What the release costs, above 0.
        noise_multiplier: Standard deviation of the noise over the sums' sensitivity.
    """

    path: Path
    site_file: SiteFile
    site: Site
    part: Part
    epsilon: float
    noise_multiplier: float


@dataclass(frozen=True)
class HospitalRecords:
    """A hospital's n records as a run's model sees them.

    Attributes:
        module: The run's module.
        inputs: What its trained layers see of the records, (n, ...).
        labels: Their classes, (n,).
        unit_index: The privacy unit of each record, 0, 1, ..., (n,).
        units: Number of units, at a site as it declares it.
        payer: Pays for what is released; None: the records and all sums stay here.
    """

    module: nn.Module
    inputs: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    unit_index: npt.NDArray[np.int64]
    units: int
    payer: PayingSite | None = None

    @property
    def epsilon(self) -> float | None:
        """What a release costs; None where nothing is released."""
        return None if self.payer is None else self.payer.epsilon

    @property
    def noise_multiplier(self) -> float:
        """Noise over sensitivity of what is released; 0 where nothing is."""
        return 0.0 if self.payer is None else self.payer.noise_multiplier

    def release(self, purpose: str, question: str, exact: BoundedSum) -> NoisedTable:
        """Release sums over the units once.

        The same question on the same records gets the stored answer again, without another charge.

        Args:
            purpose: The command that releases, as the ledger names it.
            question: What decides the sums besides the records.
            exact: The sums as `bounded_sum` made them, so that no value of a run folder makes
                them infinite.

        Returns:
            The sums with their noise, and its standard deviation; exact, and 0, without a payer.

        Raises:
            UserError: If the ledger refuses, or the audit log cannot be written: then nothing is
                paid for.
            FailedError: If the release fails after its budget was reserved, which is then spent.
        """
        if self.payer is None:
            return NoisedTable(exact.sums, 0.0)
        request = json.dumps([purpose, question, self.units, self.epsilon])
        return _pay_and_release(self.payer, purpose, request, exact)


def read_hospital_records(data: Path, run: FinishedRun, epsilon: float | None) -> HospitalRecords:
    """Read a hospital's own labelled records, or those of its site file, for a run's model.

    Args:
        data: Records as `read_new_records` takes them, or a site file (.toml), of which the
            training records are used (the test records of a site that does not train).
        run: The run.
        epsilon: What one release may cost, above 0, with a site file; None: without.

    Returns:
        The records.

    Raises:
        UserError: If the records do not fit the run, or the site may not pay.
    """
    is_site_file = data.suffix == ".toml"
    is_epsilon_valid = epsilon is None or 0 < epsilon < np.inf
    if is_site_file != (epsilon is not None) or not is_epsilon_valid:
        if is_site_file:
            raise UserError(f"{data} is a site file: give --epsilon, its cost, above 0")
        raise UserError(f"{data} is no site file: leave out --epsilon")
    if epsilon is None:
        return _read_at_home(data, run)
    return _read_site_records(data, run, epsilon)


def _read_at_home(data: Path, run: FinishedRun) -> HospitalRecords:
    records = read_new_records(data, run.task, run.source, labelled=True)
    assert records.labels is not None
    if records.units is None:
        unit_index = np.arange(len(records.labels))
    else:
        unit_index = np.unique(records.units.astype(str), return_inverse=True)[1]
    return HospitalRecords(
        module=run.build_module(),
        inputs=run.model_inputs(records.features),
        labels=records.labels,
        unit_index=unit_index,
        units=int(unit_index.max()) + 1,
    )


def _read_site_records(path: Path, run: FinishedRun, epsilon: float) -> HospitalRecords:
    site_file = read_site_file(path)
    changed_code = unapproved_code(site_file, path)
    if changed_code:
        raise UserError(
            f"{changed_code[0]}: approve it, if it is meant, with  fl-dpbayes site approve {path}"
        )
    site = load_site(site_file)
    if site.task != run.task:
        raise UserError(f"{path}: its records or classes are not those of the run")
    part: Part = "test" if site.train is None else "train"
    ledger = site_file.ledger
    if ledger is None or not is_delta_allowed(site_file, part, ledger.delta):
        raise UserError(
            f"site {site.name!r} needs a [ledger], with delta below one over its units: see "
            "its site file"
        )
    records = site.train or site.test
    noise_multiplier = solve_multiplier(epsilon, ledger.delta, 1.0, 1, ledger.adjacency)
    return HospitalRecords(
        module=run.build_module(),
        inputs=run.model_inputs(records.features),
        labels=records.labels,
        unit_index=records.unit_index,
        units=site.units,
        payer=PayingSite(
            path=path,
            site_file=site_file,
            site=site,
            part=part,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
        ),
    )


def _pay_and_release(
    payer: PayingSite, purpose: str, request: str, exact: BoundedSum
) -> NoisedTable:
    import_apps()
    from clients.own_site import site_streams

    # Whatever can fail without the ledger comes before anything is paid for.
    run = hashlib.sha256(request.encode()).hexdigest()[:32]
    cipher = site_streams(payer.site_file, run, 1, purpose).cipher("noise")
    event = {"message": purpose, "site": payer.site_file.name}
    line = _log(payer.path, event | {"decision": ASKED})
    numbered_event = event | {"asked": line.number}
    with open_ledger(payer.site_file, payer.site, line) as ledger:
        spending = _spending(payer, purpose, request, ledger)
        match ledger.reserve(spending):
            case StoredReply(body):
                std = payer.noise_multiplier * exact.sensitivity
                table = NoisedTable(np.array(json.loads(body)), std)
                steps = 0
            case Refused(code, field):
                refusal = {"code": code.value, "field": field}
                _log(payer.path, numbered_event | {"decision": "refused", "refusal": refusal})
                reason = (
                    f"the ledger of site {payer.site.name!r} refuses the release, "
                    f"{code.value} {field}"
                ).strip()
                raise UserError(f"{reason}: lower --epsilon, or see  fl-dpbayes site ledger")
            case Reserved(reservation):
                table = _noised_and_committed(exact, payer, cipher, ledger, reservation)
                steps = 1
    released = {
        "digest": hashlib.sha256(table.sums.tobytes()).hexdigest(),
        "arrays": 1,
        "bytes": table.sums.nbytes,
    }
    answer = {
        "decision": "answered",
        "charge": {"part": payer.part, "steps": steps},
        "released": released,
    }
    _log(payer.path, numbered_event | answer)
    return table


def _spending(payer: PayingSite, purpose: str, request: str, ledger: Ledger) -> Spending:
    # The ledger's heads leave the site, so that the records enter them only as a fingerprint
    # under its secret key.
    fingerprint = ledger.state().data_versions[-1].fingerprint
    request_digest = hashlib.sha256((request + fingerprint).encode()).hexdigest()
    return Spending(
        part=payer.part,
        run=request_digest[:32],
        round=1,
        purpose=purpose,
        request_digest=request_digest,
        plan_digest=request_digest,
        plan=(GaussianEvent(payer.noise_multiplier, 1.0, 1),),
        first_step=0,
        steps=1,
    )


def _noised_and_committed(
    exact: BoundedSum,
    payer: PayingSite,
    cipher: np.random.Generator,
    ledger: Ledger,
    reservation: int,
) -> NoisedTable:
    try:
        table = noised(exact, payer.noise_multiplier, cipher)
        ledger.commit(reservation, json.dumps(table.sums.tolist()).encode())
    except Exception as error:
        # Unlike a site's answer to a server, this one fails also where the ledger refused to store
        # it: how long its text is depends on records and noise, so that another try is another
        # release.
        ledger.fail(reservation)
        raise FailedError(f"the release failed, and its budget is spent: {error}") from error
    return table


def _log(site_file: Path, event: dict[str, Any]) -> AuditLine:
    try:
        return record(site_file, event)
    except AuditLogError as error:
        raise UserError(f"nothing is released: {error}") from error

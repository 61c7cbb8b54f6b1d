"""A hospital's own records for one command: at home, or by a site file, whose ledger pays for what leaves."""

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
from fl_dpbayes.posterior import StoredPosterior
from fl_dpbayes.predict.new_records import read_new_records
from fl_dpbayes.predict.stored_posterior import seen_by_model
from fl_dpbayes.privacy import (
    GaussianEvent,
    Part,
    Refused,
    Reserved,
    Spending,
    StoredReply,
    solve_multiplier,
)


@dataclass(frozen=True)
class OwnRecords:
    """A run's module, what it sees of the records, (N, ...), their labels, and their units 0, 1, ..., both (N,).

    `units`: how many, as a site declares it. `epsilon` and noise multiplier: of a release by the
    `site`, whose file is `file`; at home none.
    """

    module: nn.Module
    inputs: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    unit_index: npt.NDArray[np.int64]
    units: int
    epsilon: float | None = None
    noise_multiplier: float = 0.0
    site: tuple[SiteFile, Site] | None = None
    part: Part = "train"
    file: Path | None = None

    def released(self, purpose: str, request: str, exact: BoundedSum) -> NoisedTable:
        """Return sums with the noise that they leave with, and its standard deviation.

        At home the sums, and 0.

        The same request gets the stored answer again; another version of the records makes it
        another request. `exact`: what `bounded_sum` made, so that no value of a run folder makes it
        infinite. Raises UserError if the ledger refuses, or the audit log cannot be written: then
        nothing is paid for.
        """
        if self.site is None:
            return NoisedTable(exact.sums, 0.0)
        assert self.file is not None
        import_apps()
        from clients.own_site import site_streams

        (site_file, site), noise = self.site, self.noise_multiplier * exact.sensitivity
        request = json.dumps([purpose, request, self.units, self.epsilon])
        streams = site_streams(
            site_file, hashlib.sha256(request.encode()).hexdigest()[:32], 1, purpose
        )
        event = GaussianEvent(self.noise_multiplier, 1.0, 1)
        said: dict[str, Any] = {"message": purpose, "site": site_file.name}
        line = _recorded(self.file, said | {"decision": ASKED})
        said["asked"] = line.number
        with open_ledger(site_file, site, line) as ledger:
            # A fingerprint under the ledger's secret key, since the ledger's heads leave the site.
            asked = hashlib.sha256(
                (request + ledger.state().data_versions[-1].fingerprint).encode()
            ).hexdigest()
            match ledger.reserve(
                Spending(self.part, asked[:32], 1, purpose, asked, asked, (event,), 0, 1)
            ):
                case StoredReply(body):
                    sent, steps = NoisedTable(np.array(json.loads(body)), noise), 0
                case Refused(code, field):
                    refusal = {"code": code.value, "field": field}
                    _recorded(self.file, said | {"decision": "refused", "refusal": refusal})
                    refused = (
                        f"the ledger of site {site.name!r} refuses the release, "
                        f"{code.value} {field}"
                    ).strip()
                    raise UserError(f"{refused}: lower --epsilon, or see  fl-dpbayes site ledger")
                case Reserved(reservation):
                    steps = 1
                    try:
                        sent = noised(exact, self.noise_multiplier, streams.cipher("noise"))
                        ledger.commit(reservation, json.dumps(sent.sums.tolist()).encode())
                    except Exception as error:
                        ledger.fail(reservation)
                        raise FailedError(
                            f"the release failed, and its budget is spent: {error}"
                        ) from error
        charge = {"part": self.part, "steps": steps}
        released = {
            "digest": hashlib.sha256(sent.sums.tobytes()).hexdigest(),
            "arrays": 1,
            "bytes": sent.sums.nbytes,
        }
        _recorded(
            self.file, said | {"decision": "answered", "charge": charge, "released": released}
        )
        return sent


def _recorded(site_file: Path, event: dict[str, Any]) -> AuditLine:
    try:
        return record(site_file, event)
    except AuditLogError as error:
        raise UserError(f"nothing is released: {error}") from error


def read_own(
    data: Path,
    stored: StoredPosterior,
    source: object,
    epsilon: float | None,
    *,
    labelled: bool = True,
) -> OwnRecords:
    """Read records, or those of a site file (.toml), for a run of this `source`.

    UserError if they do not fit.
    """
    if (named := data.suffix == ".toml") != (epsilon is not None) or not (
        epsilon is None or 0 < epsilon < np.inf
    ):
        what = (
            "a site file: give --epsilon, its cost, above 0"
            if named
            else "no site file: leave out --epsilon"
        )
        raise UserError(f"{data} is {what}")
    if epsilon is None:
        records = read_new_records(data, stored.metadata.task, source, labelled=labelled)
        labels = (
            np.zeros(len(records.features), np.int64) if records.labels is None else records.labels
        )
        names = np.arange(len(labels)) if records.units is None else records.units[1].astype(str)
        index = np.unique(names, return_inverse=True)[1]
        return OwnRecords(
            *seen_by_model(stored, source, records.features), labels, index, int(index.max()) + 1
        )
    site_file = read_site_file(data)
    if changed := unapproved_code(site_file, data):
        raise UserError(
            f"{changed[0]}: approve it, if it is meant, with  fl-dpbayes site approve {data}"
        )
    site, settings = load_site(site_file), site_file.ledger
    if site.task != stored.metadata.task:
        raise UserError(f"{data}: its records or classes are not those of the run")
    part: Part = "test" if site.train is None else "train"
    if settings is None or not is_delta_allowed(site_file, part, settings.delta):
        raise UserError(
            f"site {site.name!r} needs a [ledger], with delta below one over its units: see "
            "its site file"
        )
    own, noise = (
        site.train or site.test,
        solve_multiplier(epsilon, settings.delta, 1.0, 1, settings.adjacency),
    )
    seen = seen_by_model(stored, source, own.features)
    return OwnRecords(
        *seen, own.labels, own.unit_index, site.units, epsilon, noise, (site_file, site), part, data
    )

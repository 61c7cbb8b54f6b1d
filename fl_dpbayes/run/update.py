"""The work behind `update`: a hospital's own level given its labelled patients, at home or by one private release."""

import hashlib
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from scipy.special import expit

from fl_dpbayes.calibration.bins import in_fixed_pieces, on_grid
from fl_dpbayes.config.base import digest
from fl_dpbayes.config.errors import FailedError, UserError
from fl_dpbayes.config.files.atomic_file import write_atomically
from fl_dpbayes.config.kinds import import_apps
from fl_dpbayes.config.names import site_name
from fl_dpbayes.config.site_file import SiteFile, read_site_file
from fl_dpbayes.data.site import Site, is_delta_allowed, load_site
from fl_dpbayes.data.site_ledger import open_ledger
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.ledger.ledger import Refused, StoredReply
from fl_dpbayes.privacy.ledger.state import Part, Spending
from fl_dpbayes.privacy.planned_noise import solve_multiplier
from fl_dpbayes.run.hospital import Hospital, UpdatedHospital
from fl_dpbayes.run.new_records import read_new_records
from fl_dpbayes.run.stored_posterior import read_run, seen_by_model


def update_hospital(
    run_dir: Path, data: Path, hospital: Hospital, epsilon: float | None, out: Path | None, console: Console
) -> None:
    """Write a hospital's posterior given its own labelled patients, which `predict --update` reads.

    `data`: labelled records, which stay here, or a site file (.toml), of whose training records (its test records, at a
    site that does not train) one noisy sum is released at `epsilon`, paid for in the site's ledger. Raises UserError if
    the run has no posterior over hospitals, the records do not fit, or the ledger refuses.
    """
    if (data.suffix == ".toml") != (epsilon is not None):
        what = "a site file: give --epsilon, its cost" if epsilon is None else "no site file: leave out --epsilon"
        raise UserError(f"{data} is {what}")
    target = out or run_dir / f"update-{site_name(data.stem)}.json"
    if target.exists():
        raise UserError(f"{target} exists already: give another --out, nothing is overwritten")
    if epsilon is not None and hospital.site is not None:
        raise UserError(f"--site {hospital.site!r} has released its states already: leave it out for a new one")
    stored, scenario = read_run(run_dir)
    task, source, run = stored.metadata.task, scenario.data.source, digest(scenario)
    if (of_run := hospital.of(run_dir, scenario, task)) is None:
        raise UserError(f"{run_dir} has no posterior over hospitals: run a scenario with [hierarchical]")
    model, before = of_run

    def log_odds(features: npt.NDArray) -> npt.NDArray[np.float64]:
        inputs = seen_by_model(stored, source, features)[1].reshape(len(features), -1).astype(np.float64)
        return model.conditional[0] + in_fixed_pieces(lambda rows: rows @ model.conditional[1:], inputs)

    if epsilon is None:
        records = read_new_records(data, task, source, labelled=True)
        assert records.labels is not None
        # What a training hospital released tells of these very patients.
        before = model.without(hospital.site) if hospital.site else before
        units, after = len(records.labels), before.given_labels(log_odds(records.features), records.labels)
    else:
        site_file = read_site_file(data)
        site = load_site(site_file)
        if site.task != task:
            raise UserError(f"{data}: its records or classes are not those of the run")
        own, units = site.train or site.test, site.units
        # The effect at which residuals are taken is a part of what is asked.
        request = json.dumps([run, units, before.mean, epsilon])
        residuals = residual_sum(log_odds(own.features) + before.mean, own.labels, own.unit_index)
        noise, sent = _released((site_file, site), request, epsilon, residuals)
        after = before.given_release(sent, noise, units, model.covariates @ model.conditional)
    found = UpdatedHospital(scenario=run, mean=after.mean, sd=after.sd, units=units, epsilon=epsilon)
    write_atomically(target, found.model_dump_json(indent=2) + "\n")
    for said, effect in (("before", before), (f"after {units} patients", after)):
        console.print(f"{said}: {model.said_rate(effect)} in the declared population", highlight=False)
    left = "nothing left this machine: keep the file here" if epsilon is None else f"released at epsilon {epsilon:g}"
    console.print(f"written: {target} ({left})", soft_wrap=True, markup=False)


def residual_sum(
    log_odds: npt.NDArray[np.float64], labels: npt.NDArray[np.int64], units: npt.NDArray[np.int64]
) -> float:
    """Return sum_u clamp(sum of y_i - sigmoid(x_i) over the records of unit u, -1, 1): a unit moves it by at most 1.

    `log_odds`: x_i at a public effect, (n,). `units`: the unit of each record, 0, 1, ..., (n,).
    """
    return float(on_grid(np.clip(np.bincount(units, labels - expit(log_odds)), -1.0, 1.0)).sum())


def _released(own: tuple[SiteFile, Site], request: str, epsilon: float, exact: float) -> tuple[float, float]:
    """Release a sum that a unit moves by at most 1, with noise; the same request gets the stored answer again.

    Another version of the records makes it another request. Returns the noise's standard deviation, and the noisy sum.
    """
    import_apps()
    from clients.own_site import site_streams

    (site_file, site), settings = own, own[0].ledger
    part: Part = "test" if site.train is None else "train"
    if settings is None or not is_delta_allowed(site_file, part, settings.delta):
        raise UserError(f"site {site.name!r} needs a [ledger], with delta below one over its units: see its site file")
    noise = solve_multiplier(epsilon, settings.delta, 1.0, 1, settings.adjacency)
    streams = site_streams(site_file, hashlib.sha256(request.encode()).hexdigest(), 1, "update")
    with open_ledger(site_file, site) as ledger:
        # A fingerprint under the ledger's secret key, since the ledger's heads leave the site.
        asked = hashlib.sha256((request + ledger.state().data_versions[-1].fingerprint).encode()).hexdigest()
        reserved = ledger.reserve(Spending(part, asked, 1, "update", asked, asked, (GaussianEvent(noise, 1, 1),), 0, 1))
        match reserved:
            case StoredReply(body):
                return noise, float(body)
            case Refused(code, field):
                refused = f"the ledger of site {site.name!r} refuses the release, {code.value} {field}".strip()
                raise UserError(f"{refused}: lower --epsilon, or see  fl-dpbayes site ledger")
        try:
            sent = exact + noise * float(streams.generator("noise").standard_normal())
            ledger.commit(reserved.reservation, repr(sent).encode())
        except Exception as error:
            ledger.fail(reserved.reservation)
            raise FailedError(f"the release failed, and its budget is spent: {error}") from error
        return noise, sent

"""The work behind `update`: a hospital's own level given its labelled patients, at home or by one private release."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console

from fl_dpbayes.config.base import digest
from fl_dpbayes.config.errors import FailedError, UserError
from fl_dpbayes.config.files.atomic_file import write_atomically
from fl_dpbayes.config.kinds import import_apps
from fl_dpbayes.config.names import site_name
from fl_dpbayes.config.scenario import Scenario
from fl_dpbayes.config.site_file import SiteFile, read_site_file
from fl_dpbayes.data.site import Site, is_delta_allowed, load_site
from fl_dpbayes.data.site_ledger import open_ledger
from fl_dpbayes.posterior.hierarchical.mixture import NormalMixture
from fl_dpbayes.posterior.hierarchical.model import HospitalModel
from fl_dpbayes.posterior.hierarchical.update import residual_sum, updated_at_home, updated_by_release
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.ledger.ledger import Refused, Reserved, StoredReply
from fl_dpbayes.privacy.ledger.state import Part, Spending
from fl_dpbayes.privacy.planned_noise import solve_multiplier
from fl_dpbayes.run.hospital import LEVEL, Hospital, UpdatedHospital
from fl_dpbayes.run.stored_posterior import read_inputs, read_run

PURPOSE = "update"
# What `at home` and `by a release` find: the effect before and after, the patients it took, and delta where one was.
Change = tuple[NormalMixture, NormalMixture, int, float | None]


def update_hospital(
    run_dir: Path, data: Path, hospital: Hospital, epsilon: float | None, out: Path | None, console: Console
) -> None:
    """Write a hospital's posterior given its own labelled patients, which `predict --update` reads.

    `data`: labelled records, which stay here, or a site file (.toml), of whose training records (its test records, at a
    site that does not train) one noisy sum is released at `epsilon`, paid for in the site's ledger. Raises UserError if
    the run has no posterior over hospitals, the records do not fit, or the ledger refuses.
    """
    if (data.suffix == ".toml") != (epsilon is not None):
        what = "records, which stay here: leave out --epsilon" if epsilon else "a site file: give --epsilon, its cost"
        raise UserError(f"{data} is {what}")
    target = out or run_dir / f"update-{site_name(data.stem)}.json"
    if target.exists():
        raise UserError(f"{target} exists already: give another --out, nothing is overwritten")
    stored, scenario = read_run(run_dir)
    model = hospital.model(run_dir, scenario, stored.metadata.task)
    if model is None:
        raise UserError(f"{run_dir} has no posterior over hospitals: run a scenario with [hierarchical]")
    if epsilon is None:
        before, after, units, delta = _at_home(model, run_dir, data, hospital)
    else:
        before, after, units, delta = _by_release(model, scenario, data, hospital, epsilon)
    found = UpdatedHospital(
        scenario=digest(scenario), site=hospital.site, group=hospital.group, mean=after.mean, sd=after.sd, units=units,
        epsilon=epsilon, delta=delta,
    )  # fmt: skip
    write_atomically(target, found.model_dump_json(indent=2) + "\n")
    for said, effect in (("before", before), (f"after {units} patients", after)):
        rate, low, high = model.rate_interval(effect, LEVEL)
        ends = f"{LEVEL:.0%}: {low:.3f} to {high:.3f}"
        console.print(f"{said}: rate of class 1 in the declared population {rate:.3f} ({ends})", highlight=False)
    left = "nothing left this machine: keep the file here" if epsilon is None else f"released at epsilon {epsilon:g}"
    console.print(f"written: {target} ({left})", soft_wrap=True, markup=False)


def _at_home(model: HospitalModel, run_dir: Path, data: Path, hospital: Hospital) -> Change:
    read = read_inputs(run_dir, data, labelled=True)
    if read.records.labels is None:
        raise UserError(f"{data} has no labels: give a column 'label' or an array 'labels'")
    # What a training hospital released tells of these very patients.
    before = model.effect(group=hospital.group) if hospital.site is None else model.without(hospital.site)
    after = updated_at_home(before, _log_odds(model, read.good), read.records.labels)
    return before, after, len(read.records.labels), None


def _by_release(model: HospitalModel, scenario: Scenario, path: Path, hospital: Hospital, epsilon: float) -> Change:
    import_apps()
    from clients.model_inputs import model_inputs

    if hospital.site is not None:
        raise UserError(f"--site {hospital.site!r} has released its states already: leave it out for a new hospital")
    site_file = read_site_file(path)
    site = load_site(site_file)
    if site.task != scenario.data.source.task:
        raise UserError(f"{path}: its records or classes are not those of the run")
    own, before = model_inputs(site_file, scenario.model, site.train or site.test), model.effect(group=hospital.group)
    odds = _log_odds(model, own.features) + before.mean
    # The effect at which residuals are taken is a part of what is asked.
    request = json.dumps([digest(scenario), site.units, before.mean, epsilon])
    noise, sent = _released((site_file, site), request, epsilon, lambda: residual_sum(odds, own.labels, own.unit_index))
    after = updated_by_release(before, sent, noise, site.units, model.covariates @ model.conditional)
    return before, after, site.units, site_file.ledger.delta if site_file.ledger else None


def _log_odds(model: HospitalModel, inputs: npt.NDArray) -> npt.NDArray[np.float64]:
    return model.conditional[0] + inputs.reshape(len(inputs), -1).astype(np.float64) @ model.conditional[1:]


def _released(
    own: tuple[SiteFile, Site], request: str, epsilon: float, measure: Callable[[], float]
) -> tuple[float, float]:
    """Release a sum that a unit moves by at most 1, with noise; the same request gets the stored answer again.

    Returns the noise's standard deviation, and the noisy sum.
    """
    from clients.own_site import site_streams

    site_file, site = own
    part: Part = "test" if site.train is None else "train"
    settings = site_file.ledger
    if settings is None or not is_delta_allowed(site_file, part, settings.delta):
        raise UserError(f"site {site.name!r} needs a [ledger], with delta below one over its units: see its site file")
    noise = solve_multiplier(epsilon, settings.delta, 1.0, 1, settings.adjacency)
    asked = hashlib.sha256(request.encode()).hexdigest()
    spending = Spending(part, asked[:32], 1, PURPOSE, asked, asked, (GaussianEvent(noise, 1.0, 1),), 0, 1)
    with open_ledger(site_file, site) as ledger:
        match ledger.reserve(spending):
            case StoredReply(body):
                return noise, float(json.loads(body))
            case Refused(code, field):
                refused = f"the ledger of site {site.name!r} refuses the release, {code.value} {field}".strip()
                raise UserError(f"{refused}: lower --epsilon, or see  fl-dpbayes site ledger")
            case Reserved(reservation):
                try:
                    generator = site_streams(site_file, asked[:32], 1, PURPOSE).generator("noise")
                    sent = measure() + noise * float(generator.standard_normal())
                    ledger.commit(reservation, json.dumps(sent).encode())
                except Exception as error:
                    ledger.fail(reservation)
                    raise FailedError(f"the release failed, and its budget is spent: {error}") from error
                return noise, sent

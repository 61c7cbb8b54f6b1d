"""The work behind `update`: a hospital's own effect given its labelled patients, at home or by one private release."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console

from fl_dpbayes.config.errors import FailedError, UserError
from fl_dpbayes.config.files.atomic_file import write_atomically
from fl_dpbayes.config.kinds import import_apps
from fl_dpbayes.config.names import site_name
from fl_dpbayes.config.site_file import LedgerSettings, SiteFile, read_site_file
from fl_dpbayes.data.site import Site, is_delta_allowed, load_site
from fl_dpbayes.data.site_ledger import open_ledger
from fl_dpbayes.posterior.hierarchical.mixture import NormalMixture
from fl_dpbayes.posterior.hierarchical.model import HospitalModel
from fl_dpbayes.posterior.hierarchical.update import residual_sum, updated_at_home, updated_by_release
from fl_dpbayes.posterior.store import POSTERIOR_FILE, PosteriorMetadata, load_posterior
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.ledger.ledger import Refused, Reserved, StoredReply
from fl_dpbayes.privacy.ledger.state import Part, Spending
from fl_dpbayes.privacy.planned_noise import solve_multiplier
from fl_dpbayes.run.hospital import LEVEL, Hospital, UpdatedHospital
from fl_dpbayes.run.stored_posterior import read_inputs

PURPOSE = "update"
# Of a site that trains, or one that does not.
PART: dict[bool, Part] = {True: "train", False: "test"}
Request = dict[str, str | int | float]
Floats = npt.NDArray[np.float64]


def update_hospital(
    run_dir: Path, data: Path, hospital: Hospital, epsilon: float | None, out: Path | None, console: Console
) -> Path:
    """Write a hospital's posterior given its own labelled patients, which `predict --update` reads.

    `data`: labelled records, which stay here, or a site file (.toml), of whose training records (its test records, at a
    site that does not train) one noisy sum is released at `epsilon`, paid for in the site's ledger. Raises UserError if
    the run has no posterior over hospitals, the records do not fit, or the ledger refuses.
    """
    private = data.suffix == ".toml"
    if private != (epsilon is not None):
        remedy = "give --epsilon, what the release may cost" if private else "leave out --epsilon: nothing leaves"
        raise UserError(f"{data} is {'a site file' if private else 'a file of records, which stay here'}: {remedy}")
    target = out or run_dir / f"update-{site_name(data.stem)}.json"
    if target.exists():
        raise UserError(f"{target} exists already: give another --out, nothing is overwritten")
    change = _by_release(run_dir, data, hospital, epsilon) if epsilon is not None else _at_home(run_dir, data, hospital)
    after, delta = change.after, change.delta
    found = UpdatedHospital(
        scenario_hash=change.scenario_hash, site=hospital.site, group=hospital.group, units=change.units,
        epsilon=epsilon, delta=delta, weights=tuple(after.weights / after.weights.sum()), means=tuple(after.means),
        variances=tuple(after.variances),
    )  # fmt: skip
    write_atomically(target, found.model_dump_json() + "\n")
    for said, effect in (("before", change.before), (f"after {change.units} patients", after)):
        rate, low, high = change.model.rate_interval(effect, LEVEL)
        ends = f"{LEVEL:.0%}: {low:.3f} to {high:.3f}"
        console.print(f"{said}: rate of class 1 in the declared population {rate:.3f} ({ends})", highlight=False)
    left = "nothing left this machine: keep the file here" if epsilon is None else f"released at epsilon {epsilon:g}"
    console.print(f"written: {target} ({left})", soft_wrap=True, markup=False)
    return target


@dataclass(frozen=True)
class _Change:
    """A hospital's effect before and after its `units` patients, in the model of the run with this scenario hash."""

    scenario_hash: str
    model: HospitalModel
    before: NormalMixture
    after: NormalMixture
    units: int
    delta: float | None = None


def _at_home(run_dir: Path, data: Path, hospital: Hospital) -> _Change:
    read = read_inputs(run_dir, data, labelled=True)
    labels, model = read.records.labels, _model(run_dir, hospital, read.stored.metadata)
    if labels is None:
        raise UserError(f"{data} has no labels: give a column 'label' or an array 'labels'")
    # What a training hospital released tells of these very patients.
    before = model.without(hospital.site) if hospital.site is not None else model.effect(group=hospital.group)
    after = updated_at_home(before, _log_odds(model, read.good), labels)
    return _Change(read.stored.metadata.scenario_hash, model, before, after, len(labels))


def _by_release(run_dir: Path, path: Path, hospital: Hospital, epsilon: float) -> _Change:
    import_apps()
    from clients.model_inputs import model_inputs

    site_file, metadata = read_site_file(path), load_posterior(run_dir / POSTERIOR_FILE).metadata
    site, model = load_site(site_file), _model(run_dir, hospital, metadata)
    if hospital.site is not None:
        raise UserError(f"--site {hospital.site!r} has released its states already: leave it out for a new hospital")
    if site.task != metadata.task:
        raise UserError(f"{path}: its records or classes are not those of the run in {run_dir}")
    own, before = model_inputs(site_file, metadata.model, site.train or site.test), model.effect(group=hospital.group)
    log_odds = _log_odds(model, own.features.astype(np.float64)) + before.mean
    # The effect at which residuals are taken is a part of what is asked.
    request: Request = {"run": metadata.scenario_hash, "units": site.units, "effect": before.mean, "epsilon": epsilon}
    released, noise, delta = _released(
        (site_file, site), request, lambda: residual_sum(log_odds, own.labels, own.unit_index)
    )
    after = updated_by_release(before, released, noise, site.units, model.covariates @ model.conditional)
    return _Change(metadata.scenario_hash, model, before, after, site.units, delta)


def _model(run_dir: Path, hospital: Hospital, metadata: PosteriorMetadata) -> HospitalModel:
    model = hospital.model(run_dir, metadata)
    if model is None:
        raise UserError(f"{run_dir} has no posterior over hospitals: run a scenario with [hierarchical]")
    return model


def _log_odds(model: HospitalModel, inputs: Floats) -> Floats:
    return np.column_stack([np.ones(len(inputs)), inputs]) @ model.conditional


def _settings(site_file: SiteFile) -> LedgerSettings:
    if site_file.ledger is None:
        raise UserError(f"site {site_file.name!r} names no ledger: add [ledger] to its file, as  fl-dpbayes site init")
    return site_file.ledger


def _released(own: tuple[SiteFile, Site], request: Request, measure: Callable[[], float]) -> tuple[float, float, float]:
    """Release a sum that a unit moves by at most 1, with noise; the same request gets the stored answer again."""
    from clients.own_site import site_streams

    site_file, site = own
    settings, part, epsilon = _settings(site_file), PART[site.train is not None], float(request["epsilon"])
    if not is_delta_allowed(site_file, part, settings.delta):
        raise UserError(f"ledger.delta is {settings.delta:g}, which is not below one over the site's units: lower it")
    noise = solve_multiplier(epsilon, settings.delta, 1.0, 1, settings.adjacency)
    digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
    spending = Spending(part, digest[:32], 1, PURPOSE, digest, digest, (GaussianEvent(noise, 1.0, 1),), 0, 1)
    with open_ledger(site_file, site) as ledger:
        match ledger.reserve(spending):
            case StoredReply(body):
                return float(json.loads(body)["sum"]), noise, settings.delta
            case Refused(code, field):
                refused = f"the ledger of site {site.name!r} refuses the release ({code.value} {field}".strip()
                raise UserError(f"{refused}): lower --epsilon, or see  fl-dpbayes site ledger")
            case Reserved(reservation):
                try:
                    generator = site_streams(site_file, digest[:32], 1, PURPOSE).generator("noise")
                    released = measure() + noise * float(generator.standard_normal())
                    ledger.commit(reservation, json.dumps({"sum": released}).encode())
                except Exception as error:
                    ledger.fail(reservation)
                    raise FailedError(f"the release failed, and its budget is spent: {error}") from error
                return released, noise, settings.delta

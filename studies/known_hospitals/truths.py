"""What is true in a simulation: how hospitals differ, and which patients they have.

Patients are those of the stroke trial, with outcomes drawn anew.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from fl_dpbayes.config import Scenario, StandardFeatures
from fl_dpbayes.data import load_unscaled

Floats = npt.NDArray[np.float64]
Law = Literal["normal", "skewed", "heavy-tailed"]
# Of the t distribution of heavy-tailed hospitals.
_DEGREES = 3


@dataclass(frozen=True)
class Truth:
    """How hospitals differ.

    Attributes:
        hospital_sd: Standard deviation between hospitals of a country, in log odds.
        country_sd: Standard deviation between countries, in log odds.
        law: Of the hospitals' levels within a country.
        slope_sd: Standard deviation of every slope between hospitals.
        case_mix: In 0 .. 1: how far patients are dealt to a country's hospitals by their risk.
        intercept: Added to all log odds.
        hospitals: How many, of equal size, in countries of eight; None for the trial's own.
        patients: Of each of these.
    """

    hospital_sd: float = 0.3
    country_sd: float = 0.4
    law: Law = "normal"
    slope_sd: float = 0.0
    case_mix: float = 0.0
    intercept: float = 0.0
    hospitals: int | None = None
    patients: int = 0


TRUTHS = {
    "as found": Truth(),
    "small spreads": Truth(hospital_sd=0.1, country_sd=0.2),
    "wide spreads": Truth(hospital_sd=0.6, country_sd=0.6),
    "hospitals wide, countries alike": Truth(hospital_sd=0.6, country_sd=0.2),
    "skewed hospitals": Truth(law="skewed"),
    "heavy-tailed hospitals": Truth(law="heavy-tailed"),
    "slopes differ": Truth(slope_sd=0.2),
    "case mix differs": Truth(case_mix=0.7),
    "rare outcome": Truth(intercept=-3.5),
    "20 hospitals of 200": Truth(hospitals=20, patients=200),
    "100 hospitals of 50": Truth(hospitals=100, patients=50),
    "500 hospitals of 10": Truth(hospitals=500, patients=10),
    "32 hospitals of 500": Truth(hospitals=32, patients=500),
}


@dataclass(frozen=True)
class Patients:
    """The trial's patients, and what foretells their outcomes.

    Attributes:
        features: As the model sees them, the first column 1, shape (N, 1 + D).
        hospital: Of each, 0 .. K - 1, shape (N,).
        country: Of each hospital, 0 .. J - 1, shape (K,).
        coefficients: Intercept and slopes within a hospital of level 0, shape (1 + D,).
    """

    features: Floats
    hospital: npt.NDArray[np.int64]
    country: npt.NDArray[np.int64]
    coefficients: Floats


@dataclass(frozen=True)
class Deal:
    """Hospitals with their patients and outcomes, drawn from a truth.

    Attributes:
        features: The first column 1, hospital by hospital, shape (N, 1 + D).
        hospital: Of each patient, rising, shape (N,).
        country: Of each hospital, shape (K,).
        log_odds: The truth, shape (N,).
        levels: Of the hospitals, shape (K,).
        outcomes: 0 or 1, shape (N,).
        held_out: Whether a hospital takes no part, shape (K,).
        trains: Whether a patient does, shape (N,).
    """

    features: Floats
    hospital: npt.NDArray[np.int64]
    country: npt.NDArray[np.int64]
    log_odds: Floats
    levels: Floats
    outcomes: npt.NDArray[np.int64]
    held_out: npt.NDArray[np.bool_]
    trains: npt.NDArray[np.bool_]


def trial_patients(scenario: Scenario) -> Patients:
    """Read the trial's patients at the hospitals of a scenario, and fit what foretells outcomes.

    Args:
        scenario: `stroke`.

    Returns:
        The patients, hospital by hospital. Their coefficients are of a logistic regression with a
        level for each hospital, penalised with C = 1.
    """
    records = load_unscaled(scenario.data.source, "train")
    names = sorted(scenario.sites)
    natural_site = np.asarray(records.natural_site)
    inside = np.isin(natural_site, names)
    hospital = np.searchsorted(names, natural_site[inside])
    order = np.argsort(hospital, kind="stable")
    hospital = hospital[order]
    features = standardised(records.features[inside][order], scenario)
    labels = records.labels[inside][order]
    country_of_hospital = [scenario.sites[name].group or "" for name in names]
    countries = sorted(set(country_of_hospital))
    levels = np.eye(len(names))[hospital]
    fit = LogisticRegression(C=1.0, max_iter=3000).fit(np.hstack([features, levels]), labels)
    width = features.shape[1]
    intercept = fit.intercept_[0] + fit.coef_[0, width:].mean()
    return Patients(
        features=np.column_stack([np.ones(len(features)), features]),
        hospital=hospital,
        country=np.array([countries.index(name) for name in country_of_hospital]),
        coefficients=np.append(intercept, fit.coef_[0, :width]),
    )


def standardised(features: npt.NDArray, scenario: Scenario) -> Floats:
    """Return features as a model with declared constants sees them, shape (N, D)."""
    declared = scenario.model.features
    assert isinstance(declared, StandardFeatures)
    centred = features.astype(np.float64) - np.array(declared.centers)
    return centred / np.array(declared.scales) * declared.spread


def deal(truth: Truth, patients: Patients, generator: np.random.Generator) -> Deal:
    """Draw levels, outcomes, and who trains.

    A fifth of the hospitals are held out; of the others' patients 70 % train.

    Args:
        truth: How hospitals differ.
        patients: The trial's.
        generator: Draws all.

    Returns:
        The hospitals.
    """
    patients = _placed(truth, patients, generator)
    count = len(patients.country)
    centres = truth.country_sd * generator.standard_normal(patients.country.max() + 1)
    own = truth.hospital_sd * _standardised_draws(truth.law, count, generator)
    levels = centres[patients.country] + own
    width = len(patients.coefficients) - 1
    slopes = patients.coefficients[1:] + truth.slope_sd * generator.standard_normal((count, width))
    log_odds = (
        patients.coefficients[0]
        + truth.intercept
        + levels[patients.hospital]
        + (patients.features[:, 1:] * slopes[patients.hospital]).sum(axis=1)
    )
    held_out = generator.random(count) < 0.2
    drawn = generator.random(len(log_odds)) < 0.7
    return Deal(
        features=patients.features,
        hospital=patients.hospital,
        country=patients.country,
        log_odds=log_odds,
        levels=levels,
        outcomes=(generator.random(len(log_odds)) < expit(log_odds)).astype(np.int64),
        held_out=held_out,
        trains=drawn & ~held_out[patients.hospital],
    )


def _standardised_draws(law: Law, count: int, generator: np.random.Generator) -> Floats:
    """Draw numbers of mean 0 and variance 1."""
    if law == "skewed":
        return generator.exponential(size=count) - 1
    if law == "heavy-tailed":
        return generator.standard_t(_DEGREES, size=count) / np.sqrt(_DEGREES / (_DEGREES - 2))
    return generator.standard_normal(count)


def _placed(truth: Truth, patients: Patients, generator: np.random.Generator) -> Patients:
    """Put patients into hospitals: their own, others of their country by risk, or made-up ones."""
    if truth.hospitals is not None:
        drawn = generator.integers(len(patients.features), size=truth.hospitals * truth.patients)
        return Patients(
            features=patients.features[drawn],
            hospital=np.repeat(np.arange(truth.hospitals), truth.patients),
            country=np.arange(truth.hospitals) // 8,
            coefficients=patients.coefficients,
        )
    if not truth.case_mix:
        return patients
    risk = patients.features @ patients.coefficients
    noise = risk.std() * generator.standard_normal(len(risk))
    score = truth.case_mix * risk + (1 - truth.case_mix) * noise
    features = patients.features.copy()
    country = patients.country[patients.hospital]
    for number in range(patients.country.max() + 1):
        places = np.flatnonzero(country == number)
        # Patients in order of their score go to the country's hospitals one after the other.
        features[places] = patients.features[places[np.argsort(score[places])]]
    return Patients(
        features=features,
        hospital=patients.hospital,
        country=patients.country,
        coefficients=patients.coefficients,
    )

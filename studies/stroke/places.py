"""Hospitals and countries that a federation held out: what it foretells, and what updates repair.

Every interval holds 90 %: countries are drawn anew, and hospitals within each.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import expit, log_expit, logsumexp

from fl_dpbayes.posterior import Distribution, mixed
from fl_dpbayes.posterior.hierarchical.model import LEVEL
from fl_dpbayes.predict.update import residual_sum
from fl_dpbayes.privacy import solve_multiplier
from studies.stroke.comparison import held_out_split, hospitals_of
from studies.stroke.federation import Federation, integrated
from studies.stroke.resampling import ratio
from studies.stroke.rivals import SEED, Floats, Integers, Split, losses

Row = dict[str, object]
HOSPITALS = "hospitals"
COUNTRIES = "countries"
# What is known of a place that was held out.
NOTHING = "nothing"
COUNTRY = "its country"
NEW_COUNTRY = "that its country is a new one"
KNOWN = {HOSPITALS: (NOTHING, COUNTRY), COUNTRIES: (NEW_COUNTRY, NOTHING)}
UPDATED = {HOSPITALS: (NOTHING, COUNTRY), COUNTRIES: (NEW_COUNTRY,)}
WAYS = ("no update", "at home", "private")

PATIENTS_OF_UPDATES = (10, 20, 50, 100)
LEAST_LEFT = 20
# Draws of a place's first patients from each federation: there are few countries.
DRAWS_OF_UPDATES = {HOSPITALS: 1, COUNTRIES: 4}
RELEASE_EPSILON = 1.0
DELTA = 1e-3
SHARES_OF_INTERVALS = (np.arange(200) + 0.5) / 200
SMALLEST = 1e-12


@dataclass(frozen=True)
class Place:
    """A hospital or a country that was held out.

    Attributes:
        privacy: The federation's.
        hospital: Its name; a country's where a country was held out.
        country: The country.
        features: Of all of its patients, shape (n, D).
        labels: 0 or 1, shape (n,).
        log_odds: At a hospital of effect 0, shape (n,).
        one_model: Probability of class 1 under the federation's one model, shape (n,).
        effects: Posterior of its effect by what is known of it.
        federation: That held it out.
    """

    privacy: str
    hospital: str
    country: str
    features: Floats
    labels: Integers
    log_odds: Floats
    one_model: Floats
    effects: Mapping[str, Distribution]
    federation: Federation

    @property
    def public_log_odds(self) -> Floats:
        """Of the public covariates, at effect 0."""
        hospitals = self.federation.hospitals
        return np.asarray(hospitals.covariates @ hospitals.state)


def places_held_out(
    federations: Iterable[Federation], splits: Sequence[Split], kind: str
) -> Iterator[Place]:
    """Yield what federations held out.

    Args:
        federations: Of these, those that held out what is asked for count.
        splits: One for each seed.
        kind: `hospitals`, of countries that took part or did not, or `countries`.
    """
    split_of_seed = {split.seed: split for split in splits}
    for federation in federations:
        country = federation.held_out_country
        if not federation.held_out or (country is None) != (kind == HOSPITALS):
            continue
        split = split_of_seed[federation.seed]
        if country is not None:
            yield place_of(federation, split, country, hospitals_of(split, country))
            continue
        for hospital in federation.held_out:
            yield place_of(federation, split, hospital, [hospital])


def place_of(federation: Federation, split: Split, name: str, hospitals: Collection[str]) -> Place:
    """Gather all patients of hospitals that were held out as one place."""
    patients = held_out_split(split, hospitals).test
    (country,) = np.unique(patients.countries)
    model = federation.hospitals
    effects = {NOTHING: model.effect(), NEW_COUNTRY: model.posterior.of_new()}
    if country in model.groups:
        effects[COUNTRY] = model.effect(group=country)
    return Place(
        privacy=federation.privacy,
        hospital=name,
        country=country,
        features=patients.features,
        labels=patients.labels,
        log_odds=federation.log_odds(patients.features),
        one_model=federation.one_model(patients.features),
        effects=effects,
        federation=federation,
    )


def joint_loss(effect: Distribution, place: Place) -> float:
    """Return minus the log of the probability that an effect gives all labels together."""
    signs = np.where(place.labels == 1, 1.0, -1.0)
    logs = [log_expit(signs * (place.log_odds + theta)).sum() for theta in effect.values]
    return -float(logsumexp(np.array(logs), b=effect.weights))


def best_level(log_odds: Floats, labels: Integers) -> float:
    """Return the shift of log odds that fits best."""
    level = 0.0
    for _ in range(60):
        p = expit(log_odds + level)
        step = (labels - p).sum() / max((p * (1 - p)).sum(), 1e-9)
        level += float(np.clip(step, -1, 1))
    return level


def own_level_loss(log_odds: Floats, labels: Integers) -> float:
    """Return minus log likelihood at the level that fits best, and 1/2 for what that flatters."""
    p = expit(log_odds + best_level(log_odds, labels))
    return float(losses(np.clip(p, SMALLEST, 1 - SMALLEST), labels).sum()) + 0.5


def observed_interval(effect: Distribution, log_odds: Floats) -> tuple[float, float]:
    """Return the 90 % interval of an observed rate, the chance of its patients included."""
    p = expit(log_odds[:, None] + effect.quantiles(SHARES_OF_INTERVALS))
    variances = (p * (1 - p)).mean(axis=0) / len(log_odds)
    return mixed(np.ones(len(variances)), means=p.mean(axis=0), variances=variances).interval(LEVEL)


def held_out_table(places: Callable[[str], Iterator[Place]]) -> pd.DataFrame:
    """Predictions and intervals of event rates at hospitals and in countries held out.

    Args:
        places: Kind -> the places.

    Returns:
        Rows `held out`, `privacy`, `known`, `figure`, and as of `ratio`.
    """
    rows: list[Row] = []
    for kind, known in KNOWN.items():
        of_kind = pd.DataFrame([_held_out_row(place, known) for place in places(kind)])
        for privacy, frame in of_kind.groupby("privacy"):
            count = frame["patients"]
            figures = {("", "one model"): ratio(frame, frame["one model"], count)}
            for name in known:
                for score in ("integrated", "joint"):
                    gap = frame[f"{name} {score}"] - frame["one model"]
                    figures[name, f"{score} less one model"] = ratio(frame, gap, count)
                for figure in ("coverage", "width"):
                    value = frame[f"{name} {figure}"]
                    figures[name, figure] = ratio(frame, value, frame["places"])
            for (name, figure), value in figures.items():
                key = {"held out": kind, "privacy": privacy, "known": name, "figure": figure}
                rows.append(key | value)
    return pd.DataFrame(rows)


def _held_out_row(place: Place, known: Collection[str]) -> Row:
    """Return what the posterior says of one place, by what is known of it."""
    log_odds = place.log_odds
    labels = place.labels
    row: Row = {
        "privacy": place.privacy,
        "hospital": place.hospital,
        "country": place.country,
        "places": 1.0,
        "patients": len(labels),
        "one model": losses(place.one_model, labels).sum(),
    }
    for name in known:
        # Where no other hospital of its country trains, the country is a new one.
        effect = place.effects.get(name, place.effects[NEW_COUNTRY])
        observed_low, observed_high = observed_interval(effect, log_odds)
        low, high = effect.interval(LEVEL)
        row |= {
            f"{name} integrated": losses(integrated(log_odds, effect), labels).sum(),
            f"{name} joint": joint_loss(effect, place),
            f"{name} coverage": float(observed_low <= labels.mean() <= observed_high),
            f"{name} width": float(expit(log_odds + high).mean() - expit(log_odds + low).mean()),
        }
    return row


def update_table(places: Callable[[str], Iterator[Place]]) -> pd.DataFrame:
    """Share of the one model's gap to a place's own level that its first patients close.

    Args:
        places: Kind -> the places, of one budget.

    Returns:
        Rows `held out`, `known`, `patients`, `figure`, and as of `ratio`.
    """
    rows: list[Row] = []
    for kind, known in UPDATED.items():
        frame = pd.DataFrame(update_rows(places(kind), known, DRAWS_OF_UPDATES[kind]))
        for (name, count), part in frame.groupby(["known", "updated with"], sort=False):
            gap = part["one model"] - part["own level"]
            key = {"held out": kind, "known": name, "patients": count}
            for way in WAYS:
                rows.append(key | {"figure": way} | ratio(part, part["one model"] - part[way], gap))
    return pd.DataFrame(rows)


def update_rows(places: Iterable[Place], known: Collection[str], draws: int) -> Iterator[Row]:
    """Yield the losses of a place's other patients after its first ones told of its level.

    Args:
        places: The places.
        known: What may be known of them.
        draws: How often a place's first patients are drawn.
    """
    generator = np.random.default_rng(SEED)
    noise_multiplier = solve_multiplier(RELEASE_EPSILON, DELTA, 1.0, 1)
    for place in places:
        for _ in range(draws):
            order = generator.permutation(len(place.labels))
            for count in PATIENTS_OF_UPDATES:
                if count + LEAST_LEFT > len(order):
                    continue
                noise = noise_multiplier * generator.standard_normal()
                rest = order[count:]
                labels = place.labels[rest]
                common: Row = {
                    "hospital": place.hospital,
                    "country": place.country,
                    "updated with": count,
                    "one model": losses(place.one_model[rest], labels).sum(),
                    "own level": own_level_loss(place.log_odds[rest], labels),
                }
                for name in known:
                    if name not in place.effects:
                        continue
                    updated = _updated(place, place.effects[name], order[:count], noise)
                    after = {
                        way: losses(integrated(place.log_odds[rest], effect), labels).sum()
                        for way, effect in updated.items()
                    }
                    yield common | {"known": name} | after


def _updated(
    place: Place, effect: Distribution, first: Integers, noise: float
) -> dict[str, Distribution]:
    """Return way -> the effect after a place's first patients told of it."""
    log_odds = place.log_odds[first]
    labels = place.labels[first]
    units = np.arange(len(first))
    release = residual_sum(log_odds + effect.mean, labels, units).sums[0]
    return {
        "no update": effect,
        "at home": effect.given_labels(log_odds, labels),
        "private": effect.given_release(
            release + noise,
            noise=solve_multiplier(RELEASE_EPSILON, DELTA, 1.0, 1),
            units=len(first),
            log_odds=place.public_log_odds,
        ),
    }


def at_home_table(federations: Iterable[Federation], splits: Sequence[Split]) -> pd.DataFrame:
    """Log loss at training hospitals where their own patients tell the level exactly.

    Args:
        federations: Of these, those in which all hospitals train count.
        splits: One for each seed.

    Returns:
        Rows `privacy`, `figure`, and as of `ratio`.
    """
    split_of_seed = {split.seed: split for split in splits}
    measured = [
        row
        for federation in federations
        if not federation.held_out
        for row in _at_home_rows(federation, split_of_seed[federation.seed])
    ]
    rows: list[Row] = []
    for privacy, part in pd.DataFrame(measured).groupby("privacy", sort=False):
        figures = {
            "at the server": part["at the server"],
            "at home": part["at home"],
            "at home less at the server": part["at home"] - part["at the server"],
        }
        for figure, value in figures.items():
            rows.append(
                {"privacy": privacy, "figure": figure, **ratio(part, value, part["tested"])}
            )
    return pd.DataFrame(rows)


def _at_home_rows(federation: Federation, split: Split) -> Iterator[Row]:
    train = split.train
    test = split.test
    hospitals = federation.hospitals
    for hospital in hospitals.sites:
        own = train.subset(train.hospitals == hospital)
        tested = test.subset(test.hospitals == hospital)
        log_odds = federation.log_odds(tested.features)
        others = hospitals.without(hospital)
        at_home = others.given_labels(federation.log_odds(own.features), own.labels)
        at_server = hospitals.effect(hospital)
        yield {
            "privacy": federation.privacy,
            "hospital": hospital,
            "country": tested.countries[0],
            "tested": len(tested),
            "at the server": losses(integrated(log_odds, at_server), tested.labels).sum(),
            "at home": losses(integrated(log_odds, at_home), tested.labels).sum(),
        }

"""Do intervals hold for hospitals that nobody has seen? Simulations where the truth is known.

python -m studies.known_hospitals.study run OUT [--truth NAME] [--epsilon NAME] [--deals N]
python -m studies.known_hospitals.study tables OUT TABLES

A deal that is there already is not run again.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit

from fl_dpbayes.config import Scenario, load_scenario
from fl_dpbayes.files import write_atomically
from fl_dpbayes.posterior import Distribution, HospitalModel, fit_log_odds
from fl_dpbayes.posterior.hierarchical.model import MEDIAN, SHARES
from studies.known_hospitals.rounds import run_rounds
from studies.known_hospitals.truths import TRUTHS, Deal, Patients, Truth, deal, trial_patients

Floats = npt.NDArray[np.float64]
# As the study of the trial runs it without privacy: nothing is clipped, hospitals weigh by their
# patients, and the chain goes to its mode.
WITHOUT_PRIVACY = [
    "privacy.epsilon=",
    "privacy.coupling=",
    "privacy.clip_norm=",
    "aggregation.size_power=",
    "sampler={kind='sgld', step_size={kind='constant', initial=1.4}, "
    "prior={kind='gaussian', scale=1.0}}",
    "training={rounds=400, steps_per_round=1, burn_in=300, thinning=1}",
]
EPSILONS = {
    "0.5": ["privacy.epsilon=0.5"],
    "1": [],
    "2": ["privacy.epsilon=2"],
    "8": ["privacy.epsilon=8"],
    "none": WITHOUT_PRIVACY,
}
# Deals before this one were looked at while the method was made.
FIRST_DEAL = 1000
# Deals of the main truth at the main epsilon, and of every other truth and epsilon.
MAIN_TRUTH = "as found"
MAIN_EPSILON = "1"
MAIN_DEALS = 100
OTHER_DEALS = 20
COVERAGES = (0.5, 0.8, 0.9, 0.95)
# Every so many training hospitals, and hospitals placed in a new country, are looked at.
STRIDE = 5
# Levels are looked for between these log odds.
_FARTHEST = 8.0
_HALVINGS = 40
KINDS = {
    "country known": "a new hospital, its country known",
    "nothing known": "a new hospital, nothing known",
    "new country": "a new hospital of a new country",
    "training": "a hospital that trained",
    "hospital_sd": "standard deviation between hospitals",
    "country_sd": "standard deviation between countries",
}


def scenario_at(truth: Truth, countries: int, epsilon: str) -> Scenario:
    """Return the scenario whose settings the rounds take."""
    settings = list(EPSILONS[epsilon])
    if truth.hospitals is None:
        return load_scenario("stroke", settings)
    sites = ",".join(
        f"s{number}={{role='train', group='c{number // 8}'}}" for number in range(truth.hospitals)
    )
    assert countries == (truth.hospitals + 7) // 8
    return load_scenario("stroke", [*settings, f"sites={{{sites}}}"])


def run_deal(name: str, epsilon: str, number: int, patients: Patients) -> dict[str, object]:
    """Deal hospitals, run the rounds, and compare what is foretold with the truth.

    Args:
        name: Of the truth.
        epsilon: A key of EPSILONS.
        number: Of the deal; the same outcomes at every epsilon.
        patients: The trial's.

    Returns:
        For each kind of hospital and spread the probability that was foretold below the truth
        (`below`), the standard deviations of what was foretold (`width`) and how far its mean was
        off (`off`), in log odds; and sums of log losses.
    """
    truth = TRUTHS[name]
    index = list(TRUTHS).index(name)
    drawn = deal(truth, patients, np.random.default_rng([number, index, 0]))
    scenario = scenario_at(truth, drawn.country.max() + 1, epsilon)
    generator = np.random.default_rng([number, index, 1 + list(EPSILONS).index(epsilon)])
    training = np.unique(drawn.hospital[drawn.trains])
    names = sorted(scenario.sites)
    if truth.hospitals is not None:
        names = [f"s{place}" for place in range(truth.hospitals)]
    sites = tuple(names[place] for place in training)
    released = run_rounds(
        features=drawn.features[drawn.trains],
        outcomes=drawn.outcomes[drawn.trains],
        hospital=np.searchsorted(training, drawn.hospital[drawn.trains]),
        sites=sites,
        scenario=scenario,
        generator=generator,
    )
    model = fit_log_odds(
        sites,
        means=released.means,
        rounds=released.rounds,
        scenario=scenario,
    )
    groups = [scenario.sites[name].group or "" for name in names]
    return _compared(drawn, model, truth, groups, training, generator)


def _compared(
    drawn: Deal,
    model: HospitalModel,
    truth: Truth,
    groups: list[str],
    training: npt.NDArray[np.int64],
    generator: np.random.Generator,
) -> dict[str, object]:
    """Compare what a model foretells with a deal's truth."""
    predicted = drawn.features @ model.state
    below: dict[str, list[float]] = {kind: [] for kind in KINDS}
    width: dict[str, list[float]] = {kind: [] for kind in KINDS}
    off: dict[str, list[float]] = {kind: [] for kind in KINDS}
    losses = {"country known": 0.0, "nothing known": 0.0}
    tested = 0

    def compare(kind: str, effect: Distribution, value: float) -> None:
        masses = np.cumsum(effect.weights) - effect.weights / 2
        below[kind].append(float(np.interp(value, effect.values, masses, left=0, right=1)))
        width[kind].append(effect.sd)
        off[kind].append(effect.mean - value)

    def level(place: int, moved: float = 0.0) -> float:
        """Return the level at which the model's rate at a hospital is the true one."""
        inside = drawn.hospital == place
        rate = expit(drawn.log_odds[inside] + moved).mean()
        return level_of_rate(predicted[inside], float(rate))

    nothing_known = model.effect()
    new_country = model.posterior.of_new()
    for place in np.flatnonzero(drawn.held_out).tolist():
        inside = drawn.hospital == place
        if not inside.any():
            continue
        compare("nothing known", nothing_known, level(place))
        effect = new_country
        if groups[place] in model.groups:
            effect = model.effect(group=groups[place])
            compare("country known", effect, level(place))
        tested += int(inside.sum())
        for kind, of_kind in (("country known", effect), ("nothing known", nothing_known)):
            losses[kind] += log_loss(predicted[inside], drawn.outcomes[inside], of_kind)
    for number, place in enumerate(training[::STRIDE].tolist()):
        compare("training", model.posterior.of_hospital(number * STRIDE), level(place))
    total_sd = np.hypot(truth.hospital_sd, truth.country_sd)
    for place in range(0, len(drawn.levels), STRIDE):
        if (drawn.hospital == place).any():
            moved = total_sd * generator.standard_normal() - drawn.levels[place]
            compare("new country", new_country, level(place, moved))
    hospital_sd, country_sd = model.posterior.spreads
    compare("hospital_sd", hospital_sd, truth.hospital_sd)
    compare("country_sd", country_sd, truth.country_sd)
    return {
        "below": below,
        "width": width,
        "off": off,
        "losses": losses,
        "tested": tested,
        "medians": [float(spread.quantiles(MEDIAN)) for spread in model.posterior.spreads],
    }


def level_of_rate(log_odds: Floats, rate: float) -> float:
    """Return the level that gives patients of these log odds a rate, by bisection."""
    low = -_FARTHEST
    high = _FARTHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if expit(log_odds + middle).mean() < rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def log_loss(log_odds: Floats, outcomes: npt.NDArray[np.int64], effect: Distribution) -> float:
    """Return the summed log loss of predictions that integrate over an effect."""
    risk = expit(log_odds[:, None] + effect.quantiles(SHARES)).mean(axis=1)
    return -float(np.log(np.where(outcomes == 1, risk, 1 - risk)).sum())


def cells() -> Iterator[tuple[str, str, int]]:
    """Yield truth, epsilon and how many deals, the main one first."""
    yield MAIN_TRUTH, MAIN_EPSILON, MAIN_DEALS
    for name in TRUTHS:
        if name != MAIN_TRUTH:
            yield name, MAIN_EPSILON, OTHER_DEALS
    for epsilon in EPSILONS:
        if epsilon != MAIN_EPSILON:
            yield MAIN_TRUTH, epsilon, OTHER_DEALS


def coverage_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Summarise deals.

    Args:
        rows: `truth`, `epsilon`, `deal` and `result`, as `run_deal` returns it.

    Returns:
        A row for each truth, epsilon and kind: in how many cases intervals held, with standard
        errors over deals, bias and width in log odds.
    """
    table = []
    for (truth, epsilon), of_cell in rows.groupby(["truth", "epsilon"], sort=False):
        for kind in KINDS:
            below = [np.array(result["below"][kind]) for result in of_cell["result"]]
            counts = np.array([len(values) for values in below])
            if not counts.sum():
                continue
            row: dict[str, object] = {
                "truth": truth,
                "epsilon": epsilon,
                "kind": kind,
                "deals": len(of_cell),
                "cases": int(counts.sum()),
            }
            for share in COVERAGES:
                held = np.array([(np.abs(2 * values - 1) < share).sum() for values in below])
                mean = held.sum() / counts.sum()
                # Hospitals of one deal share a fit, so deals are what is independent.
                error = np.sqrt(np.square(held - mean * counts).sum()) / counts.sum()
                row[f"held_{share:.0%}"] = mean
                row[f"error_{share:.0%}"] = error
            for figure in ("off", "width"):
                values = [value for result in of_cell["result"] for value in result[figure][kind]]
                row["bias" if figure == "off" else figure] = float(np.mean(values))
            if kind in ("hospital_sd", "country_sd"):
                place = 0 if kind == "hospital_sd" else 1
                row["median"] = float(np.mean([r["medians"][place] for r in of_cell["result"]]))
            if kind in ("country known", "nothing known"):
                losses = sum(result["losses"][kind] for result in of_cell["result"])
                row["log_loss"] = losses / sum(result["tested"] for result in of_cell["result"])
            table.append(row)
    return pd.DataFrame(table)


def read_deals(folder: Path) -> pd.DataFrame:
    """Read the finished deals of a study's folder."""
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    frame = pd.DataFrame(rows)
    order = {(truth, epsilon): place for place, (truth, epsilon, _) in enumerate(cells())}
    frame["order"] = [order[key] for key in zip(frame["truth"], frame["epsilon"], strict=True)]
    return frame.sort_values(["order", "deal"], ignore_index=True)


def main() -> None:
    """Run deals, or write the table of those that are there."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the deals that are not there")
    run.add_argument("out", type=Path)
    run.add_argument("--truth", choices=TRUTHS)
    run.add_argument("--epsilon", choices=EPSILONS)
    run.add_argument("--deals", type=int, help="at most, of each truth and epsilon")
    tables = commands.add_parser("tables", help="write coverage.csv")
    tables.add_argument("out", type=Path)
    tables.add_argument("tables", type=Path)
    asked = parser.parse_args()
    if asked.command == "tables":
        asked.tables.mkdir(parents=True, exist_ok=True)
        table = coverage_table(read_deals(asked.out))
        table.round(4).to_csv(asked.tables / "coverage.csv", index=False)
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    patients = trial_patients(load_scenario("stroke", []))
    for truth, epsilon, deals in cells():
        if asked.truth not in (None, truth) or asked.epsilon not in (None, epsilon):
            continue
        for number in range(FIRST_DEAL, FIRST_DEAL + min(deals, asked.deals or deals)):
            path = asked.out / f"{truth.replace(' ', '-')}_{epsilon}_{number}.json"
            if path.exists():
                continue
            result = run_deal(truth, epsilon, number, patients)
            cell = {"truth": truth, "epsilon": epsilon, "deal": number, "result": result}
            write_atomically(path, json.dumps(cell))


if __name__ == "__main__":
    main()

"""What leaves a site beside its noised arrays is as declared and says nothing of its records.

Two sites have the same site file and other records, one fewer and one more of them. Every kind of
message goes to both.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from flwr.app import Array as SentArray
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

from fl_dpbayes.audit import canary_site, declared
from fl_dpbayes.audit.canary_site import CanarySite
from fl_dpbayes.audit.exchanges import Exchange, list_exchanges
from fl_dpbayes.audit.gradients import synthetic_records
from fl_dpbayes.config import Scenario, SiteFile, outside_text
from fl_dpbayes.privacy import planned_stretch
from fl_dpbayes.privacy.audit_statistics import Check, correlation_tests, verdicts
from fl_dpbayes.protocol import (
    RecalibrateRequest,
    TrainRequest,
    read_header,
    request_digest,
    write_header,
)

FALSE_ALARM = 5e-6
PART = "replies"
# Units of each part, declared and held: as far apart as a site's check of its own number allows.
DECLARED = 40
HELD = {"fewer": 36, "more": 44}
MOST_DIFFERENCES = 3
# Fewer numbers are too few for a correlation.
LEAST_NUMBERS = 3
DECLARED_VALUES = (
    "replies hold the declared fields, arrays and metrics, with the declared "
    "values, and nothing else"
)
OTHER_RECORDS = "what is not noised is the same at a site of other records"
SAME_BITS = "the same request is answered again by the same bits"
INDEPENDENT_NOISE = (
    "two sites of one name answer one request with independent noise, if no seed is set"
)


@dataclass(frozen=True)
class Answer:
    """What came back for a message.

    Attributes:
        text: Its header, as it was written.
        frame: What it consists of: parts, envelope, entries, metrics and arrays by name.
        fields: Of the header; of nested ones only the privacy statement is taken apart.
        metrics: By name.
        arrays: By name.
        refused: Whether it is a refusal.
    """

    text: str
    frame: Mapping[str, object]
    fields: Mapping[str, object]
    metrics: Mapping[str, object]
    arrays: Mapping[str, SentArray]
    refused: bool


def audit_replies(scenario: Scenario, folder: Path, generator: np.random.Generator) -> list[Check]:
    """Test that replies hold what is declared, whatever the records, and come again unchanged.

    Sites have no seed, whatever the scenario: so the noise of two, of one name, to one request must
    be independent.

    Args:
        scenario: Whose plan and model the messages have.
        folder: To write the sites into.
        generator: Draws their records and the state that they start from.

    Returns:
        A check for each kind of difference, and one of the noise.
    """
    delta = min(scenario.privacy.delta, 0.5 / DECLARED / len(canary_site.PARTS))
    simulation = scenario.simulation.model_copy(update={"insecure_seed": None})
    unseeded = scenario.model_copy(update={"simulation": simulation})
    noised_sites = {
        name: _write_site(folder / name / "site", unseeded, count, delta, generator)
        for name, count in HELD.items()
    }
    public_sites = {
        name: canary_site.with_public_evaluations(site) for name, site in noised_sites.items()
    }
    differences: dict[str, list[str]] = {DECLARED_VALUES: [], OTHER_RECORDS: [], SAME_BITS: []}
    findings = []
    for number, exchange in enumerate(list_exchanges(scenario, delta, generator)):
        place = f"{exchange.kind} {number + 1}"
        sites = public_sites if exchange.public else noised_sites
        answers = {name: _answer(site, exchange) for name, site in sites.items()}
        fewer = answers["fewer"]
        repeated = _answer(sites["fewer"], exchange)
        for name, answer in answers.items():
            undeclared = _undeclared(sites[name].file, exchange, answer)
            differences[DECLARED_VALUES] += [f"{place}: {words}" for words in undeclared]
        between_sites = _between_sites(exchange, fewer, answers["more"])
        differences[OTHER_RECORDS] += [f"{place}: {words}" for words in between_sites]
        differences[SAME_BITS] += [f"{place}: {words}" for words in _changed(fewer, repeated)]
        if not exchange.public:
            noise = {
                f"{place} of {name} records": _released_numbers(exchange, answer)
                for name, answer in answers.items()
            }
            if all(len(numbers) >= LEAST_NUMBERS for numbers in noise.values()):
                findings += correlation_tests(noise)
    return [
        *(_difference_check(title, words) for title, words in differences.items()),
        *verdicts("fresh noise", {INDEPENDENT_NOISE: findings}, FALSE_ALARM),
    ]


def _difference_check(title: str, differences: list[str]) -> Check:
    return Check(
        part=PART,
        what=title,
        value=float(len(differences)),
        limit=0.0,
        where="; ".join(differences[:MOST_DIFFERENCES]),
        finds="one difference",
    )


def _write_site(
    folder: Path, scenario: Scenario, count: int, delta: float, generator: np.random.Generator
) -> CanarySite:
    """Write a site that holds `count` units of each part, of one random record each."""
    task = scenario.data.source.task
    names = canary_site.names_by_part(count)
    units = [unit for part in canary_site.PARTS for unit in names[part]]
    levels, _ = synthetic_records(task, generator, len(units))
    labels = task.outcome.made_up(generator, len(units))
    records = canary_site.CanaryRecords(task=task, features=levels, labels=labels, units=units)
    return canary_site.write_parted_site(folder, scenario, records, DECLARED, delta=delta)


def _answer(site: CanarySite, exchange: Exchange) -> Answer:
    message = canary_site.answer_of(site.path, exchange.kind, exchange.request, exchange.arrays)
    content = message.content
    envelope = message.metadata
    config = content.config_records.get("config", ConfigRecord())
    metrics = dict(content.metric_records.get("metrics", MetricRecord()))
    arrays = dict(content.array_records.get("arrays", ArrayRecord()))
    text = str(config.get("record", config.get("refusal", "")))
    fields: dict[str, object] = json.loads(text)
    # A reply that cost nothing has no statement to take apart.
    statement = fields.pop("privacy", None)
    if isinstance(statement, dict):
        fields |= {f"privacy.{name}": value for name, value in statement.items()}
    elif statement is not None:
        fields["privacy"] = statement
    return Answer(
        text=text,
        frame={
            "parts": sorted(content),
            "envelope": (envelope.message_type, envelope.reply_to_message_id, envelope.group_id),
            "entries": list(config),
            "metrics": list(metrics),
            "arrays": [(name, tuple(array.shape), array.dtype) for name, array in arrays.items()],
        },
        fields=fields,
        metrics=metrics,
        arrays=arrays,
        refused="refusal" in config,
    )


def _unequal(
    first: Mapping[str, object], second: Mapping[str, object], names: Iterable[str]
) -> Iterator[str]:
    """Name each entry that differs."""
    for name in names:
        if first.get(name) != second.get(name):
            yield f"{name} is {first.get(name)!r} and {second.get(name)!r}"


def _undeclared(file: SiteFile, exchange: Exchange, answer: Answer) -> Iterator[str]:
    """Name each part of an answer that is undeclared, is missing or has another value."""
    expected_frame = _expected_frame(exchange, answer.refused)
    yield from _unequal(answer.frame, expected_frame, expected_frame)
    if answer.refused:
        if set(answer.fields) != {"code", "field"}:
            yield "a refusal holds more than code and field"
        return
    try:
        if write_header(read_header(declared.REPLIES[exchange.kind], answer.text)) != answer.text:
            yield "its header is not written as such headers are"
    except ValueError as error:
        yield f"its header is refused: {outside_text(str(error))}"
    undeclared = sorted(set(answer.fields) - set(declared.HEADERS[exchange.kind]))
    if undeclared:
        yield f"undeclared fields {undeclared}"
    expected_fields = _expected_fields(file, exchange)
    yield from _unequal(answer.fields, expected_fields, expected_fields)
    expected_metrics = _expected_metrics(file, exchange, answer)
    yield from _unequal(answer.metrics, expected_metrics, expected_metrics)
    for name, array in answer.arrays.items():
        if array.data != SentArray(np.ascontiguousarray(array.numpy())).data:
            yield f"array {name} is not written as numpy writes it"


def _expected_frame(exchange: Exchange, refused: bool) -> dict[str, object]:
    layouts = {} if refused else exchange.layouts
    metrics = list(declared.METRICS) if exchange.kind == "train" and not refused else []
    parts = {"arrays": layouts, "config": True, "metrics": metrics}
    return {
        "parts": [name for name, present in parts.items() if present],
        "envelope": (exchange.kind, "audit", "1"),
        "entries": ["refusal" if refused else "record"],
        "metrics": metrics,
        "arrays": [(name, *layout) for name, layout in layouts.items()],
    }


def _expected_fields(file: SiteFile, exchange: Exchange) -> dict[str, object]:
    """Return the fields that follow from the request and the site file."""
    ledger = file.ledger
    assert ledger is not None
    request = exchange.request
    if request is None:
        return {
            "name": file.name,
            "role": file.role,
            "units": file.units,
            "seeded": False,
            "shift": "",
        }
    expected: dict[str, object] = {
        "run": request.run,
        "round": request.round,
        "request": request_digest(request),
    }
    if not exchange.public:
        expected |= {
            "privacy.cohort": ledger.cohort,
            "privacy.delta": ledger.delta,
            "privacy.adjacency": ledger.adjacency,
            "privacy.budget": ledger.epsilon,
            "privacy.seeded": False,
        }
    if isinstance(request, TrainRequest | RecalibrateRequest):
        expected |= {"status": "OK", "first_step": request.first_step, "steps": request.steps}
    if isinstance(request, TrainRequest):
        expected |= {
            "privacy.units": file.units,
            "privacy.steps": request.first_step + request.steps,
        }
    return expected


def _expected_metrics(file: SiteFile, exchange: Exchange, answer: Answer) -> dict[str, object]:
    request = exchange.request
    if not isinstance(request, TrainRequest):
        return {}
    stretch = planned_stretch(
        plan=request.plan,
        units=file.units,
        first_step=request.first_step,
        steps=request.steps,
    )
    return {
        "units": file.units,
        "steps": request.steps,
        "epsilon": answer.fields.get("privacy.epsilon"),
        "temperature": stretch.temperature,
    }


def _between_sites(exchange: Exchange, fewer: Answer, more: Answer) -> Iterator[str]:
    """Name what is neither noised nor declared public and differs between two sites."""
    yield from _unequal(fewer.frame, more.frame, fewer.frame)
    yield from _unequal(fewer.metrics, more.metrics, {*fewer.metrics, *more.metrics})
    first = _steady_fields(exchange, fewer)
    second = _steady_fields(exchange, more)
    yield from _unequal(first, second, sorted({*first, *second}))


def _steady_fields(exchange: Exchange, answer: Answer) -> dict[str, object]:
    """Return the fields that must not follow from records or time."""
    headers = declared.HEADERS[exchange.kind]
    steady = {}
    for name, value in answer.fields.items():
        origin = headers[name].origin if name in headers else "undeclared"
        if origin == "machine":
            steady[name] = _without_speed(value)
        elif origin not in ("noised", "public", "head"):
            steady[name] = value
    return steady


def _without_speed(passes: object) -> object:
    """Leave out how slow the site says its passes are: that was measured."""
    if not isinstance(passes, dict):
        return passes
    rows = [
        {key: value for key, value in row.items() if key != "slower"} for row in passes["passes"]
    ]
    return passes | {"passes": rows}


def _changed(answer: Answer, repeated: Answer) -> Iterator[str]:
    """Name what differs between two answers of one site to one request."""
    # The ledger's head moves on with every answer.
    names = sorted({*answer.fields, *repeated.fields} - {"ledger_head"})
    yield from _unequal(answer.fields, repeated.fields, names)
    first = {name: array.data for name, array in answer.arrays.items()}
    second = {name: array.data for name, array in repeated.arrays.items()}
    if first != second:
        yield "its arrays differ"


def _released_numbers(exchange: Exchange, answer: Answer) -> npt.NDArray[np.float64]:
    """Return the noised numbers of an answer in one vector.

    Of a state these are the vectors that are linear in the noise, less what was sent.
    """
    linear: tuple[str, ...] = ("last/parameters/", "last/spread/")
    request = exchange.request
    if isinstance(request, TrainRequest) and request.plan.sampler.rescales:
        linear = ("last/first_moment/",)
    vectors: list[npt.NDArray] = [np.array(answer.fields.get("parameters") or ())]
    for name, array in answer.arrays.items():
        start = exchange.arrays.get(f"start/{name.removeprefix('last/')}")
        if start is not None and name.startswith(linear):
            vectors.append((array.numpy().astype(np.float64) - start).ravel())
        elif not name.startswith(("samples/", "last/")):
            vectors.append(array.numpy().astype(np.float64).ravel())
    return np.concatenate(vectors)

"""What leaves a site beside its noised arrays is as declared and says nothing of its records.

Two sites have the same site file and other records, one fewer and one more of them. Every kind of
message goes to both.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from flwr.app import Array as SentArray
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.app import Message as FlowerMessage

from fl_dpbayes.audit import canary_site, declared
from fl_dpbayes.audit.gradients import start_vector, synthetic_records
from fl_dpbayes.audit.reading import loud_plan, own_plan
from fl_dpbayes.config import PrivacyPlan, Scenario, Split, outside_text, write_site_file
from fl_dpbayes.config import recalibration as config
from fl_dpbayes.files import Message
from fl_dpbayes.models import model_shapes
from fl_dpbayes.outcomes import outcome_of
from fl_dpbayes.privacy import planned_stretch
from fl_dpbayes.privacy.audit_statistics import Check, correlation_tests, verdicts
from fl_dpbayes.protocol import (
    Arrays,
    EvaluateReply,
    EvaluateRequest,
    RecalibrateReply,
    RecalibrateRequest,
    SiteCard,
    TrainReply,
    TrainRequest,
    arrays_digest,
    prefixed,
    read_header,
    request_digest,
    write_header,
)

FALSE_ALARM = 5e-6
PART = "replies"
SHARES = {"test": (0.0, 0.3), "recalibration": (0.3, 0.6), "training": (0.6, 1.0)}
# Units of each part, declared and held: as far apart as a site's check of its own number allows.
DECLARED = 40
HELD = {"fewer": 36, "more": 44}
# Sums drown in so much noise: two releases then have no record's contribution in common.
NOISE = 1000.0
EPSILON = 1e-3
ROUNDS = 3
STEPS = 4
DESCENT_STEPS = 4
MOST_DIFFERENCES = 3
# Fewer numbers are too few for a correlation.
LEAST_NUMBERS = 3
REPLIES: dict[str, type[Message]] = {
    "query": SiteCard,
    "train": TrainReply,
    "train.recalibrate": RecalibrateReply,
    "evaluate": EvaluateReply,
}
TITLES = {
    "declared": (
        "replies hold the declared fields, arrays and metrics, with the declared "
        "values, and nothing else"
    ),
    "records": "what is not noised is the same at a site of other records",
    "again": "the same request is answered again by the same bits",
}
INDEPENDENT_NOISE = (
    "two sites of one name answer one request with independent noise, if no seed is set"
)

# Array name -> its shape and type.
Layouts = dict[str, tuple[tuple[int, ...], str]]


@dataclass(frozen=True)
class Exchange:
    """A message to both sites and what has to come back.

    Attributes:
        kind: Of the message, by Flower's name of its handler.
        request: None for a query.
        arrays: Sent with the request.
        layouts: Of the arrays that have to come; none where a refusal may come.
        public: Whether it goes to sites that let exact sums of test records out.
    """

    kind: str
    request: Message | None
    arrays: Arrays
    layouts: Layouts
    public: bool = False


@dataclass(frozen=True)
class SitePair:
    """Two sites that differ in their records alone.

    Attributes:
        fewer: Holds fewer units than it declares.
        more: Holds more.
    """

    fewer: canary_site.CanarySite
    more: canary_site.CanarySite


@dataclass(frozen=True)
class Sites:
    """The pair of sites, once for each release of evaluations.

    Attributes:
        noised: Release noised evaluations.
        public: Let exact sums of test records out.
    """

    noised: SitePair
    public: SitePair


@dataclass
class Differences:
    """What was wrong with replies, in words.

    Attributes:
        undeclared: What is not as declared.
        between_sites: What is not noised and differs between the two sites.
        repeated: What differs where the request is sent again.
    """

    undeclared: list[str] = field(default_factory=list)
    between_sites: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)


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
    sites = _write_sites(scenario, folder, generator)
    differences = Differences()
    findings = []
    for number, exchange in enumerate(_exchanges(scenario, sites.noised.fewer, generator)):
        place = f"{exchange.kind} {number + 1}"
        pair = sites.public if exchange.public else sites.noised
        fewer = _answer(pair.fewer, exchange)
        more = _answer(pair.more, exchange)
        repeated = _answer(pair.fewer, exchange)
        for site, answer in ((pair.fewer, fewer), (pair.more, more)):
            undeclared = _undeclared(site, exchange, answer)
            differences.undeclared += [f"{place}: {words}" for words in undeclared]
        between_sites = _different(exchange, fewer, more)
        differences.between_sites += [f"{place}: {words}" for words in between_sites]
        differences.repeated += [f"{place}: {words}" for words in _changed(fewer, repeated)]
        if exchange.public:
            continue
        noise = {}
        for name, answer in (("fewer", fewer), ("more", more)):
            numbers = _released_numbers(exchange, answer)
            if len(numbers) >= LEAST_NUMBERS:
                noise[f"{place} of {name} records"] = numbers
        findings += correlation_tests(noise)
    return [
        _difference_check(TITLES["declared"], differences.undeclared),
        _difference_check(TITLES["records"], differences.between_sites),
        _difference_check(TITLES["again"], differences.repeated),
        *verdicts("fresh noise", {INDEPENDENT_NOISE: findings}, FALSE_ALARM),
    ]


def _difference_check(title: str, differences: list[str]) -> Check:
    return Check(
        part=PART,
        what=title,
        value=float(len(differences)),
        limit=0.0,
        relation="at most",
        where="; ".join(differences[:MOST_DIFFERENCES]),
        finds="one difference",
    )


def _write_sites(scenario: Scenario, folder: Path, generator: np.random.Generator) -> Sites:
    unseeded = scenario.model_copy(
        update={"simulation": scenario.simulation.model_copy(update={"insecure_seed": None})}
    )
    noised = {
        name: _write_site(
            folder=folder / name / "site", scenario=unseeded, count=count, generator=generator
        )
        for name, count in HELD.items()
    }
    public = {name: _publish_evaluations(site) for name, site in noised.items()}
    return Sites(noised=SitePair(**noised), public=SitePair(**public))


def _write_site(
    folder: Path, scenario: Scenario, count: int, generator: np.random.Generator
) -> canary_site.CanarySite:
    """Write a site that holds `count` units of each part, of one random record each."""
    task = scenario.data.source.task
    names = canary_site.unit_names(SHARES, count)
    units = [unit for part in SHARES for unit in names[part]]
    levels, _ = synthetic_records(task, generator, len(units))
    labels = task.outcome.made_up(generator, len(units))
    return canary_site.write_canary_site(
        folder,
        scenario,
        canary_site.CanaryRecords(task=task, features=levels, labels=labels, units=units),
        DECLARED,
        delta=min(scenario.privacy.delta, 0.5 / DECLARED / len(SHARES)),
        policy=canary_site.willing(
            evaluation_release="noised", min_evaluation_noise_multiplier=0.1
        ),
        split=Split(test_fraction=0.3, recalibration_fraction=0.3, key=canary_site.KEY),
    )


def _publish_evaluations(site: canary_site.CanarySite) -> canary_site.CanarySite:
    """Write a second file of a site, which lets exact sums of test records out."""
    policy = site.file.policy.model_copy(update={"evaluation_release": "public"})
    file = site.file.model_copy(update={"policy": policy})
    path = site.path.with_name("public.toml")
    write_site_file(file, path)
    return canary_site.CanarySite(path, file)


def _exchanges(
    scenario: Scenario, site: canary_site.CanarySite, generator: np.random.Generator
) -> list[Exchange]:
    """List a message of every kind, with every form of its request."""
    assert site.file.ledger is not None
    delta = site.file.ledger.delta
    parameters = _random_parameters(scenario, generator)
    return [
        Exchange(kind="query", request=None, arrays={}, layouts={}),
        *_training_exchanges(scenario, parameters, delta),
        *_posterior_exchanges(scenario, parameters, delta),
    ]


def _random_parameters(scenario: Scenario, generator: np.random.Generator) -> Arrays:
    task = scenario.data.source.task
    shapes = model_shapes(scenario.model, task)
    vector = start_vector(scenario.model, task, generator).astype(np.float32)
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    tensors = np.split(vector, ends[:-1])
    return {
        name: tensor.reshape(shape)
        for (name, shape), tensor in zip(shapes.items(), tensors, strict=True)
    }


def _training_exchanges(scenario: Scenario, parameters: Arrays, delta: float) -> list[Exchange]:
    """Ask for stretches of the first chain, drowned in noise."""
    plan = own_plan(scenario)
    assert isinstance(plan.privacy, PrivacyPlan)
    drowned = loud_plan(
        plan,
        clip_norm=plan.privacy.noise_unit,
        sampling_rate=min(0.5, plan.privacy.sampling_rate),
        noise_multiplier=NOISE,
        move=1e-6,
        rounds=ROUNDS,
        steps_per_round=STEPS,
    )
    privacy = drowned.privacy.model_copy(update={"delta": delta})
    drowned = drowned.model_copy(update={"privacy": privacy})
    state = {
        f"{vector}/{name}": array if vector == "parameters" else np.zeros_like(array)
        for vector in plan.sampler.state_vectors
        for name, array in parameters.items()
    }
    last: Layouts = {f"last/{name}": (array.shape, "float32") for name, array in state.items()}
    samples: Layouts = {
        f"samples/{name}": ((STEPS, *array.shape), "float32") for name, array in parameters.items()
    }
    return [
        Exchange(
            kind="train",
            request=TrainRequest(
                run=f"{7:032x}",
                round=number + 1,
                task=scenario.data.source.task,
                model=scenario.model,
                plan=drowned,
                first_step=number * STEPS,
                steps=STEPS,
                start=arrays_digest(state),
            ),
            arrays=prefixed("start", state),
            layouts=last | samples,
        )
        for number in range(min(ROUNDS, drowned.chain_steps // STEPS))
    ]


def _posterior_exchanges(scenario: Scenario, parameters: Arrays, delta: float) -> list[Exchange]:
    """Ask for both recalibrations, both evaluations, and a noised one at another delta."""
    task = scenario.data.source.task
    adjacency = scenario.privacy.adjacency
    posterior = prefixed("posterior", {name: array[None] for name, array in parameters.items()})
    counting = RecalibrateRequest(
        run=f"{8:032x}",
        round=1,
        task=task,
        model=scenario.model,
        arrays=arrays_digest(posterior),
        weights=(1.0,),
        plan=config.CountingPlan(epsilon=EPSILON, delta=delta, adjacency=adjacency),
        first_step=0,
        steps=1,
    )
    descent_plan = config.RecalibrationPlan(
        method="vector",
        epsilon=EPSILON,
        delta=delta,
        adjacency=adjacency,
        clip_norm=1.0,
        steps=DESCENT_STEPS,
        rounds=1,
        step_size=1e-6,
    )
    descent = RecalibrateRequest(
        run=f"{11:032x}",
        round=1,
        task=task,
        model=scenario.model,
        arrays=arrays_digest(posterior),
        weights=(1.0,),
        plan=descent_plan,
        first_step=0,
        steps=DESCENT_STEPS,
        start=(0.0,) * config.parameter_count("vector", task.outcome),
    )
    exact = EvaluateRequest(
        run=f"{9:032x}",
        round=1,
        task=task,
        model=scenario.model,
        arrays=arrays_digest(posterior),
        predictors={"posterior": (1.0,)},
        delta=delta,
    )
    noised = exact.model_copy(update={"run": f"{8:032x}", "noise_multiplier": NOISE})
    other_delta = noised.model_copy(update={"run": f"{10:032x}", "delta": delta / 2})
    table = ((config.ISOTONIC_BINS, 3), "float64")
    exact_layouts: Layouts = {
        f"posterior/{name}": (shape, "float64")
        for name, shape in outcome_of(task.outcome).sums.shapes.items()
    }
    return [
        Exchange("train.recalibrate", counting, arrays=posterior, layouts={"noised": table}),
        Exchange("train.recalibrate", descent, arrays=posterior, layouts={}),
        Exchange("evaluate", noised, arrays=posterior, layouts={"posterior/noised": table}),
        Exchange("evaluate", exact, arrays=posterior, layouts=exact_layouts, public=True),
        Exchange("evaluate", other_delta, arrays=posterior, layouts={}),
    ]


def _answer(site: canary_site.CanarySite, exchange: Exchange) -> FlowerMessage:
    return canary_site.answer_of(site.path, exchange.kind, exchange.request, exchange.arrays)


def _config(answer: FlowerMessage) -> ConfigRecord:
    return answer.content.config_records.get("config", ConfigRecord())


def _arrays(answer: FlowerMessage) -> ArrayRecord:
    return answer.content.array_records.get("arrays", ArrayRecord())


def _metrics(answer: FlowerMessage) -> dict[str, object]:
    return dict(answer.content.metric_records.get("metrics", MetricRecord()))


def _header(answer: FlowerMessage) -> str:
    record = _config(answer)
    return str(record.get("record", record.get("refusal", "")))


def _fields(answer: FlowerMessage) -> dict[str, object]:
    """Read a header as field -> value; of nested ones only the privacy statement is taken apart."""
    header: dict[str, object] = json.loads(_header(answer))
    fields: dict[str, object] = {}
    for name, value in header.items():
        if name == "privacy" and isinstance(value, dict):
            fields |= {f"privacy.{key}": entry for key, entry in value.items()}
        else:
            fields[name] = value
    return fields


def _undeclared(
    site: canary_site.CanarySite, exchange: Exchange, answer: FlowerMessage
) -> Iterator[str]:
    """Name each part of an answer that is undeclared, is missing or has another value."""
    refused = "refusal" in _config(answer)
    parts = {"config"}
    if exchange.layouts and not refused:
        parts.add("arrays")
    if exchange.kind == "train" and not refused:
        parts.add("metrics")
    if set(answer.content) != parts:
        yield f"its parts are {sorted(answer.content)}"
    keys = list(_config(answer))
    if keys not in (["record"], ["refusal"]):
        yield f"its config holds {keys}"
    yield from _odd_envelope(exchange, answer)
    if refused:
        if set(json.loads(_header(answer))) != {"code", "field"}:
            yield "a refusal holds more than code and field"
        return
    yield from _odd_header(site, exchange, answer)
    yield from _odd_arrays(exchange, answer)
    yield from _odd_metrics(site, exchange, answer)


def _odd_envelope(exchange: Exchange, answer: FlowerMessage) -> Iterator[str]:
    envelope = answer.metadata
    addressed = (envelope.message_type, envelope.reply_to_message_id, envelope.group_id)
    if addressed != (exchange.kind, "audit", "1"):
        yield f"its envelope says {envelope.message_type!r}, {envelope.group_id!r}"


def _odd_header(
    site: canary_site.CanarySite, exchange: Exchange, answer: FlowerMessage
) -> Iterator[str]:
    text = _header(answer)
    fields = _fields(answer)
    try:
        if write_header(read_header(REPLIES[exchange.kind], text)) != text:
            yield "its header is not written as such headers are"
    except ValueError as error:
        yield f"its header is refused: {outside_text(str(error))}"
    undeclared = [
        name
        for name in fields
        if name not in declared.HEADERS[exchange.kind]
        # A reply that cost nothing has no statement to take apart.
        and not (name == "privacy" and fields[name] is None)
    ]
    if undeclared:
        yield f"undeclared fields {undeclared}"
    for name, value in _expected_fields(site, exchange).items():
        if fields.get(name) != value:
            yield f"{name} is {fields.get(name)!r}"


def _odd_arrays(exchange: Exchange, answer: FlowerMessage) -> Iterator[str]:
    arrays = _arrays(answer)
    layouts = {name: (tuple(array.shape), array.dtype) for name, array in arrays.items()}
    if layouts != exchange.layouts:
        yield f"its arrays are {list(arrays)}"
    elif list(arrays) != list(exchange.layouts):
        yield "its arrays are in another order"
    for name, array in arrays.items():
        if array.data != SentArray(np.ascontiguousarray(array.numpy())).data:
            yield f"array {name} is not written as numpy writes it"


def _expected_fields(site: canary_site.CanarySite, exchange: Exchange) -> dict[str, object]:
    """Return the fields that follow from the request and the site file."""
    file = site.file
    ledger = file.ledger
    assert ledger is not None
    if exchange.request is None:
        return {
            "name": file.name,
            "role": file.role,
            "units": file.units,
            "seeded": False,
            "shift": "",
        }
    request = exchange.request
    assert isinstance(request, TrainRequest | RecalibrateRequest | EvaluateRequest)
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


def _odd_metrics(
    site: canary_site.CanarySite, exchange: Exchange, answer: FlowerMessage
) -> Iterator[str]:
    request = exchange.request
    if not isinstance(request, TrainRequest):
        return
    metrics = _metrics(answer)
    stretch = planned_stretch(
        plan=request.plan,
        units=site.file.units,
        first_step=request.first_step,
        steps=request.steps,
    )
    expected = {
        "units": site.file.units,
        "steps": request.steps,
        "epsilon": _fields(answer).get("privacy.epsilon"),
        "temperature": stretch.temperature,
    }
    if list(metrics) != list(declared.METRICS):
        yield f"its metrics are {list(metrics)}"
    for name, value in expected.items():
        if metrics.get(name) != value:
            yield f"metric {name} is {metrics.get(name)!r}"


def _different(exchange: Exchange, fewer: FlowerMessage, more: FlowerMessage) -> Iterator[str]:
    """Name each field, neither noised nor declared public, that differs between two sites."""
    fields_of_fewer = _fields(fewer)
    fields_of_more = _fields(more)
    headers = declared.HEADERS[exchange.kind]
    for name in sorted({*fields_of_fewer, *fields_of_more}):
        origin = headers[name].origin if name in headers else "undeclared"
        if origin in ("noised", "public", "head"):
            continue
        first = fields_of_fewer.get(name)
        second = fields_of_more.get(name)
        if origin == "machine":
            first = _without_speed(first)
            second = _without_speed(second)
        if first != second:
            yield (f"{name} is {fields_of_fewer.get(name)!r} and {fields_of_more.get(name)!r}")
    if sorted(fewer.content.metric_records) != sorted(more.content.metric_records):
        yield "one has other metric_records"
    if sorted(fewer.content.config_records) != sorted(more.content.config_records):
        yield "one has other config_records"
    if _metrics(fewer) != _metrics(more):
        yield f"metrics are {_metrics(fewer)} and {_metrics(more)}"


def _without_speed(passes: object) -> object:
    """Leave out how slow the site says its passes are: that was measured."""
    if not isinstance(passes, dict):
        return passes
    rows = [
        {key: value for key, value in row.items() if key != "slower"} for row in passes["passes"]
    ]
    return passes | {"passes": rows}


def _changed(answer: FlowerMessage, repeated: FlowerMessage) -> Iterator[str]:
    """Name what differs between two answers of one site to one request."""
    # The ledger's head moves on with every answer.
    without_head = {"ledger_head": ""}
    if _fields(answer) | without_head != _fields(repeated) | without_head:
        yield "its header differs"
    first = {name: array.data for name, array in _arrays(answer).items()}
    second = {name: array.data for name, array in _arrays(repeated).items()}
    if first != second:
        yield "its arrays differ"


def _released_numbers(exchange: Exchange, answer: FlowerMessage) -> npt.NDArray[np.float64]:
    """Return the noised numbers of an answer in one vector.

    Of a state these are the vectors that are linear in the noise, less what was sent.
    """
    linear: tuple[str, ...] = ("last/parameters/", "last/spread/")
    request = exchange.request
    if isinstance(request, TrainRequest) and request.plan.sampler.rescales:
        linear = ("last/first_moment/",)
    header = json.loads(_header(answer))
    vectors: list[npt.NDArray] = [np.array(header.get("parameters") or ())]
    for name, array in _arrays(answer).items():
        start = exchange.arrays.get(f"start/{name.removeprefix('last/')}")
        if start is not None and name.startswith(linear):
            vectors.append((array.numpy().astype(np.float64) - start).ravel())
        elif not name.startswith(("samples/", "last/")):
            vectors.append(array.numpy().astype(np.float64).ravel())
    return np.concatenate(vectors)

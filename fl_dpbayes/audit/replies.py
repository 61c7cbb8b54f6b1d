"""What leaves a site beside its noised arrays: the same from two sites whose records differ, and only what is declared.

Two sites have the same site file and other records, more and fewer of them. Every kind of message
is sent to both.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array as SentArray
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.app import Message as FlowerMessage

from fl_dpbayes.audit import canary_site, declared
from fl_dpbayes.audit.gradients import start_vector, synthetic_records
from fl_dpbayes.audit.reading import loud_plan, own_plan
from fl_dpbayes.calibration import empty, to_arrays
from fl_dpbayes.config import PrivacyPlan, Scenario, Split, outside_text, write_site_file
from fl_dpbayes.config import recalibration as config
from fl_dpbayes.files import Message
from fl_dpbayes.models import model_shapes
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
DECLARED, HELD = 40, {"fewer": 36, "more": 44}
# So much noise that sums drown in it: what two releases then have in common is no record's.
NOISE, EPSILON = 1000.0, 1e-3
ROUNDS, STEPS = 3, 4
MOST_SHOWN = 3
REPLIES: dict[str, type[Message]] = {
    "query": SiteCard,
    "train": TrainReply,
    "train.recalibrate": RecalibrateReply,
    "evaluate": EvaluateReply,
}


@dataclass(frozen=True)
class Asked:
    """A message to both sites: its kind, the request (None: a query), the arrays, and the arrays that must come."""

    kind: str
    request: Message | None
    arrays: Arrays
    expected: dict[str, tuple[tuple[int, ...], str]]
    public: bool = False


@dataclass(frozen=True)
class Pair:
    """The two sites, which differ in their records alone.

    `public` lets exact sums of test records out.
    """

    noised: tuple[canary_site.CanarySite, canary_site.CanarySite]
    public: tuple[canary_site.CanarySite, canary_site.CanarySite]


def audit_replies(scenario: Scenario, folder: Path, generator: np.random.Generator) -> list[Check]:
    """Test that replies hold exactly what is declared, that it is the same at other records, and is answered again.

    Sites have no seed, whatever the scenario: so the noise of two, of one name, to one request must
    be independent.
    """
    pair = _pair(scenario, folder, generator)
    wrong: dict[str, list[str]] = {name: [] for name in ("declared", "records", "again")}
    noise: dict[str, npt.NDArray[np.float64]] = {}
    for number, asked in enumerate(_messages(scenario, pair, generator)):
        sites = pair.public if asked.public else pair.noised
        first, second = (_answer(site, asked) for site in sites)
        place = f"{asked.kind} {number + 1}"
        for site, answer in zip(sites, (first, second), strict=True):
            wrong["declared"] += [
                f"{place}: {what}" for what in _undeclared(scenario, site, asked, answer)
            ]
        wrong["records"] += [f"{place}: {what}" for what in _different(asked, first, second)]
        wrong["again"] += [
            f"{place}: {what}" for what in _not_again(asked, first, _answer(sites[0], asked))
        ]
        if not asked.public:
            for name, answer in (("fewer", first), ("more", second)):
                numbers = _released_numbers(asked, answer)
                if len(numbers) > 2:
                    noise[f"{place} of {name} records"] = numbers
    said = {
        "declared": (
            "replies hold the declared fields, arrays and metrics, with the declared "
            "values, and nothing else"
        ),
        "records": "what is not noised is the same at a site of other records",
        "again": "the same request is answered again by the same bits",
    }
    checks = [
        Check(
            PART,
            said[name],
            float(len(each)),
            0.0,
            "at most",
            "; ".join(each[:MOST_SHOWN]),
            "one difference",
        )
        for name, each in wrong.items()
    ]
    findings = [each for names in _same_message(noise) for each in correlation_tests(names)]
    question = {
        (
            "two sites of one name answer one request with independent noise, if no seed is set"
        ): findings
    }
    return [*checks, *verdicts("fresh noise", question, FALSE_ALARM)]


def _same_message(noise: dict[str, Any]) -> Iterator[dict[str, Any]]:
    places = {label.rpartition(" of ")[0] for label in noise}
    for place in sorted(places):
        yield {
            label: numbers
            for label, numbers in noise.items()
            if label.rpartition(" of ")[0] == place
        }


def _pair(scenario: Scenario, folder: Path, generator: np.random.Generator) -> Pair:
    unseeded = scenario.model_copy(
        update={"simulation": scenario.simulation.model_copy(update={"insecure_seed": None})}
    )
    task = scenario.data.source.task
    delta = min(scenario.privacy.delta, 0.5 / DECLARED / len(SHARES))
    noised: list[canary_site.CanarySite] = []
    public: list[canary_site.CanarySite] = []
    for name, count in HELD.items():
        parts = canary_site.unit_names(SHARES, count)
        units = [unit for part in SHARES for unit in parts[part]]
        levels, _ = synthetic_records(task, generator, len(units))
        labels = generator.integers(0, task.classes, len(units))
        policy = canary_site.willing(
            evaluation_release="noised", min_evaluation_noise_multiplier=0.1
        )
        split = Split(test_fraction=0.3, recalibration_fraction=0.3, key=canary_site.KEY)
        records = canary_site.CanaryRecords(task, levels, labels, units)
        site = canary_site.write_canary_site(
            folder / name / "site",
            unseeded,
            records,
            DECLARED,
            delta=delta,
            policy=policy,
            split=split,
        )
        noised.append(site)
        open_policy = site.file.policy.model_copy(update={"evaluation_release": "public"})
        file = site.file.model_copy(update={"policy": open_policy})
        path = site.path.with_name("public.toml")
        write_site_file(file, path)
        public.append(canary_site.CanarySite(path, file))
    return Pair((noised[0], noised[1]), (public[0], public[1]))


def _messages(scenario: Scenario, pair: Pair, generator: np.random.Generator) -> list[Asked]:
    site = pair.noised[0]
    task, model = site.task, scenario.model
    shapes = model_shapes(model, task)
    plan = own_plan(scenario)
    assert isinstance(plan.privacy, PrivacyPlan)
    assert site.file.ledger is not None
    delta = site.file.ledger.delta
    rate = min(0.5, plan.privacy.sampling_rate)
    drowned = loud_plan(
        plan,
        clip_norm=plan.privacy.noise_unit,
        sampling_rate=rate,
        noise_multiplier=NOISE,
        move=1e-6,
        rounds=ROUNDS,
        steps_per_round=STEPS,
    )
    drowned = drowned.model_copy(
        update={"privacy": drowned.privacy.model_copy(update={"delta": delta})}
    )
    vector = start_vector(model, task, generator).astype(np.float32)
    parts = np.split(vector, np.cumsum([int(np.prod(shape)) for shape in shapes.values()])[:-1])
    parameters = {
        name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }
    state = {
        f"{vector_name}/{name}": array if vector_name == "parameters" else np.zeros_like(array)
        for vector_name in plan.sampler.state_vectors
        for name, array in parameters.items()
    }
    messages = [Asked("query", None, {}, {})]
    per_chain = drowned.chain_steps
    for number in range(min(ROUNDS, per_chain // STEPS)):
        request = TrainRequest(
            run=f"{7:032x}",
            round=number + 1,
            task=task,
            model=model,
            plan=drowned,
            first_step=number * STEPS,
            steps=STEPS,
            start=arrays_digest(state),
        )
        last = {f"last/{name}": (array.shape, "float32") for name, array in state.items()}
        samples = {
            f"samples/{name}": ((STEPS, *shape), "float32") for name, shape in shapes.items()
        }
        messages.append(Asked("train", request, prefixed("start", state), last | samples))
    posterior = prefixed("posterior", {name: array[None] for name, array in parameters.items()})
    whose: dict[str, Any] = {
        "run": f"{8:032x}",
        "round": 1,
        "task": task,
        "model": model,
        "arrays": arrays_digest(posterior),
    }
    counting = config.CountingPlan(epsilon=EPSILON, delta=delta, adjacency=plan.privacy.adjacency)
    counted = RecalibrateRequest(**whose, weights=(1.0,), plan=counting, first_step=0, steps=1)
    table: dict[str, tuple[tuple[int, ...], str]] = {
        "noised": ((config.ISOTONIC_BINS, 3), "float64")
    }
    messages.append(Asked("train.recalibrate", counted, posterior, table))
    messages.append(Asked("train.recalibrate", _descent(whose, scenario, delta), posterior, {}))
    evaluation: dict[str, Any] = {"predictors": {"posterior": (1.0,)}, "delta": delta}
    noised = EvaluateRequest(**whose, **evaluation, noise_multiplier=NOISE)
    messages.append(
        Asked(
            "evaluate",
            noised,
            posterior,
            {f"posterior/{name}": each for name, each in table.items()},
        )
    )
    tables = {
        name: (array.shape, array.dtype.name)
        for name, array in to_arrays(empty(task.classes)).items()
    }
    exact = EvaluateRequest(**(whose | {"run": f"{9:032x}"}), **evaluation)
    expected = {f"posterior/{name}": each for name, each in tables.items()}
    messages.append(Asked("evaluate", exact, posterior, expected, public=True))
    messages.append(
        Asked(
            "evaluate",
            noised.model_copy(update={"delta": delta / 2, "run": f"{10:032x}"}),
            posterior,
            {},
        )
    )
    return messages


def _descent(whose: dict[str, Any], scenario: Scenario, delta: float) -> RecalibrateRequest:
    task = scenario.data.source.task
    count = config.parameter_count("vector", task.classes)
    plan = config.RecalibrationPlan(
        method="vector",
        epsilon=EPSILON,
        delta=delta,
        adjacency=scenario.privacy.adjacency,
        clip_norm=1.0,
        steps=4,
        rounds=1,
        step_size=1e-6,
    )
    run = whose | {"run": f"{11:032x}"}
    return RecalibrateRequest(
        **run, weights=(1.0,), plan=plan, first_step=0, steps=4, start=(0.0,) * count
    )


def _answer(site: canary_site.CanarySite, asked: Asked) -> FlowerMessage:
    return canary_site.answer_of(site.path, asked.kind, asked.request, asked.arrays)


def _header(answer: FlowerMessage) -> str:
    config_record: dict[str, Any] = dict(
        answer.content.config_records.get("config", ConfigRecord())
    )
    return str(config_record.get("record", config_record.get("refusal", "")))


def _flat(value: object, prefix: str = "") -> dict[str, object]:
    """Write a header as field -> value.

    Of nested ones only the privacy statement is taken apart.
    """
    assert isinstance(value, dict)
    found: dict[str, object] = {}
    for key, each in value.items():
        found |= (
            _flat(each, f"{key}.")
            if key == "privacy" and isinstance(each, dict)
            else {f"{prefix}{key}": each}
        )
    return found


def _undeclared(
    scenario: Scenario, site: canary_site.CanarySite, asked: Asked, answer: FlowerMessage
) -> Iterator[str]:
    """Name each part of an answer that is not declared, is missing, or does not have the declared value."""
    content = answer.content
    refused = "refusal" in content.config_records.get("config", ConfigRecord())
    parts = (
        {"config"}
        | ({"arrays"} if asked.expected else set())
        | ({"metrics"} if asked.kind == "train" else set())
    )
    if refused:
        parts = {"config"}
    if set(content) != parts:
        yield f"its parts are {sorted(content)}"
    keys = list(content.config_records.get("config", ConfigRecord()))
    if keys not in (["record"], ["refusal"]):
        yield f"its config holds {keys}"
    yield from _odd_envelope(asked, answer)
    if refused:
        if set(json.loads(_header(answer))) != {"code", "field"}:
            yield "a refusal holds more than code and field"
        return
    text = _header(answer)
    fields = _flat(json.loads(text))
    try:
        if write_header(read_header(REPLIES[asked.kind], text)) != text:
            yield "its header is not written as such headers are"
    except ValueError as error:
        yield f"its header is refused: {outside_text(str(error))}"
    listed = declared.HEADERS[asked.kind]
    if odd := [
        name
        for name in fields
        if name not in listed and not (name == "privacy" and fields[name] is None)
    ]:
        yield f"undeclared fields {odd}"
    expected = _expected_values(site, asked)
    yield from (
        f"{name} is {fields.get(name)!r}"
        for name, value in expected.items()
        if fields.get(name) != value
    )
    arrays = content.array_records.get("arrays", ArrayRecord())
    if {name: (tuple(each.shape), each.dtype) for name, each in arrays.items()} != asked.expected:
        yield f"its arrays are {list(arrays)}"
    elif list(arrays) != list(asked.expected):
        yield "its arrays are in another order"
    for name, each in arrays.items():
        if each.data != SentArray(np.ascontiguousarray(each.numpy())).data:
            yield f"array {name} is not written as numpy writes it"
    yield from _odd_metrics(site, asked, answer, fields)


def _odd_envelope(asked: Asked, answer: FlowerMessage) -> Iterator[str]:
    sent = answer.metadata
    if (sent.message_type, sent.reply_to_message_id, sent.group_id) != (asked.kind, "audit", "1"):
        yield f"its envelope says {sent.message_type!r}, {sent.group_id!r}"


def _expected_values(site: canary_site.CanarySite, asked: Asked) -> dict[str, object]:
    file = site.file
    assert file.ledger is not None
    if asked.request is None:
        return {
            "name": file.name,
            "role": file.role,
            "units": file.units,
            "seeded": False,
            "shift": "",
        }
    request = asked.request
    assert isinstance(request, TrainRequest | RecalibrateRequest | EvaluateRequest)
    expected: dict[str, object] = {
        "run": request.run,
        "round": request.round,
        "request": request_digest(request),
    }
    if not asked.public:
        ledger = file.ledger
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
    site: canary_site.CanarySite, asked: Asked, answer: FlowerMessage, fields: dict[str, object]
) -> Iterator[str]:
    if not isinstance(asked.request, TrainRequest):
        return
    request = asked.request
    metrics = dict(answer.content.metric_records.get("metrics", MetricRecord()))
    stretch = planned_stretch(request.plan, site.file.units, request.first_step, request.steps)
    expected = {
        "units": site.file.units,
        "steps": request.steps,
        "epsilon": fields.get("privacy.epsilon"),
        "temperature": stretch.temperature,
    }
    if list(metrics) != list(declared.METRICS):
        yield f"its metrics are {list(metrics)}"
    yield from (
        f"metric {name} is {metrics.get(name)!r}"
        for name, value in expected.items()
        if metrics.get(name) != value
    )


def _different(asked: Asked, first: FlowerMessage, second: FlowerMessage) -> Iterator[str]:
    """Name each field that is not noised, or public by declaration, and differs between the two sites."""
    one, other = (json.loads(_header(answer)) for answer in (first, second))
    one, other = _flat(one), _flat(other)
    listed = declared.HEADERS[asked.kind]
    for name in sorted({*one, *other}):
        origin = listed[name].origin if name in listed else "undeclared"
        if origin in ("noised", "public", "head"):
            continue
        if origin == "machine":
            differs = _without_speed(one.get(name)) != _without_speed(other.get(name))
        else:
            differs = one.get(name) != other.get(name)
        if differs:
            yield f"{name} is {one.get(name)!r} and {other.get(name)!r}"
    for kind in ("metric_records", "config_records"):
        held = [getattr(answer.content, kind) for answer in (first, second)]
        if sorted(held[0]) != sorted(held[1]):
            yield f"one has other {kind}"
    metrics = [
        dict(answer.content.metric_records.get("metrics", MetricRecord()))
        for answer in (first, second)
    ]
    if metrics[0] != metrics[1]:
        yield f"metrics are {metrics[0]} and {metrics[1]}"


def _without_speed(passes: object) -> object:
    """Leave out how slow passes are said to be, which was measured."""
    if not isinstance(passes, dict):
        return passes
    rows = [
        {key: value for key, value in row.items() if key != "slower"} for row in passes["passes"]
    ]
    return passes | {"passes": rows}


def _not_again(asked: Asked, first: FlowerMessage, again: FlowerMessage) -> Iterator[str]:
    before, after = (_flat(json.loads(_header(answer))) for answer in (first, again))
    if before | {"ledger_head": ""} != after | {"ledger_head": ""}:
        yield "its header differs"
    arrays = [
        answer.content.array_records.get("arrays", ArrayRecord()) for answer in (first, again)
    ]
    if {name: each.data for name, each in arrays[0].items()} != {
        name: each.data for name, each in arrays[1].items()
    }:
        yield "its arrays differ"


def _released_numbers(asked: Asked, answer: FlowerMessage) -> npt.NDArray[np.float64]:
    """Return the noised numbers of an answer in one vector: of a state what is linear in them, less what was sent."""
    header = json.loads(_header(answer))
    linear: tuple[str, ...] = ("last/parameters/", "last/spread/")
    if isinstance(asked.request, TrainRequest) and asked.request.plan.sampler.rescales:
        linear = ("last/first_moment/",)
    vectors: list[npt.NDArray] = [np.array(header.get("parameters") or ())]
    for name, each in answer.content.array_records.get("arrays", ArrayRecord()).items():
        start = asked.arrays.get(f"start/{name.removeprefix('last/')}")
        if start is not None and name.startswith(linear):
            vectors.append((each.numpy().astype(np.float64) - start).ravel())
        elif not name.startswith(("samples/", "last/")):
            vectors.append(each.numpy().astype(np.float64).ravel())
    return np.concatenate(vectors)

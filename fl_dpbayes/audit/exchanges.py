"""A message of every kind that a server may send, and the arrays that have to come back."""

from dataclasses import dataclass

import numpy as np

from fl_dpbayes.audit.gradients import start_vector
from fl_dpbayes.audit.plans import loud_plan, own_plan
from fl_dpbayes.audit.requests import PosteriorRequests, Stretch, train_request
from fl_dpbayes.config import Scenario
from fl_dpbayes.config import recalibration as config
from fl_dpbayes.models import model_shapes
from fl_dpbayes.outcomes import outcome_of
from fl_dpbayes.protocol import (
    Arrays,
    EvaluateRequest,
    RecalibrateRequest,
    TrainRequest,
    prefixed,
)

# Sums drown in so much noise: two releases then have no record's contribution in common.
NOISE = 1000.0
EPSILON = 1e-3
ROUNDS = 3
STEPS = 4
DESCENT_STEPS = 4
TRAINING_RUN = 7

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
    request: TrainRequest | RecalibrateRequest | EvaluateRequest | None
    arrays: Arrays
    layouts: Layouts
    public: bool = False


def list_exchanges(
    scenario: Scenario, delta: float, generator: np.random.Generator
) -> list[Exchange]:
    """List a message of every kind, with every form of its request.

    Args:
        scenario: Whose plan and model they have.
        delta: Of the sites' ledgers.
        generator: Draws the parameters that are sent.

    Returns:
        All messages; their noise drowns what records add.
    """
    parameters = _random_parameters(scenario, generator)
    return [
        Exchange(kind="query", request=None, arrays={}, layouts={}),
        *_training_exchanges(scenario, parameters, delta),
        *_posterior_exchanges(scenario, parameters, delta),
    ]


def _random_parameters(scenario: Scenario, generator: np.random.Generator) -> Arrays:
    task = scenario.data.source.task
    vector = start_vector(scenario.model, task, generator).astype(np.float32)
    arrays = {}
    end = 0
    for name, shape in model_shapes(scenario.model, task).items():
        size = int(np.prod(shape))
        arrays[name] = vector[end : end + size].reshape(shape)
        end += size
    return arrays


def _training_exchanges(scenario: Scenario, parameters: Arrays, delta: float) -> list[Exchange]:
    """Ask for stretches of the first chain."""
    plan = own_plan(scenario)
    loud = loud_plan(
        plan,
        clip_norm=plan.privacy.noise_unit,
        sampling_rate=min(0.5, plan.privacy.sampling_rate),
        noise_multiplier=NOISE,
        move=1e-6,
        rounds=ROUNDS,
        steps_per_round=STEPS,
    )
    privacy = loud.privacy.model_copy(update={"delta": delta})
    loud = loud.model_copy(update={"privacy": privacy})
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
            request=train_request(
                task=scenario.data.source.task,
                model=scenario.model,
                plan=loud,
                stretch=Stretch(number + 1, first_step=number * STEPS, steps=STEPS),
                start=state,
                run=TRAINING_RUN,
            ),
            arrays=prefixed("start", state),
            layouts=last | samples,
        )
        for number in range(min(ROUNDS, loud.chain_steps // STEPS))
    ]


def _posterior_exchanges(scenario: Scenario, parameters: Arrays, delta: float) -> list[Exchange]:
    """Ask for both recalibrations, both evaluations, and a noised one at another delta."""
    task = scenario.data.source.task
    adjacency = scenario.privacy.adjacency
    requests = PosteriorRequests(task=task, model=scenario.model, sample=parameters)
    counting_plan = config.CountingPlan(epsilon=EPSILON, delta=delta, adjacency=adjacency)
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
    descent = requests.recalibrate(
        11,
        descent_plan,
        steps=DESCENT_STEPS,
        parameters=config.parameter_count("vector", task.outcome),
    )
    table: Layouts = {"noised": ((config.ISOTONIC_BINS, 3), "float64")}
    form = outcome_of(task.outcome).sums
    counts: Layouts = {} if form.noised is None else {"noised": (form.noised, "float64")}
    sums: Layouts = {name: (shape, "float64") for name, shape in form.shapes.items()}
    return [
        _about(requests, requests.recalibrate(8, counting_plan), table),
        _about(requests, descent, {}),
        _about(requests, requests.evaluate(8, delta, NOISE), counts),
        _about(requests, requests.evaluate(9, delta), sums, public=True),
        _about(requests, requests.evaluate(10, delta / 2, NOISE), {}),
    ]


def _about(
    requests: PosteriorRequests,
    request: RecalibrateRequest | EvaluateRequest,
    layouts: Layouts,
    *,
    public: bool = False,
) -> Exchange:
    """Send a request about a posterior, to be answered by arrays of these layouts."""
    if isinstance(request, RecalibrateRequest):
        kind = "train.recalibrate"
    else:
        kind = "evaluate"
        layouts = prefixed("posterior", layouts)
    return Exchange(
        kind=kind, request=request, arrays=requests.arrays, layouts=layouts, public=public
    )

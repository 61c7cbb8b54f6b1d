"""The requests that a coordinator's scenario makes of a site, built at the site before any of them comes."""

import uuid

from fl_dpbayes.config import (
    CountingPlan,
    RecalibrationMap,
    Scenario,
    SiteFile,
    parameter_count,
    recalibration_plan,
    site_plan,
)
from fl_dpbayes.files import Message
from fl_dpbayes.models import build_model, to_vector
from fl_dpbayes.protocol import (
    Arrays,
    EvaluateRequest,
    RecalibrateRequest,
    TrainRequest,
    arrays_digest,
    prefixed,
)
from fl_dpbayes.samplers import initial_vectors, state_arrays

Requests = dict[str, tuple[Message | None, Arrays]]


def planned_requests(scenario: Scenario, own: SiteFile) -> Requests:
    """Build a site's first request of each kind, as the scenario's run sends it but for its posterior and identity.

    Args:
        scenario: The coordinator's.
        own: The site's file, of the same schema.

    Returns:
        The kind of message -> the request and its arrays; the query has none.
    """
    whose = {"run": uuid.uuid4().hex, "round": 1, "task": own.source.task, "model": scenario.model}
    module = build_model(scenario.model, own.source.task, scenario.seed, own.backbone_folder)
    sample = {name: values.detach().numpy()[None] for name, values in module.named_parameters()}
    requests: Requests = {"query": (None, {})}
    if own.role == "train":
        plan = site_plan(scenario, sum(site.role == "train" for site in scenario.sites.values()))
        start = state_arrays(initial_vectors(scenario.sampler, to_vector(module)), module)
        steps = {
            "first_step": 0,
            "steps": plan.steps_per_round,
            "start": arrays_digest(start),
            "plan": plan,
        }
        requests["train"] = TrainRequest.model_validate(whose | steps), prefixed("start", start)
    fitted = None
    if scenario.recalibration is not None:
        method, classes = scenario.recalibration.method, own.source.task.classes
        fitted = RecalibrationMap(
            method=method, parameters=(0.0,) * parameter_count(method, classes)
        )
        if own.role == "train" and own.split.recalibration_fraction > 0:
            fit = recalibration_plan(scenario.recalibration, scenario.privacy)
            posterior = prefixed("posterior", sample)
            begin = None if isinstance(fit, CountingPlan) else fitted.parameters
            steps = {"first_step": 0, "steps": fit.steps_per_round, "start": begin, "plan": fit}
            steps |= {"weights": (1.0,), "arrays": arrays_digest(posterior)}
            requests["train.recalibrate"] = (
                RecalibrateRequest.model_validate(whose | steps),
                posterior,
            )
    names = ["last", "posterior", *(["hierarchical"] if scenario.hierarchical is not None else [])]
    arrays = {
        name: array for predictor in names for name, array in prefixed(predictor, sample).items()
    }
    measured = {
        "predictors": dict.fromkeys(names, (1.0,)),
        "arrays": arrays_digest(arrays),
        "recalibration": fitted,
        "trained_prevalence": None if own.prevalence is None else scenario.data.prevalence,
        "delta": scenario.privacy.delta,
        "noise_multiplier": scenario.evaluation.noise_multiplier,
    }
    requests["evaluate"] = EvaluateRequest.model_validate(whose | measured), arrays
    return requests

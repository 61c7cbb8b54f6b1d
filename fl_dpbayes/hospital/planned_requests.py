"""The requests that a coordinator's scenario makes of a site, built there before any comes."""

import uuid
from typing import NamedTuple

from torch import nn

from fl_dpbayes.config import (
    AnyRecalibrationPlan,
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
    PredictorName,
    RecalibrateRequest,
    TrainRequest,
    arrays_digest,
    prefixed,
)
from fl_dpbayes.samplers import initial_vectors, state_arrays


class PlannedRequest(NamedTuple):
    """A request and its arrays.

    Attributes:
        message: The request's header; the query has none.
        arrays: By name, of the shapes that the run sends.
    """

    message: Message | None
    arrays: Arrays


# By the kind of message.
Requests = dict[str, PlannedRequest]


def planned_requests(scenario: Scenario, site: SiteFile) -> Requests:
    """Build a site's first request of each kind, but for the run's posterior and identity.

    Args:
        scenario: The coordinator's.
        site: The site's file, of the same schema.

    Returns:
        The requests, by the kind of message.
    """
    run = uuid.uuid4().hex
    task = site.source.task
    module = build_model(scenario.model, task, scenario.seed, site.backbone_folder)
    # One sample of a posterior: the model's initial parameters.
    sample = {name: values.detach().numpy()[None] for name, values in module.named_parameters()}
    requests: Requests = {"query": PlannedRequest(None, {})}
    if site.role == "train":
        requests["train"] = _train_request(scenario, site, run, module)
    initial_map = None
    if scenario.recalibration is not None:
        method = scenario.recalibration.method
        initial_map = RecalibrationMap(
            method=method, parameters=(0.0,) * parameter_count(method, task.outcome)
        )
        if site.role == "train" and site.split.recalibration_fraction > 0:
            requests["train.recalibrate"] = _recalibrate_request(
                scenario=scenario,
                site=site,
                run=run,
                plan=recalibration_plan(scenario.recalibration, scenario.privacy),
                initial_map=initial_map,
                posterior=prefixed("posterior", sample),
            )
    requests["evaluate"] = _evaluate_request(
        scenario=scenario,
        site=site,
        run=run,
        sample=sample,
        recalibration_map=initial_map,
    )
    return requests


def _train_request(
    scenario: Scenario, site: SiteFile, run: str, module: nn.Module
) -> PlannedRequest:
    training_sites = sum(scenario_site.role == "train" for scenario_site in scenario.sites.values())
    plan = site_plan(scenario, training_sites)
    start = state_arrays(initial_vectors(scenario.sampler, to_vector(module)), module)
    message = TrainRequest(
        run=run,
        round=1,
        task=site.source.task,
        model=scenario.model,
        first_step=0,
        steps=plan.steps_per_round,
        start=arrays_digest(start),
        plan=plan,
    )
    return PlannedRequest(message, prefixed("start", start))


def _recalibrate_request(
    scenario: Scenario,
    site: SiteFile,
    run: str,
    plan: AnyRecalibrationPlan,
    initial_map: RecalibrationMap,
    posterior: Arrays,
) -> PlannedRequest:
    message = RecalibrateRequest(
        run=run,
        round=1,
        task=site.source.task,
        model=scenario.model,
        first_step=0,
        steps=plan.steps_per_round,
        start=None if isinstance(plan, CountingPlan) else initial_map.parameters,
        plan=plan,
        weights=(1.0,),
        arrays=arrays_digest(posterior),
    )
    return PlannedRequest(message, posterior)


def _evaluate_request(
    scenario: Scenario,
    site: SiteFile,
    run: str,
    sample: Arrays,
    recalibration_map: RecalibrationMap | None,
) -> PlannedRequest:
    predictors: list[PredictorName] = ["last", "posterior"]
    if scenario.hierarchical is not None:
        predictors.append("hierarchical")
    arrays: Arrays = {}
    for predictor in predictors:
        arrays |= prefixed(predictor, sample)
    message = EvaluateRequest(
        run=run,
        round=1,
        task=site.source.task,
        model=scenario.model,
        predictors=dict.fromkeys(predictors, (1.0,)),
        arrays=arrays_digest(arrays),
        recalibration=recalibration_map,
        trained_prevalence=None if site.prevalence is None else scenario.data.prevalence,
        delta=scenario.privacy.delta,
        noise_multiplier=scenario.evaluation.noise_multiplier,
    )
    return PlannedRequest(message, arrays)

"""Does the site's own policy allow what a request asks for?

A request is refused by field, never altered.
"""

import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from clients.messages import RefusedError
from fl_dpbayes.config import (
    ModuleModel,
    NoPrivacyPlan,
    RecalibrationPlan,
    SiteFile,
    TrainingPlan,
    hold,
    read_approvals,
    unapproved_code,
)
from fl_dpbayes.data import is_delta_allowed, recalibration_units
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import Config
from fl_dpbayes.models import Shapes, model_shapes, unbuilt_size
from fl_dpbayes.protocol import (
    MAX_REPLY_BYTES,
    EvaluateRequest,
    RecalibrateRequest,
    RefusalCode,
    StageRequest,
    TrainRequest,
    plan_digest,
    plan_text,
    reply_bytes,
)


def check_standing(site_file: SiteFile) -> None:
    """Check that the site answers requests at all: RefusedError SITE_STOPPED or POLICY_EXPIRED."""
    policy = site_file.policy
    if policy.stop_file is not None:
        try:
            os.lstat(policy.stop_file)
        except OSError as error:
            # Where it cannot be seen whether a stop was asked for, as on a disk that is not there,
            # it is taken to be.
            if not (isinstance(error, FileNotFoundError) and policy.stop_file.parent.is_dir()):
                raise RefusedError(RefusalCode.SITE_STOPPED) from None
        else:
            raise RefusedError(RefusalCode.SITE_STOPPED)
    if policy.expires is not None and datetime.now(UTC).date() > policy.expires:
        raise RefusedError(RefusalCode.POLICY_EXPIRED)


def check_installed_code(site_file: SiteFile, path: str) -> None:
    """Check that the installed code is as it was approved: RefusedError CODE_NOT_APPROVED.

    `path`: of a hospital's site file; empty in a simulation, where nobody approves.
    """
    if not path:
        return
    try:
        lines = unapproved_code(site_file, Path(path))
    except UserError as error:
        raise RefusedError(RefusalCode.SITE_FILE_INVALID, detail=str(error)) from None
    if lines:
        raise RefusedError(RefusalCode.CODE_NOT_APPROVED, detail="; ".join(lines))


def check_plan(site_file: SiteFile, path: str, request: Config) -> None:
    """Hold a plan that is not approved, in the site file or beside it, where the policy asks: PLAN_NOT_APPROVED."""
    policy = site_file.policy
    approved = policy.approved_plans
    if approved is None:
        return
    if isinstance(request, EvaluateRequest) and policy.evaluation_release == "none":
        # Nothing of it leaves, whatever it asks for: it is answered NOT_SENT.
        return
    digest = plan_digest(request)
    try:
        known = {*approved, *(read_approvals(Path(path)).plans if path else ())}
    except UserError as error:
        raise RefusedError(RefusalCode.SITE_FILE_INVALID, detail=str(error)) from None
    if digest not in known:
        kept = bool(path) and hold(Path(path), "plans", digest, plan_text(request).encode())
        said = (
            "waits for a look"
            if kept
            else "was not kept: delete held plans that nobody will approve"
        )
        raise RefusedError(RefusalCode.PLAN_NOT_APPROVED, "plan", f"plan {digest} {said}")


def check_code(site_file: SiteFile, request: Config) -> None:
    """Check, before anything is imported, that a request names no code that the policy does not list.

    Nor, before it is built, a module of more numbers than `max_parameters`: its settings could ask
    for more memory than there is. Raises RefusedError POLICY_DENIED with the field.
    """
    model, plan = getattr(request, "model", None), getattr(request, "plan", None)
    allowed, models = site_file.policy.allowed_code, site_file.policy.models
    sampler = plan.sampler if isinstance(plan, TrainingPlan) else None
    _deny(
        {
            "model.factory": isinstance(model, ModuleModel) and model.factory not in allowed,
            "plan.sampler.kind": sampler is not None
            and bool(sampler.implemented_by)
            and sampler.kind not in allowed,
            "model.kind": models is not None and model is not None and model.kind not in models,
        }
    )
    _deny(
        {
            "model": isinstance(model, ModuleModel)
            and unbuilt_size(model) > site_file.policy.max_parameters
        }
    )


def check_size(site_file: SiteFile, request: StageRequest) -> None:
    """Check the number of a model's trained numbers.

    RefusedError BAD_REQUEST if the model cannot be built.
    """
    try:
        shapes = model_shapes(request.model, request.task).values()
    except UserError:
        raise RefusedError(RefusalCode.BAD_REQUEST, "model") from None
    draws = request.plan.sampler.weight_draws if isinstance(request, TrainRequest) else 1
    _deny({"model": draws * sum(map(math.prod, shapes)) > site_file.policy.max_parameters})


def check_training_policy(site_file: SiteFile, request: TrainRequest) -> Shapes:
    """Check a training request against the site file.

    Raises RefusedError ROLE_DENIED at a site that does not train or has no ledger; POLICY_DENIED
    with the field that exceeds the policy, or a delta that is not the cohort's or not surely below
    1/n; BAD_REQUEST if the model cannot be built or the reply would be too large to store.
    """
    policy, privacy, settings = site_file.policy, request.plan.privacy, site_file.ledger
    delta = privacy.delta
    if site_file.role != "train" or settings is None or site_file.units < 1:
        raise RefusedError(RefusalCode.ROLE_DENIED)
    _deny(
        {
            "plan.privacy.delta": delta != settings.delta
            or not is_delta_allowed(site_file, "train", delta),
            "plan.privacy.adjacency": privacy.adjacency != settings.adjacency,
            "plan.privacy.kind": isinstance(privacy, NoPrivacyPlan)
            and not policy.allow_non_private,
            "plan.privacy.epsilon": privacy.epsilon > policy.max_run_epsilon,
            "plan.privacy.clip_norm": privacy.clip_norm is not None
            and privacy.clip_norm > policy.max_clip_norm,
            "plan.rounds": request.plan.total_steps > policy.max_steps,
            "plan.thinning": request.plan.kept_before(request.plan.total_steps)
            > policy.max_samples,
        }
    )
    shapes = model_shapes(request.model, request.task)
    parameters = sum(map(math.prod, shapes.values()))
    # Found before a step is paid for: what is too large for the ledger to store could not be
    # released.
    if reply_bytes(request.plan, request.first_step, request.steps, parameters) > MAX_REPLY_BYTES:
        raise RefusedError(RefusalCode.BAD_REQUEST, "plan.thinning")
    return shapes


def check_recalibration_policy(site_file: SiteFile, request: RecalibrateRequest) -> None:
    """Check a recalibration request as `check_training_policy` does.

    ROLE_DENIED also without a share for it.
    """
    policy, plan, settings = site_file.policy, request.plan, site_file.ledger
    if settings is None or recalibration_units(site_file) < 1:
        raise RefusedError(RefusalCode.ROLE_DENIED)
    denied = (
        not policy.allow_non_private
        if plan.epsilon is None
        else plan.epsilon > policy.max_run_epsilon
    )
    _deny(
        {
            "plan.delta": plan.delta != settings.delta
            or not is_delta_allowed(site_file, "recalibration", plan.delta),
            "plan.adjacency": plan.adjacency != settings.adjacency,
            "plan.epsilon": denied,
            "plan.clip_norm": isinstance(plan, RecalibrationPlan)
            and plan.clip_norm > policy.max_clip_norm,
            "plan.steps": plan.steps > policy.max_steps,
        }
    )


def _deny(exceeded: Mapping[str, bool]) -> None:
    """Refuse by the first field that exceeds the policy, if one does."""
    for field, exceeds in exceeded.items():
        if exceeds:
            raise RefusedError(RefusalCode.POLICY_DENIED, field)

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
    """Check that the site answers requests at all.

    Raises:
        RefusedError: SITE_STOPPED or POLICY_EXPIRED.
    """
    policy = site_file.policy
    if policy.stop_file is not None and _is_stopped(policy.stop_file):
        raise RefusedError(RefusalCode.SITE_STOPPED)
    if policy.expires is not None and datetime.now(UTC).date() > policy.expires:
        raise RefusedError(RefusalCode.POLICY_EXPIRED)


def _is_stopped(stop_file: Path) -> bool:
    try:
        os.lstat(stop_file)
    except FileNotFoundError:
        # Without its folder, as on a disk that is not there, nobody can see whether a stop was
        # asked for: it is taken to be.
        return not stop_file.parent.is_dir()
    except OSError:
        return True
    return True


def check_installed_code(site_file: SiteFile, path: str) -> None:
    """Check that the installed code is as it was approved.

    Args:
        site_file: The site's own file.
        path: Path of a hospital's site file; empty in a simulation, where nobody approves.

    Raises:
        RefusedError: CODE_NOT_APPROVED, or SITE_FILE_INVALID.
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
    """Check that a plan is approved where the policy asks for that, and hold one that is not.

    Args:
        site_file: The site's own file.
        path: Path of a hospital's site file, beside which plans are approved and held; else empty.
        request: The request that states the plan.

    Raises:
        RefusedError: PLAN_NOT_APPROVED, or SITE_FILE_INVALID.
    """
    policy = site_file.policy
    if policy.approved_plans is None:
        return
    if isinstance(request, EvaluateRequest) and policy.evaluation_release == "none":
        # Nothing of it leaves, whatever it asks for: it is answered NOT_SENT.
        return
    digest = plan_digest(request)
    approved = set(policy.approved_plans)
    if path:
        try:
            approved |= set(read_approvals(Path(path)).plans)
        except UserError as error:
            raise RefusedError(RefusalCode.SITE_FILE_INVALID, detail=str(error)) from None
    if digest in approved:
        return
    state = "was not kept: delete held plans that nobody will approve"
    if path and hold(Path(path), "plans", digest, plan_text(request).encode()):
        state = "waits for a look"
    raise RefusedError(RefusalCode.PLAN_NOT_APPROVED, "plan", f"plan {digest} {state}")


def check_code(site_file: SiteFile, request: StageRequest) -> None:
    """Check, before anything is imported, that the policy lists the code that a request names.

    Nor may a module be built that has more numbers than `max_parameters`: its settings could ask
    for more memory than there is.

    Raises:
        RefusedError: POLICY_DENIED with the field.
    """
    policy = site_file.policy
    model = request.model
    if isinstance(model, ModuleModel) and model.factory not in policy.allowed_code:
        raise RefusedError(RefusalCode.POLICY_DENIED, "model.factory")
    if isinstance(request, TrainRequest):
        sampler = request.plan.sampler
        if sampler.implemented_by and sampler.kind not in policy.allowed_code:
            raise RefusedError(RefusalCode.POLICY_DENIED, "plan.sampler.kind")
    if policy.models is not None and model.kind not in policy.models:
        raise RefusedError(RefusalCode.POLICY_DENIED, "model.kind")
    if isinstance(model, ModuleModel) and unbuilt_size(model) > policy.max_parameters:
        raise RefusedError(RefusalCode.POLICY_DENIED, "model")


def check_size(site_file: SiteFile, request: StageRequest) -> Shapes:
    """Check the number of a model's trained numbers, and return the shapes of its parameters.

    Raises:
        RefusedError: BAD_REQUEST if the model cannot be built, POLICY_DENIED if it is too large.
    """
    try:
        shapes = model_shapes(request.model, request.task)
    except UserError:
        raise RefusedError(RefusalCode.BAD_REQUEST, "model") from None
    draws = request.plan.sampler.weight_draws if isinstance(request, TrainRequest) else 1
    if draws * _parameter_count(shapes) > site_file.policy.max_parameters:
        raise RefusedError(RefusalCode.POLICY_DENIED, "model")
    return shapes


def check_training_policy(site_file: SiteFile, request: TrainRequest, shapes: Shapes) -> None:
    """Check a training request against the site file.

    Args:
        site_file: The site's own file.
        request: The request.
        shapes: Shapes of the model's parameters, by name.

    Raises:
        RefusedError: ROLE_DENIED at a site that does not train or has no ledger; POLICY_DENIED with
            the field that exceeds the policy, or a delta that is not the cohort's or not surely
            below 1/n; BAD_REQUEST if the reply would be too large to store.
    """
    policy = site_file.policy
    plan = request.plan
    privacy = plan.privacy
    ledger = site_file.ledger
    if site_file.role != "train" or ledger is None or site_file.units < 1:
        raise RefusedError(RefusalCode.ROLE_DENIED)
    delta_is_allowed = is_delta_allowed(site_file, "train", privacy.delta)
    clip_norm = privacy.clip_norm
    exceeded = {
        "plan.privacy.delta": privacy.delta != ledger.delta or not delta_is_allowed,
        "plan.privacy.adjacency": privacy.adjacency != ledger.adjacency,
        "plan.sampler.kind": isinstance(privacy, NoPrivacyPlan) and not policy.allow_non_private,
        "plan.privacy.epsilon": privacy.epsilon > policy.max_run_epsilon,
        "plan.privacy.clip_norm": clip_norm is not None and clip_norm > policy.max_clip_norm,
        "plan.rounds": plan.total_steps > policy.max_steps,
        "plan.thinning": plan.kept_before(plan.total_steps) > policy.max_samples,
    }
    _deny_first(exceeded)
    size = reply_bytes(plan, request.first_step, request.steps, _parameter_count(shapes))
    # Checked before a step is paid for: what is too large for the ledger to store could not be
    # released.
    if size > MAX_REPLY_BYTES:
        raise RefusedError(RefusalCode.BAD_REQUEST, "plan.thinning")


def check_recalibration_policy(site_file: SiteFile, request: RecalibrateRequest) -> None:
    """Check a recalibration request as `check_training_policy` does.

    Raises:
        RefusedError: POLICY_DENIED with the field; ROLE_DENIED also without a share of the records
            for recalibration.
    """
    policy = site_file.policy
    plan = request.plan
    ledger = site_file.ledger
    if ledger is None or recalibration_units(site_file) < 1:
        raise RefusedError(RefusalCode.ROLE_DENIED)
    exceeds_epsilon = not policy.allow_non_private
    if plan.epsilon is not None:
        exceeds_epsilon = plan.epsilon > policy.max_run_epsilon
    delta_is_allowed = is_delta_allowed(site_file, "recalibration", plan.delta)
    exceeded = {
        "plan.delta": plan.delta != ledger.delta or not delta_is_allowed,
        "plan.adjacency": plan.adjacency != ledger.adjacency,
        "plan.epsilon": exceeds_epsilon,
        "plan.clip_norm": isinstance(plan, RecalibrationPlan)
        and plan.clip_norm > policy.max_clip_norm,
        "plan.steps": plan.steps > policy.max_steps,
    }
    _deny_first(exceeded)


def _parameter_count(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def _deny_first(exceeded: Mapping[str, bool]) -> None:
    """Refuse by the first field that exceeds the policy, if one does."""
    for field, exceeds in exceeded.items():
        if exceeds:
            raise RefusedError(RefusalCode.POLICY_DENIED, field)

"""What was run, in a few lines of the report: model, sampler, length, noise, aggregation, resources."""

import math
from collections.abc import Mapping
from typing import Any

from fl_dpbayes.config import (
    ISOTONIC_BINS,
    PrivacyPlan,
    PublicFile,
    Scenario,
    SettingRecord,
    counted,
    recalibration_plan,
)
from fl_dpbayes.files import Config


def settings_table(
    scenario: Scenario, aggregation_inputs: Mapping[str, Any] | None
) -> tuple[SettingRecord, ...]:
    """Say what was run.

    `aggregation_inputs`: what the run's record says of inputs of the server's own; None where it
    used none. Returns one row `name`, `value` per part, in words.
    """
    privacy, norm = scenario.privacy, scenario.privacy.clip_norm
    spent = "none: epsilon is infinite"
    if privacy.kind != "none":
        spent = f"epsilon {privacy.epsilon:g} at delta {privacy.delta:g} for each site"
    source = scenario.data.source
    names, missing = getattr(source, "feature_names", ()), getattr(source, "missing", {})
    rows = {
        "Predictors": ", ".join(names) or "as the data set prepares them",
        "Missing values": (
            "; ".join(f"{name}: {value:g} and an indicator" for name, value in missing.items())
            or "no rule: a missing value is refused, or the data set prepares it"
        ),
        "Model": _described(scenario.model, "features"),
        "Features": _described(scenario.model.features)
        if scenario.model.features
        else "none: the records themselves",
        "Sampler": _described(scenario.sampler, "step_size", "prior"),
        "Step size": _described(scenario.sampler.step_size),
        "Prior": _described(scenario.sampler.prior),
        "Length": _length(scenario),
        "Privacy": spent,
        "Noise": _noise(scenario),
        "Clipping": "none"
        if norm is None
        else f"{_described(privacy.clipping)}, clip norm {norm:g}",
        "Batches": f"each unit with probability {privacy.sampling_rate:g} (Poisson)",
        "Aggregation": _aggregation(scenario, aggregation_inputs or {}),
        "Recalibration": _recalibration(scenario),
        "Taking part": _taking_part(scenario),
    }
    return tuple(SettingRecord(name=name, value=value) for name, value in rows.items())


def _described(record: Config, *left_out: str) -> str:
    """Name a record's kind, then its settings."""
    values = {
        name: getattr(record, name) for name in type(record).model_fields if name not in left_out
    }
    kind = values.pop("kind", None) or values.pop("rule", "")
    settings = [
        f"{name.replace('_', ' ')} {_text(value)}"
        for name, value in values.items()
        if value is not None
    ]
    return ", ".join([str(kind), *settings] if kind else settings)


def _text(value: Any) -> str:
    match value:
        case Config():
            return f"({_described(value)})"
        case float():
            return f"{value:g}"
        case tuple():
            return " - ".join(map(_text, value))
        case _:
            return str(value)


def _length(scenario: Scenario) -> str:
    training = scenario.training
    which = "every state" if training.thinning == 1 else f"one state in {training.thinning}"
    kept = f"burn-in {counted(training.burn_in, 'step')}, then {which}"
    each = f"{counted(training.rounds, 'round')} x {counted(training.steps_per_round, 'step')}"
    if training.chains == 1:
        return f"1 chain per site: {each}; {kept}"
    return (
        f"{training.chains} chains per site: their costs add up to one account; each {each}; {kept}"
    )


def _aggregation(scenario: Scenario, inputs: Mapping[str, Any]) -> str:
    rule, public = scenario.aggregation, scenario.aggregation.inputs
    if public is None:
        return _described(rule)
    # A file's path is nobody's business but the server's, and it may hold fewer records than asked
    # for.
    used = inputs.get("count", public.count)
    records = (
        f"{used} public records of {public.path.name}"
        if isinstance(public, PublicFile)
        else f"{used} made-up inputs ({public.pattern}, seed {public.seed})"
    )
    return f'{rule.rule}, on {records} (see "This run"), {_described(rule, "rule", "public")}'


def _taking_part(scenario: Scenario) -> str:
    resources = scenario.resources
    silent = counted(resources.silent_rounds, "silent round")
    least = "more than half of the sites with steps left"
    if resources.min_sites is not None:
        least = f"at least {counted(resources.min_sites, 'site')}"
    nodes = counted(resources.start_nodes or len(scenario.sites), "node")
    return f"{least} in a round; begins with {nodes}; not asked after {silent}"


def _noise(scenario: Scenario) -> str:
    privacy = scenario.privacy
    if not isinstance(privacy, PrivacyPlan):
        if privacy.temperature is not None:
            return f"that of Langevin dynamics at temperature {privacy.temperature:g}"
        deviation = privacy.noise_standard_deviation
        return f"standard deviation {deviation:g} on the sum of gradients" if deviation else "none"
    given = {
        name: getattr(privacy, name) for name in ("coupling", "temperature", "noise_multiplier")
    }
    parts = [
        f"{name.replace('_', ' ')} {_text(value)}"
        for name, value in given.items()
        if value is not None
    ]
    if privacy.noise_multiplier is None and privacy.coupling in ("constant", "floor"):
        parts.append("noise multiplier solved from epsilon at each site")
    elif privacy.noise_multiplier is None and privacy.temperature is None:
        parts.append("temperature solved from epsilon at each site")
    if privacy.pre_noise:
        parts.append(f"noise of {privacy.pre_noise:g} on each gradient before the clip")
    return ", ".join(parts)


def _recalibration(scenario: Scenario) -> str:
    section = scenario.recalibration
    if section is None:
        return "none"
    epsilon = recalibration_plan(section, scenario.privacy).epsilon or math.inf
    cost = (
        "not private" if math.isinf(epsilon) else f"epsilon {epsilon:g} on units kept from training"
    )
    settings = (
        _described(section, "method", "scope", "epsilon", "fraction")
        or f"{ISOTONIC_BINS} merged bins"
    )
    whose = "one map over all sites" if section.scope == "federated" else "a map per site"
    return (
        f"{section.method}, {whose}, {section.fraction:.0%} of each training site's units, "
        f"{cost}, {settings}"
    )

"""What was run, in a few lines of the report: model, sampler, length, noise, aggregation."""

import math
from collections.abc import Mapping

from fl_dpbayes.config import (
    ISOTONIC_BINS,
    PrivacyPlan,
    PublicFile,
    Scenario,
    Table,
    counted,
    recalibration_plan,
)
from fl_dpbayes.files import Config
from fl_dpbayes.report.summary import AggregationInputs, SettingRecord


def settings_table(
    scenario: Scenario, aggregation_inputs: AggregationInputs | None
) -> tuple[SettingRecord, ...]:
    """Say what was run, one row per part, in words.

    Args:
        scenario: What was asked for.
        aggregation_inputs: What the rule used of the server's own; None where it used nothing.
    """
    source = scenario.data.source
    feature_names: tuple[str, ...] = ()
    missing: Mapping[str, float] = {}
    if isinstance(source, Table):
        feature_names = source.feature_names
        missing = source.missing
    features = scenario.model.features
    rows = {
        "Predictors": ", ".join(feature_names) or "as the data set prepares them",
        "Missing values": (
            "; ".join(f"{name}: {value:g} and an indicator" for name, value in missing.items())
            or "no rule: a missing value is refused, or the data set prepares it"
        ),
        "Model": _described(scenario.model, "features"),
        "Features": _described(features) if features else "none: the records themselves",
        "Sampler": _described(scenario.sampler, "step_size", "prior"),
        "Step size": _described(scenario.sampler.step_size),
        "Prior": _described(scenario.sampler.prior),
        "Length": _length(scenario),
        "Privacy": _budget(scenario),
        "Noise": _noise(scenario),
        "Clipping": _clipping(scenario),
        "Batches": f"each unit with probability {scenario.privacy.sampling_rate:g} (Poisson)",
        "Aggregation": _aggregation(scenario, aggregation_inputs),
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
    parts = [str(kind)] if kind else []
    parts += [_setting(name, value) for name, value in values.items() if value is not None]
    return ", ".join(parts)


def _setting(name: str, value: object) -> str:
    return f"{name.replace('_', ' ')} {_text(value)}"


def _text(value: object) -> str:
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
    states = "every state" if training.thinning == 1 else f"one state in {training.thinning}"
    burn_in = f"burn-in {counted(training.burn_in, 'step')}, then {states}"
    steps = f"{counted(training.rounds, 'round')} x {counted(training.steps_per_round, 'step')}"
    if training.chains == 1:
        return f"1 chain per site: {steps}; {burn_in}"
    return (
        f"{training.chains} chains per site: their costs add up to one account; each {steps}; "
        f"{burn_in}"
    )


def _budget(scenario: Scenario) -> str:
    privacy = scenario.privacy
    if not scenario.sampler.is_private:
        return "none: epsilon is infinite"
    return f"epsilon {privacy.epsilon:g} at delta {privacy.delta:g} for each site"


def _clipping(scenario: Scenario) -> str:
    norm = scenario.privacy.clip_norm
    if norm is None:
        return "none"
    return f"{_described(scenario.privacy.clipping)}, clip norm {norm:g}"


def _aggregation(scenario: Scenario, inputs: AggregationInputs | None) -> str:
    rule = scenario.aggregation
    public = rule.inputs
    if public is None:
        return _described(rule)
    # A file may hold fewer records than asked for.
    count = public.count if inputs is None else inputs.count
    if isinstance(public, PublicFile):
        # Its path is nobody's business but the server's.
        records = f"{count} public records of {public.path.name}"
    else:
        records = f"{count} made-up inputs ({public.pattern}, seed {public.seed})"
    return f'{rule.rule}, on {records} (see "This run"), {_described(rule, "rule", "public")}'


def _taking_part(scenario: Scenario) -> str:
    resources = scenario.resources
    least = "more than half of the sites with steps left"
    if resources.min_sites is not None:
        least = f"at least {counted(resources.min_sites, 'site')}"
    nodes = counted(scenario.least_nodes, "node")
    silent = counted(resources.silent_rounds, "silent round")
    return f"{least} in a round; begins with {nodes}; not asked after {silent}"


def _noise(scenario: Scenario) -> str:
    privacy = scenario.privacy
    if isinstance(privacy, PrivacyPlan):
        return _planned_noise(privacy)
    if privacy.temperature is not None:
        return f"that of Langevin dynamics at temperature {privacy.temperature:g}"
    deviation = privacy.noise_standard_deviation
    return f"standard deviation {deviation:g} on the sum of gradients" if deviation else "none"


def _planned_noise(privacy: PrivacyPlan) -> str:
    values = {
        "coupling": privacy.coupling,
        "temperature": privacy.temperature,
        "noise_multiplier": privacy.noise_multiplier,
    }
    parts = [_setting(name, value) for name, value in values.items() if value is not None]
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
    cost = f"epsilon {epsilon:g} on units kept from training"
    if math.isinf(epsilon):
        cost = "not private"
    settings = _described(section, "method", "scope", "epsilon", "fraction")
    scope = "one map over all sites" if section.scope == "federated" else "a map per site"
    return (
        f"{section.method}, {scope}, {section.fraction:.0%} of each training site's units, "
        f"{cost}, {settings or f'{ISOTONIC_BINS} merged bins'}"
    )

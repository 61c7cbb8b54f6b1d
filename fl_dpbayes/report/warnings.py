"""The sentence of every kind of warning, and the same warning of several sites as one line."""

import string
from collections.abc import Callable, Iterable

from fl_dpbayes.config import RunWarning, counted
from fl_dpbayes.report.numbers import rounded_up, significant


def _few_samples(samples: int, least: int, chains: int, apart: str = "") -> str:
    per_chain = " per chain" if chains > 1 else ""
    text = (
        f"{counted(samples, 'sample')}{per_chain} cannot show whether the sampler has mixed: "
        f"keep at least {least} (lower thinning or burn_in, or run more rounds)."
    )
    if apart:
        text += f" At {apart} they already show that it has not."
    return text


def _not_mixed(certain: bool, chains: int, share: float, largest: float, hot: bool) -> str:
    verb = "has not" if certain else "may not have"
    parts = "the chains disagree" if chains > 1 else "the chain's first and second half disagree"
    remedy = ", run more steps, or take larger steps (hotter if private)"
    if hot:
        remedy = " or run more steps"
    return (
        f"The sampler {verb} mixed: {parts} in {share:.0%} of the quantities looked at (R-hat "
        f"above 1.1, largest {largest:.2f}). Lengthen burn_in{remedy}."
    )


def _hot(
    planned: float,
    mean: float,
    site: str = "",
    sites: int = 1,
    friction: float = 0.0,
    momentum: float = 0.0,
) -> str:
    place = ""
    if site:
        hottest = f", the hottest of {sites} such sites" if sites > 1 else ""
        place = f"{site}{hottest}: "
    lever = ""
    if friction:
        lever = f", more friction than {friction:g}"
    elif momentum:
        lever = f", less momentum than {momentum:g}"
    widening = (mean / planned) ** 0.5
    return (
        f"{place}Privacy noise makes its uncertainty about {widening:.2g} times too wide "
        f"(temperature {mean:.3g}, planned {planned:g}). Smaller steps{lever}, a larger budget or "
        "more units help."
    )


def _weak_budget(epsilon: float, units: int, sites: int, drowned_to: float, times: float) -> str:
    return (
        f"privacy.epsilon {epsilon:g} is far too small for {units:,} units at "
        f"{counted(sites, 'site')}: predictions are little but noise. They are up to an epsilon of "
        f"about {rounded_up(drowned_to)}, and a useful model needs more; or take more than "
        f"{significant(times)} times as many units."
    )


# `{name:count noun}` writes "1 noun", "2 nouns", `{role:words}` a role as it is said; all else is
# as in `str.format`.
SENTENCES: dict[str, str | Callable[..., str]] = {
    "weak-budget": _weak_budget,
    # Who takes part.
    "no-card": "a node did not join: {reason}",
    "absent": "{site} took no part: no node of this name joined the run",
    "card-changed": "{site} did not come back: its card is not what it was",
    "other-task": "{site} did not join: its records or classes differ from {task}",
    "came-back": "round {round}: {site} came back",
    "came-back-elsewhere": "round {round}: {site} came back on another node",
    "joined": "round {round}: {site} joined the training",
    "silent": (
        "{site} gave no reply in {silent} rounds in a row (resources.silent_rounds) and trains "
        "no more"
    ),
    "missing": "{site} was missing when the run was resumed",
    "prior-repeated": (
        "the plan shares the prior between the {planned} training sites of the start and more "
        "have joined: the posterior counts it {times:.3g} times"
    ),
    "share-not-kept": (
        "only {sites:count site} took part, so each weighs {weight:.3g}, above largest_share "
        "{share:g}"
    ),
    "share-cut": (
        "{site} declares {units} of {all} units and would weigh {asked:.0%}: it was held to "
        "{share:.0%}, as a size is a site's own word (aggregation.largest_share; 1 lifts the "
        "bound)"
    ),
    "heaviest": (
        "{site} declares {units} of {all} units and has {weight:.0%} of the weight, more than "
        "all others together; its size is its own word: set aggregation.largest_share, or "
        "site_weights = 'uniform'"
    ),
    "one-by-one": (
        "{site} computes {computation} of one record at a time, about {slower:.2g} times as "
        "slow as it could be. On its processor a record's last digits would else depend on "
        "other records. The results are right; another processor is faster, or "
        "MKL_CBWR=COMPATIBLE set before Python starts may be"
    ),
    # Replies.
    "dropped": (
        "{stage}: a reply to no open request was dropped: a duplicate, or one that came too late"
    ),
    "not-usable": "round {round}: {site}: {status} {detail}",
    "left-out": "round {round}: {site} is left out: {reason}",
    "left-out-of-posterior": "{site} is left out of the posterior: {reason}",
    "too-few-for-rule": (
        "{site} is left out of the posterior: it released {samples:count sample}, "
        "aggregation.rule {rule!r} needs {least}"
    ),
    "rule-failed": "aggregation.rule {rule!r}: {reason}",
    "no-posterior": "no posterior could be formed of what the sites released: {reason}",
    # The posterior.
    "not-private": (
        "Nothing is private: sampler.kind has no 'dp-'. What sites released may show any of their "
        "records."
    ),
    "seeded": (
        "{site} says that its noise came from a seed in a file: if so it is not private; the "
        "others say no such thing of theirs"
    ),
    "looked-at": (
        "Constants of data.source were taken from the records (constants = 'from_records'), "
        "which no account counts. A simulation may do so, a hospital's site refuses until they "
        "are replaced by constants known beforehand"
    ),
    "magnitude": (
        "{count:count feature} should be about 1 in size after centers and scales, as one prior "
        "and one clip norm hold for all: {features}. Correct data.source.centers and scales, by "
        "what is known without these records"
    ),
    "shared-units": (
        "Some patients, or other people with the same name, stand at several hospitals, as "
        "data.allow_shared_units says: each hospital spends an epsilon of its own on such a "
        "patient, and what a patient loses adds up over them"
    ),
    "different-starts": (
        "aggregation.rule {rule!r} averages weights over {chains} chains that start from "
        "different weights, whose hidden units do not match: run one chain, or choose rule "
        "'mixture'"
    ),
    "units-reordered": (
        "the units of {array!r} at site {other!r} match those at {first!r} better in another "
        "order. The sites started from different weights or have swapped hidden units, so "
        "averaging weights mixes unlike units"
    ),
    "move-shortened": (
        "{site} moved the average more than aggregation.move_bound, {bound:g}, times as far as "
        "the median site: it is far off the others and was shortened to that. The posterior "
        "counts its records less and has no temperature"
    ),
    "far-off": (
        "{site} is far off: its chain ended {times:.3g} times as far from the others' as any "
        "other site's did. It may have other patients, be broken, or make up what it sends: "
        "ask it, and run once without it"
    ),
    "too-few-to-trim": (
        "with states of {sites} sites only {trimmed} bad ones could be borne, not {asked}: set "
        "resources.min_sites to {needed} or more to stop instead"
    ),
    "no-temperature": (
        "aggregation.robust {robust!r}: the averaged states follow no posterior of a known "
        "temperature"
    ),
    "reweighted": (
        "the averaged chain targets a reweighted posterior: a record of {most} counts "
        "{most_times:.3g} times, one of {least} {least_times:.3g} times; by site_weights = "
        "'units' alone each counts once"
    ),
    "drift": (
        "between two averages the sites drift apart. After {steps} steps of their own the "
        "averaged chain's mean can be off by about {drift:.1f} standard deviations of the "
        "chain, at whatever temperature. Lower training.steps_per_round (with 1 there is no "
        "drift), or choose a rule on independent chains"
    ),
    "temperature-zero": (
        "site {site!r} has samples at temperature 0: their spread is its posterior's only by chance"
    ),
    "temperatures-differ": (
        "the sites' temperatures range from {least:.3g} to {most:.3g}: hotter sites predict "
        "less surely, and combining predictions does not correct for it"
    ),
    "few-effective": (
        "site {site!r} has only {effective:.1f} effective samples of the {least} that its "
        "precision needs: its weight is uncertain, and is that of the least number"
    ),
    "one-sample-delta": (
        "site {site!r} sent one sample, which has no covariance: its delta is FedAvg's"
    ),
    "prior-share": (
        "{sites} sites with a prior share of {share:g} count the prior {times:g} times: let "
        "each target the share 1/{sites}, or use a rule that divides by the prior"
    ),
    "precision-floored": (
        "the product is less precise than the prior in {raised} of {parameters} directions and "
        "was set to the prior's precision there: the sites' precisions are too uncertain, send "
        "more samples"
    ),
    "conflict": (
        "the sites' posteriors lie so far apart, or so few samples tell their precisions, that "
        "the mean of their product is known to about {error:.1f} of its standard deviations "
        "only. Send more samples, combine fewer parameters, or choose a rule without precisions"
    ),
    "distillation-stopped": (
        "the fit of the distilled network stopped at aggregation.iterations = {iterations} "
        "before it converged; it differs from its teacher by {divergence:.3g} nats at the "
        "average input: raise iterations"
    ),
    "distillation-differs": (
        "the distilled network differs from its teacher by {divergence:.3g} nats at the "
        "average input, so it predicts otherwise than the sites' samples together: choose a "
        "larger model or rule 'mixture'"
    ),
    "distillation-synthetic": (
        "the distilled network was compared with its teacher at made-up inputs only: on "
        "handwritten digits it did not follow it well for records: prefer public records "
        "(aggregation.public)"
    ),
    # Chains.
    "optimiser": (
        "The samples are states of the optimiser {sampler}, not posterior samples: their "
        "average may predict well, but how far they spread is not the posterior's uncertainty."
    ),
    "hot": _hot,
    "few-samples": _few_samples,
    "not-mixed": _not_mixed,
    "not-moved": (
        "The samples are all the same: the chain did not move, so they say nothing about "
        "uncertainty."
    ),
    "few-independent": (
        "{samples} samples are worth about {effective:.0f} independent ones: uncertainties "
        "from them are rough. Run more steps, or raise thinning to keep the same number of "
        "samples further apart."
    ),
    "one-point": (
        "aggregation.rule {rule!r} makes one point, whose epistemic uncertainty is unknown, "
        "not none."
    ),
    "one-sample": (
        "The posterior is one sample, so nothing is averaged: it is a point estimate, and its "
        "epistemic uncertainty is unknown, not none. Lower burn_in or thinning, or run more "
        "rounds."
    ),
    # Recalibration and evaluation.
    "not-recalibrated": "{site} did not recalibrate: {reason}",
    "map-noise": (
        "recalibration is mostly noise: at {name}, with {units} units, privacy alone moves its "
        "parameters by {deviation:.3g} (a standard deviation; {largest} is already much). Do "
        "not use its map; raise recalibration.fraction or epsilon, or lower its step_size or "
        "clip_norm"
    ),
    "counts-noise": (
        "recalibration is mostly noise: in the counts of {where}, fewer than two bins hold "
        "enough records for a share known to {largest:g} (a standard deviation of the privacy "
        "noise). The isotonic map changes nothing there; raise recalibration.fraction or "
        "epsilon, or choose method 'temperature'"
    ),
    "map-far-off": (
        "{site}'s recalibration map is far off the median of the sites': by {away:.3g}, where "
        "{allowed:.3g} may be; the median cannot follow it"
    ),
    "fewer-evaluated": (
        "{fitting} samples of each predictor were evaluated, not {asked}: more exceed "
        "{mebibytes} MiB"
    ),
    "no-evaluation": "{site} sent no evaluation: {reason}",
    "no-evaluation-in-time": "{site} sent no evaluation in time",
    "gone": "{site} sent no evaluation: it has been gone since the run was resumed",
    "policy": "{sites}: by policy no evaluation left (NOT_SENT)",
    "same-records": (
        "{role:words} sites hold the same records (records_of), so they are not pooled. The "
        "same patients would count several times, and the interval would be too narrow; "
        "compare these sites one by one"
    ),
    "subgroups-left-out": (
        "{site} left out {left_out} subgroups: a reply holds at most {most}, fewer with many "
        "classes"
    ),
    "dominating": (
        "{site} states {held:.0f} of {all:.0f} test records and has {share:.0%} of the pooled "
        "result of {role:words} sites, more than all other sites together. Its count is its "
        "own word: compare the sites' own rows"
    ),
    "empty-results": (
        "{site} sent test results of no record that stands clear of their noise: it has none "
        "or too few, or made them up; nothing is known of the model there"
    ),
    "vanished": (
        "{site} makes the {metric} pooled over {role:words} sites vanish: it is {without:.3f} "
        "without it; read the sites' own rows"
    ),
    "decisive": (
        "{site} decides what is pooled over the {sites} {role:words} sites: their {metric} is "
        "{value:.3f} [{low:.3f}, {high:.3f}] with it and {without:.3f} without it. It may have "
        "other patients, or wrong results: read each hospital's row"
    ),
}


class _SentenceFormatter(string.Formatter):
    def format_field(self, value: object, format_spec: str) -> str:
        if format_spec.startswith("count ") and isinstance(value, int):
            return counted(value, format_spec.removeprefix("count "))
        if format_spec == "words":
            return {"held_out": "held-out", "train": "training"}.get(str(value), str(value))
        # A number that is not finite comes as text.
        if isinstance(value, str):
            return value
        return str(super().format_field(value, format_spec))


def sentence(warning: RunWarning) -> str:
    """Say a warning in words; `of` among its values, the names that it holds for, comes first."""
    template = SENTENCES[warning.kind]
    values = dict(warning.values)
    names = values.pop("of", "")
    if callable(template):
        text = template(**values)
    else:
        text = _SentenceFormatter().format(template, site=warning.site, **values).strip()
    return f"{names}: {text}" if names else text


def sentences(warnings: Iterable[RunWarning]) -> list[str]:
    """Say each warning once, and what is said of several sites once, with their names.

    Warnings of one kind that differ only by their site, or by numbers that belong to it (another
    round is another matter), are one sentence.

    Returns:
        Sentences, at the place of their first warning.
    """
    groups: dict[tuple[object, ...], list[RunWarning]] = {}
    for warning in dict.fromkeys(warnings):
        shared = [
            (name, value)
            for name, value in warning.values
            if name == "round" or isinstance(value, str)
        ]
        key = (warning.kind, *shared) if warning.site else (warning,)
        groups.setdefault(key, []).append(warning)
    return [_joined(group) for group in groups.values()]


def _joined(group: list[RunWarning]) -> str:
    """Say warnings that differ only by site, or by its numbers, as one sentence."""
    first = group[0]
    names = dict.fromkeys(warning.site for warning in group)
    names.pop(first.site)
    if not names:
        return sentence(first)
    alike = all(warning.values == first.values for warning in group)
    link = "the same" if alike else "and likewise"
    return f"{sentence(first).rstrip('.')} ({link} at {', '.join(names)})."

"""The report pages as Jinja templates.

Every value in them is escaped unless it is one of our own figures.
"""

# Where the list of contents goes, which is read off the headings.
CONTENTS = "<!-- contents -->"
BEGIN = """\
{%- macro table(content, caption, extent="") -%}
<div class="scroll {{ extent }}" tabindex="0" role="region" aria-label="{{ caption }}">
<table><caption class="hidden">{{ caption }}</caption>
<thead><tr>
{%- for column in content.columns %}<th scope="col"{% if loop.index0 in content.text_columns %} \
class="text"{% endif %}>
{{- column }}</th>{% endfor -%}
</tr></thead>
<tbody>
{%- for row in content.rows %}
<tr{% if not row[0][0] %} class="more"{% endif %}>
{%- for value, quiet in row %}
{%- set tone = tones[value[:1]] -%}
<td{% if loop.index0 in content.text_columns %} class="text"{% endif %}>
{%- if tone %}<span class="tone {{ tone }}">{{ value }}</span>{% else %}{{ value }}{% endif %}
{%- if quiet %} <small>{{ quiet }}</small>{% endif %}</td>{% endfor %}</tr>
{%- endfor %}
</tbody></table></div>
{%- endmacro -%}
{%- macro further(content, summary) -%}
{% if content.rows %}<details><summary>{{ summary }}</summary>{{ table(content, summary) \
}}</details>{% endif %}
{%- endmacro -%}
{%- macro calibrated() -%}
<p>A model is calibrated if, among the records to which it gives a probability of 80%, it is right \
for 80%. The
debiased root-mean-square error says by how much its probabilities are typically off; it does not \
grow merely because
there are few records.
{%- endmacro -%}
{%- macro figure(item) -%}
<figure role="group" aria-label="{{ item.description }}">{{ item.inline }}
</figure>
{%- endmacro -%}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{ title }}</title>
<style>{{ stylesheet }}</style>
</head>
<body>
<main>
"""
END = """\
<dl>{% for name, value in facts.items() %}<dt>{{ name }}</dt><dd>{{ value }}</dd>{% endfor %}</dl>
</main>
</body>
</html>
"""

RUN_ANSWER = (
    """\
<header class="answer">
<h1>{{ run.scenario }}{% if not run.private %} (not private){% elif run.seeded %} (seeded: not \
private)\
{% endif %}</h1>
<p class="lead">{{ answer.lead }}{% if verdicts %} {{ verdicts.sentence }}{% endif %}</p>
{% if verdicts %}{{ table(verdicts.shown, "What was seen at each hospital", "whole") }}
{{ further(verdicts.folded, "The other hospitals") }}
{% for item in hospitals_figure %}{{ figure(item) }}{% endfor %}
<p class="note">{{ words.VERDICT_NOTE }}</p>{% endif %}
<p><strong>{{ answer.advice }}</strong></p>
<ul><li>{{ answer.calibration | unbroken }}</li>
{% for text in answer.elsewhere %}<li>{{ text | unbroken }}</li>{% endfor %}</ul>
{% if answer.baselines %}<p>{{ answer.baselines }}</p>{% endif %}
<p>{{ answer.privacy | unbroken }}</p>
{% if answer.cautions %}<div class="caution">{% for text in answer.cautions %}<p>{{ text }}</p>{% \
endfor %}</div>
{% endif %}
<nav aria-label="Contents"><ul>"""
    + CONTENTS
    + """</ul></nav>
</header>
{% if run.warnings %}
<h2 id="warnings">Warnings</h2>
<div class="caution">{% for text in run.warnings %}<p>{{ text }}</p>{% endfor %}</div>
{% endif %}
"""
)
RUN_SITES = """\
<h2 id="sites">Hospitals and their patients</h2>
{{ table(sites, "Sites of the run") }}
<p class="note">{% if run.data %}Data: {{ run.data }}. {% endif %}Units as each site declares \
them; shares are those of
its test records. Few: fewer than {{ few }}, so that a difference may well be chance.</p>
"""
RUN_BASELINES = """\
<h2 id="baselines">Beside simpler predictors</h2>
{% if baselines.rows %}{{ table(baselines, "The run's predictors beside simpler ones") }}
<p class="note">On the same test records, computed from training records without privacy: not \
covered by epsilon, and
only in a simulation. Regressions are scikit-learn's logistic ones with an L2 penalty (C = 1) on \
the same features.
Lower is better for NLL and RMS. {% for name, why in missing.items() %}Not computed: {{ name }}, \
for {{ why }}.
{% endfor %}</p>
{% else %}<p>Not computed: {{ missing.values() | first | default("only a simulation has all \
records at hand") }}.</p>
{% endif %}
"""
RUN_CALIBRATION = """\
<h2 id="calibration">Calibration</h2>
{% if calibration.rows %}
{{ table(calibration, "Calibration over all sites of a role") }}
<p class="note">{{ run.measures.note }}\
{% if run.calibration | selectattr("noised") | list %} {{ words.NOISED_NOTE }}{% endif %}</p>
{% else %}<p>No calibration was measured.</p>{% endif %}
{% if "ece" in run.measures.first %}
<details class="guide"><summary>How to read this</summary>
{{ calibrated() }} The plain ECE does: compare it only with the value in parentheses beside it.</p>
<p>NLL and Brier score are lower where probabilities are better, whether through calibration or \
through accuracy.
NLL has no interval where one more wrong answer could change it too much: few records, or \
probabilities near 0. ACE
(equal-mass bins) and SCE (equal-width bins) average the error over classes; MCE is the worst bin \
and depends on few
records. Epistemic is the disagreement of the posterior's samples, aleatoric the uncertainty that \
they share.</p>
<p>AURC is the error rate among the most confident records, averaged over how many of them are \
kept; its excess is what
a perfect ranking would save.</p>
</details>
{% endif %}
{% if reliability %}
<h3>Reliability</h3>
<p class="note">Grey band: where 95% of a calibrated model's points would lie; a filled point lies \
outside it.
{% if run.reliability and run.reliability[0].risk %}Risks are of {{ words.event(run) }}.{% endif %}
With fewer than 1,500 records, bins hold about equally many.</p>
<div class="figures">{% for item in reliability %}{{ figure(item) }}{% endfor %}</div>
{% endif %}
{% if sites_figures %}
<h3>Site by site</h3>
<div class="figures">{% for item in sites_figures %}{{ figure(item) }}{% endfor %}</div>
{% endif %}
{{ further(all_metrics, "All metrics at every site") -}}
"""
RUN_SUBGROUPS = """\
{% if subgroups.rows %}
<h2 id="subgroups">Subgroups</h2>
{{ table(subgroups, "Calibration of each subgroup") }}
<p class="note">{{ run.measures.note }}{% if headline %} Of the {{ headline }}.{% endif %}</p>
{{ further(further_subgroups, "Subgroups at every site, by every predictor") -}}
<details class="guide"><summary>How to read this</summary>
<p>A model can be right on average and wrong for women, or for the old. Compare intervals of \
subgroups, not values: a
small one has a wide interval, and of twenty 95% intervals one misses by chance alone.</p>
</details>
{% endif %}
"""
RUN_CLINICAL = """\
{% if clinical.rows or net_benefit %}
<h2 id="clinical">What clinicians report</h2>
{% if operating.rows %}{{ table(operating, "Decisions at a threshold of risk") }}
<p class="note">An alarm from a risk of {{ threshold }}% on: the multiple of 5% nearest to how \
often the event happens
among the training sites' test records (50% where that is not known); no threshold is right for \
every use. [95%
interval].</p>{% endif %}
{{ further(further_operating, "The same at every site, by every predictor") -}}
{% if clinical.rows %}{{ table(clinical, "Calibration intercept and slope") }}{% endif %}
{{ further(further_clinical, "Intercept and slope at every site") -}}
{% if net_benefit or roc %}
<p class="note">{% if roc %}ROC curves from sums that left without noise; the band holds all that \
these sums allow. {% endif %}Intervals hold the noise on noised sums.</p>
<div class="figures">{% for item in roc + net_benefit %}{{ figure(item) }}{% endfor %}</div>
{% endif %}
<details class="guide"><summary>How to read this</summary>
<p>Intercept: below 0, the model predicts more cases than there are; above 0, fewer. Slope: below \
1, its probabilities
are too extreme (low ones too low, high ones too high); above 1, too timid. An interval that holds \
0, or 1, shows no
error.</p>
<p>Sensitivity: of those with the event, the share above the threshold; specificity: of the \
others, the share below;
PPV and NPV: how many alarms, and how many reassurances, are right at this place's frequency of \
the event.</p>
<p>Net benefit counts each rightly treated patient as 1 and charges each wrongly treated one what \
the threshold implies:
at 20%, a quarter. The model is worth using where its curve lies above both "treat all" and "treat \
none".</p>
</details>
{% endif %}
"""
RUN_CONFORMAL = """\
{% if conformal.rows %}
<h2 id="conformal">Prediction sets</h2>
{{ table(conformal, "Coverage and size of prediction sets") }}
{% if calibrated_on %}<p class="note">Asked for: {{ level }}. Sets calibrated on
{{ calibrated_on }}. Coverage with its 95% interval; size is the mean number of classes in a set
{%- if headline %}; {{ headline }}{% endif %}.</p>{% endif %}
{{ further(further_conformal, "Prediction sets at every site, by every predictor") -}}
<details class="guide"><summary>How to read this</summary>
<p>A conformal prediction set names all plausible classes, as many as it takes to hold the right \
one as often as was
asked. That is promised only for records like those that the sets were calibrated on. "Too low": \
below what was asked by
more than the chance of these test records; with 100 records to calibrate on, coverage may be 6 \
points off even at the
training sites. A set that names every class is never wrong and says nothing; an empty one counts \
as wrong.</p>
<p>Weights adapt the sets to another prevalence: that of the place's labels shows what could be \
had at best, that of its
predictions what a hospital without labels can have.</p>
</details>
{% endif %}
"""
RUN_UNCERTAINTY = """\
{% if shift_detection.rows %}
<h2 id="uncertainty">Uncertainty at new sites</h2>
{{ table(shift_detection, "How well uncertainty tells new sites from training sites") }}
<p class="note">AUROC with its 95% interval and its bounds (the sums leave the order of almost \
equal uncertainties
open), against the training sites' test records
{%- if reference_records %} (n = {{ reference_records }}){% endif %}; average of posterior
samples.</p>
<details class="guide"><summary>How to read this</summary>
<p>The chance that a record of the place has a higher uncertainty than one of the training sites. \
0.5: the model does
not notice that it is elsewhere; near 1: it is less sure there, as it should be; below 0.5: surer \
than at home, the
dangerous case. Epistemic is the disagreement of the posterior's samples; total adds what they \
share.</p>
</details>
{% endif %}
"""
RUN_TRUTH = """\
{% if truth.rows %}
<h2 id="truth">Against the known truth</h2>
{{ table(truth, "Estimated and true calibration errors") }}
<p class="note">Errors in percentage points, [95% interval].</p>
{{ further(further_truth, "Truth at every site") -}}
<details class="guide"><summary>How to read this</summary>
<p>These records are made up, so the probability of each class is known, and with it the true \
error, without the chance
in the labels. About 95 of 100 intervals should hold it. The plain ECE lies above it where records \
are few.</p>
</details>
{% endif %}
"""
RUN_SETTINGS = """\
{% if settings.rows %}
<h2 id="settings">What was run</h2>
{{ table(settings, "What was run") }}
{% endif %}
"""
RUN_PRIVACY = """\
<h2 id="privacy">{{ "Privacy per site" if run.private else "Training per site" }}</h2>
{% if privacy.rows %}
{{ table(privacy, "Privacy spent by each site" if run.private else "Training of each site") }}
{% else %}<p>No site trained.</p>{% endif %}
<div class="figures">
{% if epsilon %}{{ figure(epsilon[0]) }}{% endif %}
<div>
{% for text in words.privacy_notes(run) %}<p class="note">{{ text }}</p>{% endfor %}
</div></div>
{% if hospitals.rows %}<h2 id="hospitals">How hospitals differ</h2>
{{ table(hospitals, "How hospitals differ") }}{% endif %}
"""
RUN_RELEASES = """\
<h2 id="releases">What left each site</h2>
{% if releases.rows %}{{ table(releases, "What left each site") }}
{% else %}<p>This run kept no list of releases.</p>{% endif %}
{% if participation.rows %}<h3>Who took part in which round</h3>
{{ table(participation, "Who took part in which round") }}{% endif %}
"""
RUN_COST = """\
<h2 id="cost">Cost</h2>
{{ table(cost, "Bytes and seconds") }}
{% if passes.rows %}
<details><summary>How many records were computed at a time</summary>
{{ table(passes, "Passes over records") }}
<p class="note">A record's result must not depend, by its last digit, on the records beside it. \
Each site tries that on
made-up records and computes as many at a time as stand alone. "Aligned": zeros behind each row; \
"separate": a product
for each row. The time of a record is measured on made-up records, beside a plain pass of the \
wanted size.</p>
</details>
{% endif %}
"""
RUN_LIMITS = """\
<h2 id="limits">Limits</h2>
<details class="guide" open><summary>What these numbers do not say</summary>
{% if run.private %}
<p>Each ε bounds what the site's releases tell about {{ words.neighbours(run) }}; a person with \
records at several
sites, or more records than one unit holds, is protected less. δ is the probability with which the \
bound may fail.</p>
{% endif %}
<p>{% if not run.configurations_tried %}How many configurations were tried is not recorded. {% \
endif %}
Choosing between configurations by their results on the same records flatters the chosen one
{%- if run.private %}, and costs privacy that ε does not contain{% endif %}.</p>
<p>Intervals cover the chance of the test records (and of added noise), not of another training \
run, and not of sites
unlike the ones tested. Intervals that do not overlap show a difference; intervals that overlap \
leave it open.</p>
</details>
"""
RUN_CARD = """\
<h2 id="card">Model card</h2>
<details class="card"><summary>What this run knows of the items of TRIPOD+AI</summary>
<dl>{% for name, value in card.items() %}<dt>{{ name }}</dt><dd>{{ value }}</dd>{% endfor %}</dl>
</details>
<h2 id="run">This run</h2>
"""
RUN = (
    BEGIN
    + RUN_ANSWER
    + RUN_SITES
    + RUN_BASELINES
    + RUN_CALIBRATION
    + RUN_SUBGROUPS
    + RUN_CLINICAL
    + RUN_CONFORMAL
    + RUN_UNCERTAINTY
    + RUN_TRUTH
    + RUN_SETTINGS
    + RUN_PRIVACY
    + RUN_RELEASES
    + RUN_COST
    + RUN_LIMITS
    + RUN_CARD
    + END
)

STUDY_ANSWER = """\
<header class="answer">
<h1>{{ record.study }}</h1>
{% if record.question %}<p>{{ record.question }}</p>{% endif %}
<p class="lead">{{ answer.lead | unbroken }}</p>
{% for text in answer.differences %}<p>{{ text | unbroken }}</p>{% endfor %}
{% if answer.shifts %}<p>{{ answer.shifts | unbroken }}</p>{% endif %}
<p class="note">{{ answer.basis }}</p>
{% if answer.cautions %}<div class="caution">{% for text in answer.cautions %}<p>{{ text }}</p>{% \
endfor %}</div>
{% endif %}
</header>
"""
STUDY_BASELINE = """\
{% if beside.rows %}
<h2 id="beside">Beside the baseline</h2>
{{ table(beside, "Every method beside the baseline, at each setting by itself") }}
<p class="note">At {{ place }}; errors and accuracy in percentage points, [95% interval over \
seeds]; "less baseline" is
paired: the same records and draws.</p>
{% endif %}
{% if paper.rows %}
<h2 id="paper">Beside the paper</h2>
{{ table(paper, "What the paper prints beside what was measured") }}
{% endif %}
"""
STUDY_CELLS = """\
<h2 id="varied">What was varied</h2>
<dl>{% for name, values in axes.items() %}<dt>{{ name }}</dt><dd>{{ values }}</dd>{% endfor %}</dl>
{% if failures.rows %}
<details open><summary>Cells that failed</summary>{{ table(failures, "Cells that failed") \
}}</details>
{% endif %}
"""
STUDY_PRIVACY = """\
<h2 id="privacy">Privacy</h2>
{% if spent.rows %}{{ table(spent, "Privacy asked and spent") }}
{% else %}<p>No cell finished.</p>{% endif %}
<p class="note">The largest ε that any site of any seed spent in one run, rounded up. A hospital \
that took part in all
of these runs would have spent more; ∞: not private.</p>
"""
STUDY_FIGURES = """\
{% for section, figures in sections %}
<h2>{{ section.heading }}</h2>
{% if section.note %}<p class="note">{{ section.note }}</p>{% endif %}
<div class="figures">{% for item in figures %}{{ figure(item) }}{% endfor %}</div>
{% endfor %}
"""
STUDY_NUMBERS = """\
<h2 id="numbers">Numbers</h2>
{% if differences.rows %}
<h3>Paired differences</h3>
{{ table(differences, "Paired differences over common seeds") }}
<p class="note">At {{ place }}; method minus baseline at equal seed and setting; errors and \
accuracy in percentage
points.</p>
{% endif %}
{% if settings.rows %}
<details><summary>Every setting at {{ place }}</summary>{{ table(settings, "Every setting and \
predictor") }}</details>
{% endif %}
<details class="guide"><summary>How to read this</summary>
{{ calibrated() }} ECE does: compare it only at equal numbers of records, or with what a \
calibrated model would
show.</p>
<p>A mean over settings speaks of just these settings in equal parts. Where methods are compared \
within an axis, every
other axis is averaged. Where intervals overlap, the paired difference above is sharper: the same \
records and draws.</p>
</details>
<h2 id="run">This study</h2>
{% for text in record.notes %}<p class="note">{{ text }}</p>{% endfor %}
"""
STUDY = (
    BEGIN
    + STUDY_ANSWER
    + STUDY_BASELINE
    + STUDY_CELLS
    + STUDY_PRIVACY
    + STUDY_FIGURES
    + STUDY_NUMBERS
    + END
)

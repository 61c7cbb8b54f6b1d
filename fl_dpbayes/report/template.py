"""The report pages as Jinja templates.

Every value in them is escaped unless it is one of our own figures.
"""

# Where the list of contents goes, which is read off the headings.
CONTENTS = "<!-- contents -->"
GLOSSARY = "<!-- glossary -->"
BEGIN = """\
{%- macro table(content, caption, extent="") -%}
<div class="scroll {{ extent }}{% if content.columns | length > few_columns %} wide{% endif %}" \
tabindex="0" role="region" aria-label="{{ caption }}">
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
<td data-label="{{ content.columns[loop.index0] }}"{% if loop.index0 in content.text_columns %} \
class="text"{% endif %}>
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
FACTS = """\
<dl>{% for name, value in facts.items() %}<dt>{{ name }}</dt><dd>{{ value }}</dd>{% endfor %}</dl>
"""
END = (
    GLOSSARY
    + """
</main>
</body>
</html>
"""
)
# Filled with the words that a page uses, once it is written.
GLOSSARY_SECTION = """\
<details class="card" id="glossary"><summary>Glossary</summary>
<dl>{% for term in terms %}<dt id="{{ term.anchor }}">{{ term.name }}</dt>
<dd>{{ term.meaning }} <span class="note">{{ term.example }}</span></dd>{% endfor %}</dl>
</details>
"""

RUN_ANSWER = (
    """\
{%- macro calibration_sentences() -%}
<ul><li>{{ answer.calibration | unbroken }}</li>
{% for text in answer.elsewhere %}<li>{{ text | unbroken }}</li>{% endfor %}</ul>
{%- endmacro -%}
<header class="answer">
<h1>{{ run.scenario }}{% if not run.private %} (not private){% elif run.seeded %} (seeded: not \
private)\
{% endif %}</h1>
{% if subtitle %}<p class="note">{{ subtitle }}</p>{% endif %}
<p class="lead">{{ answer.lead }}{% if verdicts %} {{ verdicts.sentence }}{% endif %}</p>
<p><strong>{{ answer.advice | whole_names }}</strong></p>
{% if verdicts %}{{ table(verdicts.shown, "What was seen at each hospital", "whole") }}
{{ further(verdicts.folded, "The other hospitals") }}
<p class="note">{{ words.SMALL_PRINT }}</p>
{% endif %}
<div class="figures">
{% if verdicts %}{% for item in hospitals_figure %}{{ figure(item) }}{% endfor %}{% endif %}
<div>
{% if not verdicts %}{{ calibration_sentences() }}{% endif %}
{% if answer.cautions %}<div class="caution">{% for text in answer.cautions %}<p>{{ text }}</p>{% \
endfor %}</div>
{% endif %}
{% if run.warnings %}
<div class="caution" id="warnings">{% for text in run.warnings[:3] %}<p>{{ text }}</p>\
{% endfor %}
{% if run.warnings[3:] %}<details><summary>Further warnings</summary>
{% for text in run.warnings[3:] %}<p>{{ text }}</p>{% endfor %}</details>{% endif %}
</div>
{% endif %}
</div></div>
<nav aria-label="Contents"><ul>"""
    + CONTENTS
    + """</ul></nav>
</header>
"""
)
RUN_PRIVACY = """\
<h2 id="privacy">{{ "What privacy cost" if run.private else "Training" }}</h2>
<p>{{ answer.privacy | unbroken }}</p>
{% if spent.shown.rows %}
{% if spent_alike %}<details><summary>Each site, all alike</summary>{% endif %}
{{ table(spent.shown, "Privacy spent by each site" if run.private else "Training of each site", \
"whole") }}
{{ further(spent.folded, "The other sites") }}
{% if spent_alike %}</details>{% endif %}
{% else %}<p>No site trained.</p>{% endif %}
<details><summary>{{ "The whole account" if run.private else "All of training" }}</summary>
{% if privacy.rows %}{{ table(privacy, "The whole account of each site") }}{% endif %}
<div class="figures">
{% if epsilon %}{{ figure(epsilon[0]) }}{% endif %}
<div>
{% for text in words.privacy_notes(run) %}<p class="note">{{ text }}</p>{% endfor %}
</div></div></details>
"""
RUN_SITES = """\
<h2 id="sites">Who trained</h2>
{{ table(sites.shown, "Sites of the run", "whole") }}
{{ further(sites.folded, "The other hospitals") }}
<p class="note">{% if run.data %}Data: {{ run.data }}. {% endif %}Units as each site declares \
them; shares are those of
its test records. Few: fewer than {{ few }}, so that a difference may well be chance.</p>
"""
RUN_CALIBRATION = """\
<h2 id="calibration">Calibration of each hospital</h2>
{% if not calibration.rows %}<p>No calibration was measured.</p>{% endif %}
{% if verdicts %}
{% if verdicts.gaps %}<p>{{ verdicts.gaps }}</p>{% endif %}
<p class="note">Risks are of {{ words.event(run) }}, by the {{ headline }}.
Curve: how often it happened at each predicted risk, with its 95%
band; on the dashed line risks are calibrated. Where few patients tell no curve, points with \
intervals.
{% if verdicts.folded.rows %}Drawn are the hospitals of the first table.{% endif %}</p>
<div class="figures">{% for item in panels %}{{ figure(item) }}{% endfor %}</div>
{% elif reliability %}
<p class="note">Grey band: where 95% of a calibrated model's points would lie; a filled point lies \
outside it.</p>
<div class="figures">{% for item in reliability %}{{ figure(item) }}{% endfor %}</div>
{% endif %}
"""
RUN_SUBGROUPS = """\
{% if subgroups.rows %}
<h2 id="subgroups">Subgroups</h2>
{{ table(subgroups, "Calibration of each subgroup", "whole") }}
<p class="note">{{ "Small: 95% intervals." if verdicts else run.measures.note }} Compare \
intervals, not values: of twenty 95% intervals one misses by chance.</p>
{{ further(further_subgroups, "All subgroups, by every predictor") -}}
{% endif %}
"""
RUN_CLINICAL = """\
{% if operating.rows or net_benefit %}
<h2 id="clinical">Decisions</h2>
{% for item in net_benefit %}{{ figure(item) }}{% endfor %}
{% if net_benefit %}<p class="note">Where its net benefit lies above both "treat all" and "treat \
none", the model serves better than either rule. It does not tell whom to treat.</p>{% endif %}
<p class="note">Pooled over hospitals: not valid at a hospital whose row says recalibrate \
first.</p>
{% if operating.rows %}{{ table(operating, "Decisions at a threshold of risk", "whole") }}
<p>{{ alarms }}</p>
<p class="note">An alarm is a predicted risk of {{ threshold }}% or more: about how often \
the event happens among the test records of hospitals that trained (50% where that is not known). \
No threshold is right for every use.</p>
{% endif %}
{{ further(further_operating, "The same at every site, by every predictor") -}}
{% endif %}
"""
RUN_FURTHER = """\
<h2 id="further">For experts</h2>
<details id="predictors"><summary>Other predictors, and simpler ones</summary>
{% if answer.comparison %}<p>{{ answer.comparison | unbroken }}</p>{% endif %}
{% if answer.baselines %}<p>{{ answer.baselines }}</p>{% endif %}
{% if baselines.rows %}{{ table(baselines, "The run's predictors beside simpler ones") }}
<p class="note">On the same test records, computed from training records without privacy: not \
covered by epsilon, and
only in a simulation. Regressions are scikit-learn's logistic ones with an L2 penalty (C = 1) on \
the same features.
Lower is better for NLL and RMS. {% for name, why in missing.items() %}Not computed: {{ name }}, \
for {{ why }}.
{% endfor %}</p>
{% else %}<p>Simpler ones were not computed: {{ missing.values() | first | default("only a \
simulation has all records at hand") }}.</p>
{% endif %}
<div class="figures">{% for item in other_reliability %}{{ figure(item) }}{% endfor %}</div>
</details>
<details id="measures"><summary>All measures</summary>
{% if verdicts %}{{ calibration_sentences() }}{% endif %}
{% if calibration.rows %}
{{ table(calibration, "Calibration over all sites of a role") }}
<p class="note">{{ run.measures.note }}\
{% if run.calibration | selectattr("noised") | list %} {{ words.NOISED_NOTE }}{% endif %}</p>
{{ table(all_metrics, "All metrics at every site") }}
{% endif %}
{% if clinical.rows %}{{ table(clinical, "Calibration intercept and slope") }}{% endif %}
<div class="figures">{% for item in (reliability if verdicts else []) + shifts + other_figures %}\
{{ figure(item) }}{% endfor %}</div>
<p class="note">ROC curves are from sums that left without noise; the band holds all that these \
sums allow.</p>
</details>
"""
RUN_CONFORMAL = """\
{% if conformal.rows %}
<details id="conformal"><summary>Prediction sets</summary>
{{ table(conformal, "Coverage and size of prediction sets") }}
{% if calibrated_on %}<p class="note">Asked for: {{ level }}. Sets calibrated on
{{ calibrated_on }}. Coverage with its 95% interval; size is the mean number of classes in a set
{%- if headline %}; {{ headline }}{% endif %}.</p>{% endif %}
{% if further_conformal.rows %}{{ table(further_conformal, "Prediction sets at every site, by \
every \
predictor") }}{% endif %}
<p class="note">A conformal prediction set names all plausible classes, as many as it takes to \
hold \
the right one as often as was asked. That is promised only for records like those that the sets \
were calibrated on. With 100 of them, coverage may be 6 points off even at the training sites. A \
set that names every class says nothing; an empty one counts as wrong.</p>
<p class="note">Weights adapt the sets to another prevalence. Those by the place's labels show \
what \
could be had at best; those by its predictions, what a hospital without labels can have.</p>
</details>
{% endif %}
"""
RUN_UNCERTAINTY = """\
{% if shift_detection.rows %}
<details id="uncertainty"><summary>Uncertainty at new sites</summary>
{{ table(shift_detection, "How well uncertainty tells new sites from training sites") }}
<p class="note">AUROC with its 95% interval, and its bounds where the sums leave the order of \
almost equal uncertainties open. It is against the training sites' test records
{%- if reference_records %} (n = {{ reference_records }}){% endif %}; average of posterior \
samples.</p>
<p class="note">It is the chance that a record of the place is less certain than one of the \
training sites. At 0.5 the model does not notice that it is elsewhere; below, it is surer than at \
home: the dangerous case. Epistemic is the disagreement of the samples; total adds what they \
share.</p>
</details>
{% endif %}
"""
RUN_TRUTH = """\
{% if truth.rows %}
<details id="truth"><summary>Against the known truth</summary>
{{ table(truth, "Estimated and true calibration errors") }}
{% if further_truth.rows %}{{ table(further_truth, "Truth at every site") }}{% endif %}
<p class="note">Errors in percentage points, [95% interval]. These records are made up, so the \
true \
error is known, without the chance in the labels. About 95 of 100 intervals should hold it.</p>
</details>
{% endif %}
"""
RUN_SETTINGS = """\
<details id="settings"><summary>What left each site, what it took, what was run</summary>
{% if settings.rows %}{{ table(settings, "What was run") }}{% endif %}
{% if hospitals.rows %}<h3>How hospitals differ</h3>
{{ table(hospitals, "How hospitals differ") }}{% endif %}
<h3 id="releases">What left each site</h3>
{% if releases.rows %}{{ table(releases, "What left each site") }}
{% else %}<p>This run kept no list of releases.</p>{% endif %}
{% if participation.rows %}<h3>Who took part in which round</h3>
{{ table(participation, "Who took part in which round") }}{% endif %}
<h3 id="cost">Bytes and seconds</h3>
{{ table(cost, "Bytes and seconds") }}
{% if passes.rows %}
<h3>How many records were computed at a time</h3>
{{ table(passes, "Passes over records") }}
<p class="note">A record's result must not depend, by its last digit, on the records beside it. \
Each site tries that on made-up records and computes as many at a time as stand alone. "Aligned": \
zeros behind each row; "separate": a product for each row. The time of a record is that of made-up \
ones, beside a plain pass of the wanted size.</p>
{% endif %}
</details>
"""
RUN_LIMITS = """\
<details id="limits"><summary>What these numbers do not say</summary>
{% if run.private %}
<p>Each ε bounds what the site's releases tell about {{ words.neighbours(run) }}. A person with \
records at several sites, or more records than one unit holds, is protected less.</p>
{% endif %}
<p>{% if not run.configurations_tried %}How many configurations were tried is not recorded. {% \
endif %}
Choosing between configurations by their results on the same records flatters the chosen one
{%- if run.private %}, and costs privacy that ε does not contain{% endif %}.</p>
<p>Intervals cover the chance of the test records (and of added noise). They do not cover another \
training run, nor sites unlike the ones tested. Intervals that do not overlap show a difference; \
intervals that overlap leave it open.</p>
</details>
"""
RUN_CARD = """\
<details class="card" id="card"><summary>Model card: what this run knows of the items of \
TRIPOD+AI</summary>
<dl>{% for name, value in card.items() %}<dt>{{ name }}</dt><dd>{{ value }}</dd>{% endfor %}</dl>
</details>
<details class="card" id="run"><summary>This run</summary>
"""
RUN = (
    BEGIN
    + RUN_ANSWER
    + RUN_PRIVACY
    + RUN_SITES
    + RUN_CALIBRATION
    + RUN_SUBGROUPS
    + RUN_CLINICAL
    + RUN_FURTHER
    + RUN_CONFORMAL
    + RUN_UNCERTAINTY
    + RUN_TRUTH
    + RUN_SETTINGS
    + RUN_LIMITS
    + RUN_CARD
    + FACTS
    + "</details>\n"
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
    + FACTS
    + END
)

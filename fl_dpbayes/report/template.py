"""The report page as a Jinja template; every value in it is escaped unless it is one of our own figures."""

from fl_dpbayes.report.measures_template import MEASURES
from fl_dpbayes.report.page_macros import MACROS

_BEFORE = (
    MACROS
    + """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{ run.scenario }}: privacy and calibration</title>
<style>{{ stylesheet }}</style>
</head>
<body>
<main>
<header class="answer">
<h1>{{ run.scenario }}{% if not run.private %} (not private){% elif run.seeded %} (seeded: not private)\
{% endif %}</h1>
<p class="lead">{{ answer.calibration | unbroken }}</p>
{% if answer.elsewhere %}<p>{{ answer.elsewhere | unbroken }}</p>{% endif %}

<p>{{ answer.privacy | unbroken }}</p>
{% if answer.cautions %}<div class="caution">{% for text in answer.cautions %}<p>{{ text }}</p>{% endfor %}</div>
{% endif %}
{% if key_figures %}<div class="tiles">{% for value, meaning in key_figures %}
<div class="tile"><b>{{ value }}</b><span>{{ meaning | unbroken }}</span></div>{% endfor %}</div>{% endif %}

</header>

{% if run.warnings %}
<h2>Warnings</h2>
<div class="caution">{% for text in run.warnings %}<p>{{ text }}</p>{% endfor %}</div>
{% endif %}

{% if settings.rows %}
<h2 id="settings">What was run</h2>
{{ table(settings, "What was run") }}
{% endif %}
<h2 id="privacy">{{ "Privacy per site" if run.private else "Training per site" }}</h2>
{% if privacy.rows %}
{{ table(privacy, "Privacy spent by each site" if run.private else "Training of each site") }}
{% else %}<p>No site trained.</p>{% endif %}
<div class="figures">
{% if epsilon %}{{ figure(epsilon) }}{% endif %}
<div>
{% if run.private %}
<p class="note">Two data sets are neighbours if they differ by {{ adjacency }}. ε and μ are rounded up.
{{ small_delta }}</p>
<p class="note">ε after a round holds if the run's end was fixed beforehand. If the server ended it for what it saw,
the whole plan's ε holds, and always the budget.</p>
{% if run.chains > 1 %}<p class="note">{{ run.chains }} chains per site: their costs add up to this one account.</p>
{% endif %}
{% else %}
<p class="note">Not private: ε is infinite. What the sites released may show any of their records.</p>
{% endif %}
{% if temperatures %}<p class="note">Temperature is the mean over steps, weighted by step size, with its range:
{{ temperatures | join("; ") }}.</p>
{% endif %}
{% if run.private and run.privacy | selectattr("recalibration_epsilon", "number") | list %}
<p class="note">Recalibration used units that
were kept from training: each unit pays one of the two ε, so at most the larger.</p>{% endif %}
{% if run.evaluation_privacy %}<p class="note">Rows of status evaluation: what noised test results cost, on units that
did not train.</p>{% endif %}
{% if approximate_mu %}<p class="note">μ marked clt is a central-limit approximation and no upper bound; the ε beside it
does not come from it.</p>{% endif %}
</div></div>

<h2 id="releases">What left each site</h2>
{% if releases.rows %}{{ table(releases, "What left each site") }}
{% else %}<p>This run kept no list of releases.</p>{% endif %}

<h2 id="calibration">Calibration</h2>
{% if calibration.rows %}
{{ table(calibration, "Calibration over all sites of a role") }}
<p class="note">Errors in percentage points, [95% interval]. In parentheses: the ECE that a perfectly calibrated model
would show with as many records.</p>
{% else %}<p>No calibration was measured.</p>{% endif %}
<details class="guide"><summary>How to read this</summary>
<p>A model is calibrated if, among the records to which it gives a probability of 80%, it is right for 80%. The
debiased root-mean-square error says by how much its probabilities are typically off; it does not grow merely because
there are few records. The plain ECE does: compare it only with the value in parentheses beside it.</p>
<p>NLL and Brier score are lower where probabilities are better, whether through calibration or through accuracy.
NLL has no interval where one more wrong answer could change it too much: few records, or probabilities near 0. ACE
(equal-mass bins) and SCE (equal-width bins) average the error over classes; MCE is the worst bin and depends on few
records. Epistemic is the disagreement of the posterior's samples, aleatoric the uncertainty that they share.</p>
<p>AURC is the error rate among the most confident records, averaged over how many of them are kept; its excess is what
a perfect ranking would save. Accuracy at coverage 0.8 is that of the most confident 80%.</p>
</details>
{% if reliability %}
<h3>Reliability</h3>
<p class="note">Grey band: where 95% of a calibrated model's accuracies would lie. A filled point lies outside it.</p>
<div class="figures">{% for item in reliability %}{{ figure(item) }}{% endfor %}</div>
{% endif %}
{% if site_reliability %}
<h3>Reliability site by site</h3>
<p class="note">One diagram per site, as above: a filled point lies outside the grey band. With few records the band is
wide, and a point far from the line may still be chance.</p>
<div class="figures">{{ figure(site_reliability) }}</div>
{% endif %}
{% if sites_figures %}
<h3>Site by site</h3>
<div class="figures">{% for item in sites_figures %}{{ figure(item) }}{% endfor %}</div>
{% endif %}
{% if all_metrics.rows %}
<details><summary>All metrics at every site</summary>
{{ table(all_metrics, "Calibration at every site") }}</details>
{% endif %}
"""
)

_AFTER = """\

<h2 id="sites">Sites</h2>
{{ table(sites, "Sites of the run") }}
{% if participation.rows %}{{ table(participation, "Who took part in which round") }}{% endif %}


<h2 id="cost">Cost</h2>
{{ table(cost, "Bytes and seconds") }}

<h2 id="limits">Limits</h2>
<details class="guide" open><summary>What these numbers do not say</summary>
{% if run.private %}
<p>Each ε bounds what the site's releases tell about {{ adjacency }}; a person with records at several sites, or more
records than one unit holds, is protected less. δ is the probability with which the bound may fail.</p>
{% endif %}
<p>
{%- if not run.configurations_tried %}How many configurations were tried is not recorded.
{%- elif run.configurations_tried == 1 %}One configuration was tried.
{%- else %}{{ run.configurations_tried }} configurations were tried.
{%- endif %} {{ "" }}
{% if run.private %}Choosing between configurations by their results on the same records costs privacy that ε does not
contain.</p>
<p>μ (exact) holds for full batches; μ (clt) is an approximation that under-reports, and is never turned into an ε.</p>
{% else %}Choosing between configurations by their results on the same records flatters the chosen one.</p>
{% endif %}
<p>Intervals cover the chance of the test records (and of added noise), not of another training run, and not of sites
unlike the ones tested. Intervals that do not overlap show a difference; intervals that overlap leave it open.</p>
</details>

<h2 id="run">This run</h2>
<dl>{% for name, value in facts.items() %}<dt>{{ name }}</dt><dd>{{ value }}</dd>{% endfor %}</dl>
</main>
</body>
</html>
"""

TEMPLATE = _BEFORE + MEASURES + _AFTER

"""The page of a study as a Jinja template; every value in it is escaped unless it is one of our own figures."""

from fl_dpbayes.report.page_macros import MACROS

TEMPLATE = (
    MACROS
    + """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{ record.study }}: calibration of a grid of runs</title>
<style>{{ stylesheet }}</style>
</head>
<body>
<main>
<header class="answer">
<h1>{{ record.study }}</h1>
{% if record.question %}<p>{{ record.question }}</p>{% endif %}

<p class="lead">{{ answer.lead | unbroken }}</p>
{% for text in answer.differences %}<p>{{ text | unbroken }}</p>{% endfor %}

{% if answer.shifts %}<p>{{ answer.shifts | unbroken }}</p>{% endif %}

<p class="note">{{ answer.basis }}</p>
{% if answer.cautions %}<div class="caution">{% for text in answer.cautions %}<p>{{ text }}</p>{% endfor %}</div>
{% endif %}
</header>

{% if beside and beside.rows %}
<h2 id="beside">Beside the baseline</h2>
{{ table(beside, "Every method beside the baseline, at each setting by itself") }}
<p class="note">At {{ place }}; errors and accuracy in percentage points, [95% interval over seeds]; "less baseline" is
paired: the same records and draws.</p>
{% endif %}

{% if paper.rows %}
<h2 id="paper">Beside the paper</h2>
{{ table(paper, "What the paper prints beside what was measured") }}
{% endif %}

<h2 id="varied">What was varied</h2>
<dl>{% for name, values in axes.items() %}<dt>{{ name }}</dt><dd>{{ values }}</dd>{% endfor %}</dl>
{% if failures.rows %}
<details open><summary>Cells that failed</summary>{{ table(failures, "Cells that failed") }}</details>
{% endif %}

<h2 id="privacy">Privacy</h2>
{% if spent.rows %}{{ table(spent, "Privacy asked and spent") }}
<details><summary>ε of every setting</summary>{{ table(privacy, "Privacy spent by setting") }}</details>
{% else %}<p>No cell finished.</p>{% endif %}
<p class="note">The largest ε that any site of any seed spent in one run, rounded up. A hospital that took part in all
of these runs would have spent more; ∞: not private.</p>

{% for heading, text, items in sections %}
<h2>{{ heading }}</h2>
{% if text %}<p class="note">{{ text }}</p>{% endif %}
<div class="figures">{% for item in items %}{{ figure(item) }}{% endfor %}</div>
{% endfor %}

<h2 id="numbers">Numbers</h2>
{% if differences.rows %}
<h3>Paired differences</h3>
{{ table(differences, "Paired differences over common seeds") }}
<p class="note">At {{ place }}; method minus baseline at equal seed and setting; errors and accuracy in percentage
points.</p>
{% endif %}
{% if settings.rows %}
<details><summary>Every setting at {{ place }}</summary>{{ table(settings, "Every setting and predictor") }}</details>
{% endif %}
<details class="guide"><summary>How to read this</summary>
<p>A model is calibrated if, among the records to which it gives a probability of 80%, it is right for 80%. The
debiased root-mean-square error says by how much its probabilities are typically off; it does not grow merely because
there are few records. ECE does: compare it only at equal numbers of records, or with what a calibrated model would
show.</p>
<p>A mean over settings speaks of just these settings in equal parts. Lines between points only guide the eye. Where
methods are compared within an axis, every other axis is averaged. Intervals that do not overlap show a difference;
where they do, the paired difference above is sharper, since both methods met the same records and draws.</p>
</details>

<h2 id="run">This study</h2>
{% for text in record.notes %}<p class="note">{{ text }}</p>{% endfor %}
<dl>{% for name, value in facts.items() %}<dt>{{ name }}</dt><dd>{{ value }}</dd>{% endfor %}</dl>
</main>
</body>
</html>
"""
)

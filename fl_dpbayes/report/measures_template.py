"""The blocks of the report page on what was measured beyond calibration; each appears only where data exist."""

MEASURES = """\
{% if measures.subgroups.rows %}
<h2 id="subgroups">Subgroups</h2>
{{ table(measures.subgroups, "Calibration of each subgroup") }}
<p class="note">Errors in percentage points, [95% interval]; in parentheses, the ECE of a perfectly calibrated model on
as many records{% if measures.headline %}; {{ measures.headline }}{% endif %}.</p>
{% if measures.further_subgroups.rows %}
<details><summary>Subgroups at every site, by every predictor</summary>
{{ table(measures.further_subgroups, "Calibration of each subgroup at every site, by every predictor") }}</details>
{% endif %}
<details class="guide"><summary>How to read this</summary>
<p>A model can be right on average and wrong for women, or for the old. Compare the intervals of two subgroups, not
their values: a small subgroup has a wide interval, and of twenty 95% intervals one misses by chance alone.</p>
</details>
{% endif %}
{% if measures.clinical.rows or net_benefit %}
<h2 id="clinical">What clinicians report</h2>
{% if measures.clinical.rows %}{{ table(measures.clinical, "Calibration intercept and slope") }}{% endif %}
{% if measures.further_clinical.rows %}
<details><summary>Intercept and slope at every site</summary>
{{ table(measures.further_clinical, "Calibration intercept and slope at every site") }}</details>
{% endif %}
{% if net_benefit %}
<div class="figures">{% for item in net_benefit %}{{ figure(item) }}{% endfor %}</div>
{% endif %}
<details class="guide"><summary>How to read this</summary>
<p>Intercept: below 0, the model predicts more cases than there are; above 0, fewer. Slope: below 1, its probabilities
are too extreme (low ones too low, high ones too high); above 1, too timid. An interval that holds 0, or 1, shows no
error.</p>
<p>Net benefit counts each rightly treated patient as 1 and charges each wrongly treated one what the threshold implies:
whoever treats above 20% holds that one missed case is as bad as four needless treatments. The model is worth using at
thresholds at which its curve lies above both "treat all" and "treat none".</p>
</details>
{% endif %}
{% if measures.conformal.rows %}
<h2 id="conformal">Prediction sets</h2>
{{ table(measures.conformal, "Coverage and size of prediction sets") }}
{% if measures.calibrated_on %}<p class="note">Asked for: {{ measures.level }}. Sets calibrated on
{{ measures.calibrated_on }}. Coverage with its 95% interval; size is the mean number of classes in a set
{%- if measures.headline %}; {{ measures.headline }}{% endif %}.</p>{% endif %}
{% if measures.further_conformal.rows %}
<details><summary>Prediction sets at every site, by every predictor</summary>
{{ table(measures.further_conformal, "Prediction sets at every site, by every predictor") }}</details>
{% endif %}
<details class="guide"><summary>How to read this</summary>
<p>Instead of one class, a conformal prediction set names all that are plausible, as many as it takes to hold the right
one as often as was asked. That is promised only for records like those that the sets were calibrated on. "Too low"
means: below what was asked by more than the chance of these test records. The records that the sets were calibrated on
have their own: with 100 of them, coverage may be 6 points from what was asked even at the training sites. Small sets
are useful sets: one that names every class is never wrong and says nothing.</p>
<p>Weights adapt the sets to a place with another prevalence. With that of its labels they show what could be had at
best: a hospital that only predicts has no labels, and can take the one that its predictions suggest.</p>
</details>
{% endif %}
{% if measures.shift_detection.rows %}
<h2 id="uncertainty">Uncertainty at new sites</h2>
{{ table(measures.shift_detection, "How well uncertainty tells new sites from training sites") }}
<p class="note">AUROC with its 95% interval and its bounds (the sums leave the order of almost equal uncertainties
open), against the training sites' test records
{%- if measures.reference_records %} (n = {{ measures.reference_records }}){% endif %}; averaged posterior.</p>
<details class="guide"><summary>How to read this</summary>
<p>The chance that a record of the place has a higher uncertainty than a record of the training sites. 0.5: the model
does not notice that it is elsewhere. Near 1: it is less sure there, as it should be where it was not trained. Below
0.5: it is surer there than at home, the dangerous case where its errors grow. Epistemic is the disagreement of the
posterior's samples; total adds the uncertainty that they share.</p>
</details>
{% endif %}
{% if measures.truth.rows %}
<h2 id="truth">Against the known truth</h2>
{{ table(measures.truth, "Estimated and true calibration errors") }}
<p class="note">Errors in percentage points, [95% interval].</p>
{% if measures.further_truth.rows %}
<details><summary>Truth at every site</summary>
{{ table(measures.further_truth, "Estimated and true calibration errors at every site") }}</details>
{% endif %}
<details class="guide"><summary>How to read this</summary>
<p>These records are made up, so the probability of each class is known. The true errors are computed from it, without
the chance that lies in the labels, which the estimates had to live with. About 95 of 100 intervals should hold the
truth. The plain ECE lies above it where records are few: it takes chance for error.</p>
</details>
{% endif %}
"""

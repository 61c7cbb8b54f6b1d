"""The words of the pages: each with its meaning and an example, for pages and docs/glossary.md."""

import re
from dataclasses import dataclass

from fl_dpbayes.report.wording import VERDICT_RULES


@dataclass(frozen=True)
class Term:
    """A word of the pages.

    Attributes:
        name: The word.
        meaning: What it means, in one line.
        example: An example, in one line.
        spellings: Other forms of the word on a page.
    """

    name: str
    meaning: str
    example: str
    spellings: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        """Where it stands on a page."""
        return "term-" + re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


_VERDICT_EXAMPLES = {
    "fits here": "Of 400 patients: predicted 60 of 100, happened 50. Hardly more is called so.",
    "recalibrate first": "Predicted 46 of 100, happened 31: correct the level, then look again.",
    "does not fit": "An AUROC of 0.48 to 0.57: do not rely on the model.",
    "too few to tell": "Of 40 patients 12 had the event: look at more patients.",
}
VERDICTS = tuple(Term(word, rule, _VERDICT_EXAMPLES[word]) for word, rule in VERDICT_RULES.items())
PRIVACY = (
    Term(
        "epsilon",
        "How much all releases of a hospital can tell about one patient: the smaller, the less.",
        "At 1, the odds of a guess about a patient grow by at most 2.7 times, but for delta.",
        ("ε", "epsilons"),
    ),
    Term(
        "delta",
        "The probability with which the bound by epsilon may fail.",
        "0.001: one in a thousand.",
        ("δ",),
    ),
    Term(
        "mu",
        "The same cost as epsilon and delta by one number (Gaussian differential privacy).",
        "0.6 (clt) is an approximation, 0.6 (exact) is not.",
        ("μ",),
    ),
    Term(
        "budget",
        "The most epsilon that a hospital allows.",
        "Spent 1.9 of a budget of 2.",
    ),
    Term(
        "privacy unit",
        "What epsilon protects: all records of one patient, or one record.",
        "A patient with three scans is one unit.",
        ("units", "unit"),
    ),
    Term(
        "clip norm",
        "The most by which one unit can move a step, before noise is added.",
        "4: a longer gradient is cut to length 4.",
    ),
    Term(
        "noise multiplier",
        "The noise on a sum of clipped gradients, over the clip norm.",
        "1.2 at a clip norm of 4: a standard deviation of 4.8.",
    ),
)
SAMPLING = (
    Term(
        "iterate",
        "A state of the model during training; the last one is what ordinary training returns.",
        "After 200 steps there are 200 iterates.",
        ("iterates", "last iterate"),
    ),
    Term(
        "posterior sample",
        "A state of the model that is kept; predictions are averaged over all kept ones.",
        "50 samples: a risk is the mean of 50 risks.",
        ("posterior samples", "posterior"),
    ),
    Term(
        "burn-in",
        "The first steps, of which no state is kept.",
        "100 of 200 steps.",
    ),
    Term(
        "thinning",
        "Of how many steps one state is kept.",
        "10: every tenth.",
    ),
    Term(
        "temperature",
        "How wide the samples spread: at 1 as the posterior; hotter, too wide.",
        "4: about twice too wide.",
    ),
)
PLACES = (
    Term(
        "held out",
        "A hospital that took no part in training and was only tested.",
        "A hospital of a country where none trained.",
        ("held-out", "took no part"),
    ),
    Term(
        "shifted",
        "A hospital whose test records were changed on purpose.",
        "A third of the findings is missing.",
        ("changed records",),
    ),
    Term(
        "pooled",
        "All test records of several hospitals taken as one set.",
        "Two hospitals of 100 and 900 patients: mostly the second.",
    ),
    Term(
        "interval",
        "Values that the test patients leave possible; of 100 such intervals 95 hold the truth.",
        "0.77 [0.70, 0.84]: chance alone could make 0.72 of it.",
        ("intervals", "95% interval", "95% intervals"),
    ),
)
CALIBRATION = (
    Term(
        "calibration",
        "Risks are calibrated if the event happens as often as predicted.",
        "Of those with a risk of 30%, 30 of 100 have the event.",
        ("calibrated",),
    ),
    Term(
        "odds",
        "How many have the event for each one that does not.",
        "A risk of 20% is odds of 1 to 4.",
    ),
    Term(
        "intercept",
        "Whether the level of risk is right: 0 if so; below 0 risks are too high.",
        "-0.7: predicted odds are about twice too high.",
    ),
    Term(
        "slope",
        "Whether the spread of risks is right: 1 if so; below 1 too extreme, above 1 too timid.",
        "2, too timid: of low risks fewer come true than predicted, of high ones more.",
        ("too extreme", "too timid"),
    ),
    Term(
        "RMS",
        "How far the certainty of the predicted class is off (not the event's risk), less chance.",
        "2.1 points; 0 also where risks of 40% and of 60% are both 10 points too low.",
        ("RMS debiased",),
    ),
    Term(
        "ECE",
        "The mean distance between stated and observed certainty over 15 equal ranges.",
        "3.1 (3.8): a calibrated model would show 3.8 on so few records.",
    ),
    Term(
        "ACE",
        "As the ECE, over ranges of equally many records and over all classes.",
        "5.0: five percentage points on average.",
    ),
    Term(
        "SCE",
        "As the ECE, over all classes.",
        "4.0: four percentage points on average.",
    ),
    Term(
        "MCE",
        "The ECE's largest distance of any one range.",
        "20: one range is 20 points off; it may hold few records.",
    ),
    Term(
        "NLL",
        "Mean surprise at what happened (negative log-likelihood): lower is better.",
        "0.69 is a coin's.",
        ("negative log-likelihood",),
    ),
    Term(
        "Brier",
        "Mean squared distance of probabilities and outcome, over all classes: lower is better.",
        "0.5 for a risk of 50% for everybody.",
        ("Brier score",),
    ),
)
ORDER = (
    Term(
        "AUROC",
        "How often the patient of two who has the event was given the higher risk.",
        "0.5 is chance, 1 is perfect.",
    ),
    Term(
        "AURC",
        "The error rate among the surest predictions, averaged over how many are kept.",
        "0.03: three wrong of 100.",
    ),
    Term(
        "sensitivity",
        "Of those with the event, the share with an alarm.",
        "80%: eight of ten are found.",
    ),
    Term(
        "specificity",
        "Of those without the event, the share without an alarm.",
        "70%: three of ten get a false alarm.",
    ),
    Term(
        "PPV",
        "Of the alarms, the share that is right at this hospital.",
        "40%: six of ten alarms are false.",
    ),
    Term(
        "NPV",
        "Of the patients without an alarm, the share without the event.",
        "95%: one of 20 is missed.",
    ),
    Term(
        "net benefit",
        "Patients rightly treated, less those wrongly treated, weighed by the threshold.",
        "At a threshold of 20% four wrongly treated count as much as one rightly.",
        ("decision curve",),
    ),
)
TERMS = (*VERDICTS, *PRIVACY, *SAMPLING, *PLACES, *CALIBRATION, *ORDER)

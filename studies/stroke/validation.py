"""Internal-external validation: figures of one place held out, and their summary over places."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd
import statsmodels.api as sm
from scipy.special import expit, logit
from scipy.stats import t as student_t
from sklearn.metrics import roc_auc_score
from statsmodels.stats.meta_analysis import combine_effects

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Row = Mapping[str, object]

LEVEL = 0.95
SMALLEST = 1e-6
# Measure -> the scale on which it is summarised, from its column and back.
MEASURES = ("log O/E", "calibration intercept", "calibration slope", "logit AUROC")


def country_rows(predictor: str, country: str, probabilities: Floats, labels: Integers) -> Row:
    """Return one place's figures.

    The calibration intercept is that of a logistic regression whose only slope, of the predicted
    log odds, is fixed at 1; the calibration slope is free, beside an intercept. Standard errors
    take patients as independent.

    Args:
        predictor: What predicted.
        country: The place.
        probabilities: Of class 1, shape (n,).
        labels: 0 or 1, shape (n,), both among them.

    Source:
        Debray et al., BMJ 356:i6460, 2017 (standard errors of log O/E); DeLong et al., Biometrics
        44:837, 1988.
    """
    count = len(labels)
    events = int(labels.sum())
    expected = float(probabilities.sum())
    log_odds = logit(np.clip(probabilities, SMALLEST, 1 - SMALLEST))
    family = sm.families.Binomial()
    shift = sm.GLM(labels, np.ones(count), family=family, offset=log_odds).fit()
    line = sm.GLM(labels, sm.add_constant(log_odds), family=family).fit()
    auroc = float(roc_auc_score(labels, probabilities))
    auroc_se = delong_se(probabilities, labels)
    return {
        "predictor": predictor,
        "country": country,
        "patients": count,
        "events": events,
        "O/E": events / expected,
        "log O/E": np.log(events / expected),
        "log O/E se": np.sqrt((1 - events / count) / events),
        "calibration intercept": float(shift.params[0]),
        "calibration intercept se": float(shift.bse[0]),
        "calibration slope": float(line.params[1]),
        "calibration slope se": float(line.bse[1]),
        "AUROC": auroc,
        "AUROC se": auroc_se,
        "logit AUROC": float(logit(auroc)),
        "logit AUROC se": auroc_se / (auroc * (1 - auroc)),
    }


def delong_se(probabilities: Floats, labels: Integers) -> float:
    """Return the standard error of an AUROC from each patient's share of pairs in order.

    Args:
        probabilities: Shape (n,).
        labels: 0 or 1, shape (n,), two of each at least.
    """
    cases = probabilities[labels == 1]
    others = probabilities[labels == 0]
    in_order = (cases[:, None] > others) + 0.5 * (cases[:, None] == others)
    of_cases = in_order.mean(axis=1).var(ddof=1) / len(cases)
    of_others = in_order.mean(axis=0).var(ddof=1) / len(others)
    return float(np.sqrt(of_cases + of_others))


def summary_rows(by_country: pd.DataFrame) -> pd.DataFrame:
    """Summarise figures over places by random effects.

    The variance between places is DerSimonian and Laird's, the interval of the mean Hartung and
    Knapp's, and a new place is foretold within t_{k-2} sqrt(tau^2 + se^2), at 95 %.

    Args:
        by_country: Rows as of `country_rows`.

    Returns:
        A row for each predictor and measure: `places`, `mean`, its `low` and `high`, `tau`, and the
        prediction interval's `new low` and `new high`; O/E and AUROC on their own scale, `tau` on
        that of the summary.

    Source:
        IntHout, Ioannidis and Borm, BMC Medical Research Methodology 14:25, 2014; Riley, Higgins
        and Deeks, BMJ 342:d549, 2011.
    """
    rows = []
    for predictor, part in by_country.groupby("predictor", sort=False):
        if len(part) < 3:
            continue
        for measure in MEASURES:
            effects = part[measure].to_numpy(np.float64)
            variances = part[f"{measure} se"].to_numpy(np.float64) ** 2
            combined = combine_effects(effects, variances, method_re="dl", use_t=True)
            mean = combined.mean_effect_re
            error = combined.sd_eff_w_re_hksj
            places = len(part)
            tail = (1 + LEVEL) / 2
            wide = student_t.ppf(tail, places - 1) * error
            wider = student_t.ppf(tail, places - 2) * np.sqrt(combined.tau2 + error**2)
            back = {"log O/E": np.exp, "logit AUROC": expit}.get(measure, float)
            rows.append(
                {
                    "predictor": predictor,
                    "measure": measure.removeprefix("log ").removeprefix("logit "),
                    "places": places,
                    "mean": back(mean),
                    "low": back(mean - wide),
                    "high": back(mean + wide),
                    "tau": np.sqrt(combined.tau2),
                    "new low": back(mean - wider),
                    "new high": back(mean + wider),
                }
            )
    return pd.DataFrame(rows)

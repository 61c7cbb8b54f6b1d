"""Logistic regression with random intercepts of hospitals in countries, by Laplace's method.

    logit p_i = a + x_i'b + c_j + h_k,   h_k ~ N(0, tau_h^2),   c_j ~ N(0, tau_c^2)

Slopes have the prior N(0, s^2); both standard deviations maximise the marginal likelihood.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.special import expit, log_expit

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Names = npt.NDArray[np.str_]

NEWTON_STEPS = 50
CONVERGED = 1e-8
FIRST_SD = 0.3
SMALLEST_SD = 0.02
LARGEST_SD = 3.0
# Of the search for the logs of the standard deviations.
TOLERANCE = 0.02
# The mean of sigmoid(x) over x ~ N(m, v) is close to sigmoid(m / sqrt(1 + .346 v)).
ATTENUATION = 0.346
# In place of an infinite variance of the intercept.
FLAT = 1e4


@dataclass(frozen=True)
class RandomIntercepts:
    """A fitted model.

    Attributes:
        hospitals: Those of training, in alphabetical order.
        countries: Those of training, in alphabetical order.
        mean: Intercept, slopes, effects of hospitals, then of countries.
        covariance: Of the same.
        hospital_sd: tau_h.
        country_sd: tau_c, 0 where there is one country only.
    """

    hospitals: Names
    countries: Names
    mean: Floats
    covariance: Floats
    hospital_sd: float
    country_sd: float

    def probabilities(self, features: Floats, hospitals: Names, countries: Names) -> Floats:
        """Predict patients, the uncertainty of their hospital's level integrated over.

        Args:
            features: Shape (N, D).
            hospitals: Shape (N,); a new hospital has its country's level, less surely.
            countries: Shape (N,); a new country has the mean level, less surely.

        Returns:
            Probabilities of class 1, shape (N,).
        """
        slopes = self.mean[1 : 1 + features.shape[1]]
        names, first, number = np.unique(hospitals, return_index=True, return_inverse=True)
        levels = np.zeros((len(names), len(self.mean)))
        levels[:, 0] = 1.0
        first_hospital = len(self.mean) - len(self.hospitals) - len(self.countries)
        first_country = len(self.mean) - len(self.countries)
        levels[:, first_hospital:first_country] = names[:, None] == self.hospitals
        levels[:, first_country:] = countries[first][:, None] == self.countries
        is_new_hospital = ~np.isin(names, self.hospitals)
        is_new_country = ~np.isin(countries[first], self.countries)
        variances = (
            np.einsum("ij,jk,ik->i", levels, self.covariance, levels)
            + is_new_hospital * self.hospital_sd**2
            + is_new_country * self.country_sd**2
        )
        log_odds = features @ slopes + (levels @ self.mean)[number]
        return np.asarray(expit(log_odds / np.sqrt(1 + ATTENUATION * variances[number])))


@dataclass(frozen=True)
class _Mode:
    """The mode of all effects at given standard deviations.

    Attributes:
        mean: The mode.
        hessian: Of minus the log posterior there.
        log_marginal: Laplace's approximation of the log marginal likelihood, but for a constant.
    """

    mean: Floats
    hessian: Floats
    log_marginal: float


def fit_random_intercepts(
    features: Floats, labels: Integers, hospitals: Names, countries: Names, slope_sd: float
) -> RandomIntercepts:
    """Fit the model.

    Args:
        features: Shape (N, D).
        labels: 0 or 1, shape (N,).
        hospitals: Shape (N,); each lies in one country.
        countries: Shape (N,).
        slope_sd: s > 0, the prior standard deviation of every slope.

    Returns:
        The model at the standard deviations of largest marginal likelihood.

    Source:
        Pinheiro and Chao, Journal of Computational and Graphical Statistics 15:58, 2006.
    """
    hospital_names, hospital_numbers = np.unique(hospitals, return_inverse=True)
    country_names, country_numbers = np.unique(countries, return_inverse=True)
    dense = np.column_stack([np.ones(len(labels)), features])
    indicators = _indicators(hospital_numbers), _indicators(country_numbers)
    fixed_variances = np.full(dense.shape[1], slope_sd**2)
    fixed_variances[0] = FLAT
    has_countries = len(country_names) > 1
    mean = np.zeros(dense.shape[1] + len(hospital_names) + len(country_names))

    def mode_at(log_sds: Floats) -> _Mode:
        nonlocal mean
        sds = np.exp(log_sds)
        country_sd = sds[1] if has_countries else SMALLEST_SD
        variances = np.concatenate(
            [
                fixed_variances,
                np.full(len(hospital_names), sds[0] ** 2),
                np.full(len(country_names), country_sd**2),
            ]
        )
        mode = _mode(dense, indicators, labels, variances=variances, start=mean)
        # The next search begins where this one ended.
        mean = mode.mean
        return mode

    levels = 2 if has_countries else 1
    best = minimize(
        lambda log_sds: -mode_at(log_sds).log_marginal,
        np.full(levels, np.log(FIRST_SD)),
        method="Nelder-Mead",
        bounds=[(np.log(SMALLEST_SD), np.log(LARGEST_SD))] * levels,
        options={"xatol": TOLERANCE, "fatol": TOLERANCE},
    )
    mode = mode_at(best.x)
    sds = np.exp(best.x)
    return RandomIntercepts(
        hospitals=hospital_names,
        countries=country_names,
        mean=mode.mean,
        covariance=np.asarray(np.linalg.inv(mode.hessian), np.float64),
        hospital_sd=float(sds[0]),
        country_sd=float(sds[1]) if has_countries else 0.0,
    )


def _indicators(numbers: Integers) -> csr_array:
    """Return which record is of which place, shape (places, N)."""
    ones = np.ones(len(numbers))
    return csr_array((ones, (numbers, np.arange(len(numbers)))))


def _mode(
    dense: Floats,
    indicators: tuple[csr_array, csr_array],
    labels: Integers,
    *,
    variances: Floats,
    start: Floats,
) -> _Mode:
    hospital, country = indicators
    sizes = np.cumsum([dense.shape[1], hospital.shape[0]])
    of_country = (hospital @ country.T > 0).astype(np.float64)

    def log_odds_at(mean: Floats) -> Floats:
        fixed, hospitals, countries = np.split(mean, sizes)
        return dense @ fixed + hospital.T @ hospitals + country.T @ countries

    def hessian_at(p: Floats) -> Floats:
        weights = p * (1 - p)
        weighted = dense * weights[:, None]
        by_hospital = hospital @ weighted
        by_country = country @ weighted
        hospital_weights = hospital @ weights
        crossed = of_country.toarray() * hospital_weights[:, None]
        blocks = [
            [dense.T @ weighted, by_hospital.T, by_country.T],
            [by_hospital, np.diag(hospital_weights), crossed],
            [by_country, crossed.T, np.diag(country @ weights)],
        ]
        return np.block(blocks) + np.diag(1 / variances)

    mean = start
    for _ in range(NEWTON_STEPS):
        p = expit(log_odds_at(mean))
        residuals = labels - p
        score = np.concatenate([dense.T @ residuals, hospital @ residuals, country @ residuals])
        step = np.linalg.solve(hessian_at(p), score - mean / variances)
        mean = mean + step
        if np.abs(step).max() < CONVERGED:
            break
    log_odds = log_odds_at(mean)
    hessian = hessian_at(expit(log_odds))
    signs = np.where(labels == 1, 1.0, -1.0)
    log_joint = log_expit(signs * log_odds).sum() - 0.5 * (mean**2 / variances).sum()
    log_determinants = np.log(variances).sum() + np.linalg.slogdet(hessian)[1]
    return _Mode(mean=mean, hessian=hessian, log_marginal=log_joint - 0.5 * log_determinants)

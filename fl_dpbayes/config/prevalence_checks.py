"""Do declared prevalences fit each other, the classes and the way in which test results leave?"""

from collections.abc import Mapping

from fl_dpbayes.config.data import DataSpec, SiteSpec
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.names import EvaluationRelease
from fl_dpbayes.config.prevalence import Prevalence, SitePrevalence


def check_prevalences(data: DataSpec, sites: Mapping[str, SiteSpec], release: EvaluationRelease) -> None:
    """Check what a scenario declares, as far as it goes without its records.

    Args:
        data: has the prevalence at training.
        sites: have their own.
        release: how test results leave.

    Raises:
        ValueError: naming key and remedy.
    """
    for name, site in sites.items():
        if site.prevalence is None:
            continue
        if data.prevalence is None:
            raise ValueError(
                f"sites.{name}.prevalence is given, but data.prevalence is not: declare there the shares of the "
                "classes among the training records, from which predictions are moved"
            )
        check_noised_estimate(f"sites.{name}.prevalence", site.prevalence, release)


def check_noised_estimate(key: str, prevalence: SitePrevalence | None, release: EvaluationRelease) -> None:
    """Refuse an estimate where results leave with noise: it moves every record's prediction by all the others'.

    The noise covers what one unit adds to the sums itself, not what it does to the others' predictions.

    Args:
        key: what to call it.
        prevalence: declared or `estimated`.
        release: how the site's test results leave.

    Raises:
        ValueError: for an estimate under release `noised`.
    """
    if prevalence == "estimated" and release == "noised":
        raise ValueError(
            f"{key} is 'estimated' from all test records, which the noise of release 'noised' does not cover: declare "
            "numbers, or remove it"
        )


def check_prevalence_classes(key: str, prevalence: Prevalence | SitePrevalence | None, classes: int) -> None:
    """Check that a declared prevalence has one share for each class.

    Args:
        key: what to call it.
        prevalence: declared, estimated or None.
        classes: how many the records have.

    Raises:
        UserError: if it has another number of shares.
    """
    if isinstance(prevalence, tuple) and len(prevalence) != classes:
        raise UserError(f"{key} has {len(prevalence)} shares, the records have {classes} classes: give one for each")

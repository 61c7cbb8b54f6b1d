"""Does a scenario fit the task that its records set? Asked before anything is spent."""

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.prevalence_checks import check_prevalence_classes
from fl_dpbayes.config.recalibration import parameter_count
from fl_dpbayes.config.scenario import Scenario


def check_task_fit(scenario: Scenario, classes: int) -> None:
    """Check what depends on the number of classes.

    Args:
        scenario: the validated scenario.
        classes: of its records.

    Raises:
        UserError: if the method of recalibration is not for so many classes, or a prevalence names another number.
    """
    if scenario.recalibration is not None:
        try:
            parameter_count(scenario.recalibration.method, classes)
        except ValueError as error:
            raise UserError(f"recalibration: {error}") from None
    check_prevalence_classes("data.prevalence", scenario.data.prevalence, classes)
    for name, site in scenario.sites.items():
        check_prevalence_classes(f"sites.{name}.prevalence", site.prevalence, classes)

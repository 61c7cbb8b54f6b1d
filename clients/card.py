"""What a site says of itself."""

from fl_dpbayes.config.prevalence import check_prevalence_classes
from fl_dpbayes.config.site_file import SiteFile
from fl_dpbayes.data.site import shift_label
from fl_dpbayes.protocol.card import SiteCard


def card_of(site_file: SiteFile) -> SiteCard:
    """Write a site's card from its file alone, without reading a record.

    Args:
        site_file: the validated site file.

    Returns:
        The card.

    Raises:
        UserError: if the declared prevalence does not fit the number of classes.
    """
    source = site_file.source
    task = source.task
    check_prevalence_classes("prevalence", site_file.prevalence, task.classes)
    return SiteCard(
        name=site_file.name,
        role=site_file.role,
        task=task,
        units=site_file.units,
        unit=source.unit,
        shift=shift_label(site_file.shift),
        evaluation_release=site_file.policy.evaluation_release,
        prevalence=site_file.prevalence,
        seeded=site_file.insecure_seed is not None,
    )

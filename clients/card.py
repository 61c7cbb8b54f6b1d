"""What a site says of itself."""

from fl_dpbayes.data.load import source_task, source_unit
from fl_dpbayes.data.site import shift_label
from fl_dpbayes.data.site_file import SiteFile
from fl_dpbayes.protocol.card import Card


def card_of(site_file: SiteFile) -> Card:
    """Write a site's card from its file alone, without reading a record.

    Args:
        site_file: the validated site file.

    Returns:
        The card.
    """
    source = site_file.source
    return Card(
        name=site_file.name,
        role=site_file.role,
        task=source_task(source),
        units=site_file.units,
        unit=source_unit(source),
        shift=shift_label(site_file.shift),
        evaluation_release=site_file.policy.evaluation_release,
        seeded=site_file.insecure_seed is not None,
    )

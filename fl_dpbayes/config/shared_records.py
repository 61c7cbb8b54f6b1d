"""Held-out and shifted sites that hold the records of another one: `records_of`."""

from collections import Counter
from collections.abc import Mapping

from fl_dpbayes.config.data import SiteSpec
from fl_dpbayes.config.names import Role


def check_shared_records(sites: Mapping[str, SiteSpec]) -> None:
    """Check that every `records_of` names a held-out or shifted site with records of its own.

    Args:
        sites: name -> site, of a scenario.

    Raises:
        ValueError: naming the site, the value and the remedy.
    """
    owners = [name for name, spec in sites.items() if spec.role != "train" and spec.records_of is None]
    for name, spec in sites.items():
        if spec.records_of is None or spec.records_of in owners:
            continue
        owner = sites.get(spec.records_of)
        if owner is None:
            reason = "there is no such site"
        elif owner.role == "train":
            reason = "that is a training site, whose records the model has seen"
        else:
            reason = f"that site has records of another one itself ({owner.records_of!r})"
        allowed = f"name one of {', '.join(owners)}" if owners else "give the site records of its own"
        raise ValueError(f"sites.{name}.records_of is {spec.records_of!r}, but {reason}: {allowed}")


def with_part_of_owner(sites: Mapping[str, SiteSpec]) -> dict[str, SiteSpec]:
    """Give each site that shares records the official part from which these come.

    Args:
        sites: name -> site, checked by `check_shared_records`.

    Returns:
        The same sites, in their order.
    """
    return {
        name: spec if spec.records_of is None else spec.model_copy(update={"part": sites[spec.records_of].part})
        for name, spec in sites.items()
    }


def roles_sharing_records(sites: Mapping[str, SiteSpec]) -> frozenset[Role]:
    """Return the roles in which two sites hold the same records, so that pooling would count patients twice.

    Args:
        sites: name -> site, of a scenario.

    Returns:
        Some of `held_out` and `shifted`.
    """
    holders = Counter((spec.role, spec.records_of or name) for name, spec in sites.items())
    return frozenset(role for (role, _), count in holders.items() if count > 1)

"""The site files of a simulation, so that the code that guards a hospital runs in it."""

from pathlib import Path

import numpy as np

from fl_dpbayes.config.files.atomic_file import written
from fl_dpbayes.config.plan import Adjacency
from fl_dpbayes.config.site_file import (
    LedgerSettings,
    Policy,
    Selection,
    SiteFile,
    Split,
    read_site_file,
    write_site_file,
)
from fl_dpbayes.data.site_ledger import prepare_simulated_ledger
from fl_dpbayes.data.virtual_sites import PlannedSite, SitePlan

TRACES_FOLDER = "traces"


def write_virtual_sites(
    plan: SitePlan,
    folder: Path,
    *,
    cohort: str,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    policy: Policy,
    insecure_seed: int | None = None,
    threads: int = 1,
    device: str = "auto",
    traces: bool = False,
    cache_folder: Path | None = None,
) -> list[Path]:
    """Write one site file per virtual site, with its ledger under `folder/../ledgers`, and make the ledgers.

    Args:
        plan: from `plan_virtual_sites`.
        folder: where the files go; made if absent.
        cohort: name of the cohort that each ledger accounts for.
        epsilon: what each cohort may ever spend, unless its site says otherwise.
        delta: the cohort's delta.
        adjacency: which data sets are neighbours.
        policy: what each site allows.
        insecure_seed: makes noise and sampling repeatable, so that nothing is private; None for real entropy.
        threads: threads per site.
        device: `auto`, `cpu` or `cuda[:index]`.
        traces: let each training site keep a trace of its chain in `folder/../traces/<site>`.
        cache_folder: where all sites keep features of their records; None: `folder/../cache`.

    Returns:
        The paths `<number>-<name>.toml`, in the plan's order, which is also their alphabetical order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    backbones = plan.weights_folder
    digits = max(2, len(str(len(plan.sites) - 1)))
    paths = []
    for number, site in enumerate(plan.sites):
        stem = f"{number:0{digits}d}-{site.name}"
        with written(folder / f"{stem}.npy"):
            np.save(folder / f"{stem}.npy", site.indices, allow_pickle=False)
        site_file = SiteFile(
            name=site.name,
            role=site.spec.role,
            source=plan.source,
            selection=Selection(part=site.spec.part, indices=Path(f"{stem}.npy")),
            units=site.train_units if site.spec.role == "train" else site.test_units,
            split=_split(plan, site),
            shift=site.spec.shift,
            shift_seed=site.shift_seed,
            ledger=LedgerSettings(
                path=Path("..") / "ledgers" / f"{site.name}.sqlite",
                witness=Path("..") / "witnesses" / f"{site.name}.json",
                cohort=cohort,
                epsilon=site.spec.epsilon or epsilon,
                delta=delta,
                adjacency=adjacency,
                durability="normal",
            ),
            policy=policy,
            threads=threads,
            device=device,
            insecure_seed=insecure_seed,
            cache_folder=Path("..") / "cache" if cache_folder is None else cache_folder.resolve(),
            backbone_folder=None if backbones is None else backbones.resolve(),
            trace_folder=Path("..") / TRACES_FOLDER / site.name if traces and site.spec.role == "train" else None,
            prevalence=site.spec.prevalence,
        )
        write_site_file(site_file, folder / f"{stem}.toml")
        prepare_simulated_ledger(read_site_file(folder / f"{stem}.toml"))
        paths.append(folder / f"{stem}.toml")
    return paths


def _split(plan: SitePlan, site: PlannedSite) -> Split:
    if site.spec.role != "train":
        return Split(test_fraction=1.0, key=site.split_key)
    return Split(
        test_fraction=plan.test_fraction, recalibration_fraction=plan.recalibration_fraction, key=site.split_key
    )

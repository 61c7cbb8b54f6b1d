"""Site files of small made-up hospitals."""

from pathlib import Path

import numpy as np

from fl_dpbayes.config.site_file import LedgerSettings, Policy, SiteFile, Split
from fl_dpbayes.config.sources import Table


def site_record(folder: Path, name: str) -> SiteFile:
    """A hospital with a small table of its own beside its site file."""
    folder.mkdir(exist_ok=True)
    features = np.random.default_rng(sum(name.encode())).normal(size=(60, 2))
    rows = [f"{a:.3f},{b:.3f},{int(a + b > 0)}" for a, b in features]
    (folder / "patients.csv").write_text("\n".join(["a,b,y", *rows]) + "\n")
    keys = {
        "features": ("a", "b"),
        "label": "y",
        "classes": 2,
        "centers": (0.0, 0.0),
        "scales": (1.0, 1.0),
    }
    ledger = {
        "path": "ledger.db",
        "witness": "witness/w.json",
        "cohort": name,
        "epsilon": 6,
        "delta": 1e-3,
    }
    return SiteFile(
        name=name,
        role="train",
        source=Table(path="patients.csv", **keys),
        units=48,
        split=Split(key="0" * 32),
        policy=Policy(max_run_epsilon=3.0),
        ledger=LedgerSettings(**ledger),
    )

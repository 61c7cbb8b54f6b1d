"""What fewer bits in transport change: the predictions of one run's posterior, rounded and not."""

import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from torch import nn

from fl_dpbayes.calibration.errors import ece
from fl_dpbayes.calibration.statistics import from_batch
from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.data.simulation import SITES_FOLDER, plan_sites, prepare_simulation
from fl_dpbayes.data.site import load_site
from fl_dpbayes.models.build import build_model
from fl_dpbayes.posterior.predictive import predictive_probabilities
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.posterior.store import load_posterior
from fl_dpbayes.protocol.precision import Precision, decode_samples, encode_samples
from fl_dpbayes.run.inline_engine import run_inline

SCENARIO = "quickstart"
OVERRIDES = ("aggregation={rule='mixture'}", "simulation.insecure_seed=1")


@dataclass(frozen=True)
class TransportEffect:
    """A posterior's predictions after rounding, beside those before.

    Attributes:
        sample_bytes: bytes of all samples as they travel.
        total_variation: half the sum of the absolute differences of class probabilities, mean over records, in [0, 1].
        largest_total_variation: its maximum over records.
        accuracy: share of records predicted rightly after rounding.
        ece: expected calibration error (15 bins) after rounding.
    """

    sample_bytes: int
    total_variation: float
    largest_total_variation: float
    accuracy: float
    ece: float


def transport_effect(
    module: nn.Module,
    samples: PosteriorSamples,
    features: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
    precision: Precision,
) -> TransportEffect:
    """Round a posterior's samples as they would travel, and compare what it predicts.

    Args:
        module: the model.
        samples: the posterior.
        features: records, shape (N, *shape), N >= 1.
        labels: their classes, shape (N,).
        precision: how the samples travel.

    Returns:
        The effect.
    """
    exact = predictive_probabilities(module, samples.arrays, samples.weights, features)
    sent = encode_samples(samples.arrays, precision)
    rounded = predictive_probabilities(module, decode_samples(sent, precision), samples.weights, features)
    distance = np.abs(exact - rounded).sum(axis=1) / 2
    return TransportEffect(
        sample_bytes=sum(array.nbytes for array in sent.values()),
        total_variation=float(distance.mean()),
        largest_total_variation=float(distance.max()),
        accuracy=float((rounded.argmax(axis=1) == labels).mean()),
        ece=ece(from_batch(rounded, labels)) or 0.0,
    )


def bench_transport(console: Console) -> None:
    """Run the quickstart with rule `mixture`, and print what rounding its samples for transport would change.

    Last states are not rounded, so chains do not depend on the precision: one run shows all.

    Args:
        console: where the table goes.
    """
    scenario = load_scenario(SCENARIO, OVERRIDES)
    with tempfile.TemporaryDirectory() as folder, console.status(SCENARIO):
        run_folder = Path(folder)
        prepare_simulation(scenario, plan_sites(scenario, None), run_folder)
        run_inline(run_folder, len(scenario.sites), threading.Event())
        stored = load_posterior(run_folder / "posterior.safetensors")
        sites = [load_site(read_site_file(path)) for path in sorted((run_folder / SITES_FOLDER).glob("*.toml"))]
        parts = [site.test for site in sites if site.test is not None]
    features = np.concatenate([part.features for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    module = build_model(stored.metadata.model, stored.metadata.task, seed=0)
    table = Table(title=f"{len(stored.samples)} samples of {SCENARIO}, {len(labels)} test records of all sites")
    for name in ("precision", "KiB up", "total variation, mean", "largest", "accuracy", "ECE"):
        table.add_column(name, justify="left" if name == "precision" else "right")
    for precision in get_args(Precision):
        effect = transport_effect(module, stored.samples, features, labels, precision)
        table.add_row(
            precision,
            f"{effect.sample_bytes / 1024:.0f}",
            f"{effect.total_variation:.2e}",
            f"{effect.largest_total_variation:.2e}",
            f"{effect.accuracy:.4f}",
            f"{effect.ece:.4f}",
        )
    console.print(table)

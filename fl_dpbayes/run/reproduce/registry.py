"""All experiments by name."""

from collections.abc import Mapping

from fl_dpbayes.run.reproduce import (
    aggregation,
    closer_logistic,
    closer_recalibration,
    federated,
    hostile_site,
    interval_coverage,
    knolle_mnist,
    knolle_pneumonia,
    zhang_mnist,
    zhang_regression,
)
from fl_dpbayes.run.reproduce.experiment import Experiment

_ALL = (
    aggregation.EXPERIMENT,
    closer_logistic.EXPERIMENT,
    closer_recalibration.EXPERIMENT,
    federated.FEDERATED_MNIST,
    federated.FEDERATED_PNEUMONIA,
    hostile_site.EXPERIMENT,
    interval_coverage.EXPERIMENT,
    knolle_mnist.EXPERIMENT,
    knolle_pneumonia.EXPERIMENT,
    zhang_mnist.EXPERIMENT,
    zhang_regression.EXPERIMENT,
)
EXPERIMENTS: Mapping[str, Experiment] = {experiment.name: experiment for experiment in _ALL}

"""The records of `closer-recalibration`: what is trained on, what settings were chosen by, and the test sites."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from fl_dpbayes.run.reproduce.classification import split_for_choice
from fl_dpbayes.run.reproduce.records import mnist_records, pneumonia_records

from fl_dpbayes.config.data import Shift, ShiftKind
from fl_dpbayes.config.task import Features, Task
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.shifts.apply import apply_shift
from fl_dpbayes.models.feature_map import feature_map

MNIST, PNEUMONIA = "MNIST", "PneumoniaMNIST"
IN_DOMAIN, OFFICIAL_TEST = "in-domain", "official test"
# Kept from MNIST's training records; the settings were chosen on them. PneumoniaMNIST has a validation part for this.
MNIST_CHOICE = 5_000
# PneumoniaMNIST's official test set has another prevalence, so records like those trained on are dealt from training.
PNEUMONIA_IN_DOMAIN = 1_000
SEVERITY = 3
IMAGE_SHIFTS: tuple[ShiftKind, ...] = ("detector_noise", "blur", "contrast", "rotation")
SHIFTS: Mapping[str, tuple[ShiftKind, ...]] = {MNIST: IMAGE_SHIFTS, PNEUMONIA: (*IMAGE_SHIFTS, "prevalence")}


@dataclass(frozen=True)
class Labelled:
    """What a model sees of records, float32, shape (N, *shape), and their labels, shape (N,)."""

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]


@dataclass(frozen=True)
class TaskRecords:
    """All records of a task.

    Attributes:
        task: shape of an image and number of classes.
        training: dealt per seed into a training and a recalibration part.
        choice: by which settings were chosen; not used otherwise.
        sites: name -> test records: `in-domain`, and the shifted ones.
    """

    task: Task
    training: Labelled
    choice: Labelled
    sites: Mapping[str, Labelled]


def check_recalibration_data(data_dir: Path | None) -> None:
    """Raise UserError where a data set is missing."""
    mnist_records(data_dir)
    pneumonia_records(data_dir)


@functools.lru_cache(maxsize=4)
def task_records(name: str, features: Features | None, data_dir: Path | None) -> TaskRecords:
    """Load a task, shift its test sites and compute all features, once per process.

    Which records are kept back and how sites are shifted is the same for every seed of training.

    Args:
        name: `MNIST` or `PneumoniaMNIST`.
        features: fixed features in front of the model; None: its pixels.
        data_dir: the data folder.

    Returns:
        The records.

    Raises:
        UserError: if the data set is missing or damaged.
    """
    others: dict[str, Records] = {}
    if name == MNIST:
        official, in_domain = mnist_records(data_dir)
        kept, held_back = split_for_choice(len(official), MNIST_CHOICE, np.random.default_rng(0))
        training, choice = official.subset(kept), official.subset(held_back)
    else:
        official, choice, others[OFFICIAL_TEST] = pneumonia_records(data_dir)
        kept, held_back = split_for_choice(len(official), PNEUMONIA_IN_DOMAIN, np.random.default_rng(0))
        training, in_domain = official.subset(kept), official.subset(held_back)
    sites = {IN_DOMAIN: in_domain, **others}
    for kind in SHIFTS[name]:
        sites[kind] = apply_shift(in_domain, Shift(kind=kind, severity=SEVERITY), np.random.default_rng(0))
    return TaskRecords(
        official.task,
        _seen(training, features),
        _seen(choice, features),
        {site: _seen(records, features) for site, records in sites.items()},
    )


def _seen(records: Records, features: Features | None) -> Labelled:
    if features is None:
        return Labelled(records.features, records.labels)
    return Labelled(feature_map(features, records.task.input_shape)(records.features), records.labels)

"""What a run left, read back: its folder, its scenario and its posterior."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import nn

from fl_dpbayes.config import BuiltIn, Model, Scenario, Task, backbone_folder, load_scenario
from fl_dpbayes.data import SCENARIO_FILE
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import digest, refuse_earlier_run
from fl_dpbayes.models import build_model
from fl_dpbayes.models.feature_map import feature_map
from fl_dpbayes.models.frozen_body import frozen_body
from fl_dpbayes.posterior import POSTERIOR_FILE, StoredPosterior, load_posterior
from fl_dpbayes.report import check_not_cut_off


@dataclass(frozen=True)
class FinishedRun:
    """A run that has ended, with all that is needed to predict.

    Attributes:
        folder: The run's folder.
        scenario: The scenario that was run.
        stored: The posterior that the run stored, of the scenario's model.
        data_dir: Where backbones lie; None: the source's own folder, or the default one.
    """

    folder: Path
    scenario: Scenario
    stored: StoredPosterior
    data_dir: Path | None = None

    @property
    def model(self) -> Model:
        """The model whose parameters were sampled."""
        return self.stored.metadata.model

    @property
    def task(self) -> Task:
        """The shape of a record, and the number of classes."""
        return self.stored.metadata.task

    @property
    def source(self) -> object:
        """Where the scenario says that its records come from."""
        return self.scenario.data.source

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes' names in their order; empty where numbers name them."""
        return self.scenario.data.source.names_of_classes

    def build_module(self) -> nn.Module:
        """Build the module whose parameters were sampled, with any values of them."""
        return build_model(self.model, self.task, 0, self._backbones())

    def model_inputs(self, features: npt.NDArray) -> npt.NDArray[np.float32]:
        """Compute what the trained layers see of records.

        Args:
            features: Records of the run's task, (N, *input_shape).

        Returns:
            The features after the model's feature map and frozen body, (N, ...), all finite.
        """
        inputs = features
        if self.model.features is not None:
            apply_map = feature_map(
                self.model.features, inputs.shape[1:], backbone_folder=self._backbones()
            )
            inputs = apply_map(inputs)
        if self.model.frozen_body is not None:
            apply_body = frozen_body(
                self.model,
                self.model.frozen_body,
                inputs.shape[1:],
                weights_folder=self._backbones(),
            )
            inputs = apply_body(inputs)
        # What overflows in float32 would make a released sum infinite or NaN, whatever the noise.
        return np.nan_to_num(inputs)

    def _backbones(self) -> Path | None:
        folder_of_source = self.source.folder if isinstance(self.source, BuiltIn) else None
        return backbone_folder(self.data_dir or folder_of_source)


def read_run(
    folder: Path, allowed_code: Collection[str] = (), data_dir: Path | None = None
) -> FinishedRun:
    """Read a run's posterior and its scenario.

    Args:
        folder: The run's folder.
        allowed_code: Factories of the model that may be imported, as `package.module:function`.
        data_dir: Where backbones lie; None: the source's own folder, or the default one.

    Returns:
        The run, whose posterior and scenario belong together.

    Raises:
        UserError: If one is missing, damaged or not that of the other, or an older version ran it.
    """
    refuse_earlier_run(folder)
    posterior_path = folder / POSTERIOR_FILE
    if not posterior_path.is_file():
        check_not_cut_off(folder)
    stored = load_posterior(posterior_path, allowed_code)
    scenario_path = folder / SCENARIO_FILE
    mismatch = UserError(
        f"{scenario_path} is missing or not the scenario of the posterior beside it: put back "
        "the run's own"
    )
    if not scenario_path.is_file():
        raise mismatch
    scenario = load_scenario(str(scenario_path))
    if digest(scenario) != stored.metadata.scenario_hash:
        raise mismatch
    if stored.metadata.model != scenario.model:
        raise UserError(
            f"{posterior_path} is of another model than {scenario_path}: put back the run's own"
        )
    return FinishedRun(folder=folder, scenario=scenario, stored=stored, data_dir=data_dir)

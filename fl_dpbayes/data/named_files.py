"""Files that a scenario names beside its records, looked at before a run begins rather than in its first round."""

from pathlib import Path

from fl_dpbayes.config.data_folder import backbone_folder
from fl_dpbayes.config.features import BackboneFeatures
from fl_dpbayes.config.rule import PublicFile
from fl_dpbayes.config.scenario import Scenario
from fl_dpbayes.config.task import Model, Task
from fl_dpbayes.data.public_records import read_public_records
from fl_dpbayes.data.virtual_sites import SitePlan
from fl_dpbayes.models.backbone import stored_weights
from fl_dpbayes.models.build import model_input_shape
from fl_dpbayes.models.frozen_body import frozen_body


def check_named_files(scenario: Scenario, plan: SitePlan) -> None:
    """Check that frozen weights and public records are where a simulation's sites and server will read them.

    Args:
        scenario: the validated scenario.
        plan: the sites of its simulation.

    Raises:
        UserError: naming the file or digest, the scenario's key and the remedy.
    """
    rule, model = scenario.aggregation, scenario.model
    _check_weights(model, plan.task, plan.weights_folder)
    if rule.inputs is None:
        return
    # The server's process knows the environment's data folder only.
    _check_weights(model, plan.task, backbone_folder(None))
    if isinstance(rule.inputs, PublicFile):
        read_public_records(rule.inputs.path, plan.task, most=rule.inputs.count, labelled=rule.needs_labels)


def _check_weights(model: Model, task: Task, folder: Path | None) -> None:
    if isinstance(model.features, BackboneFeatures) and model.features.weights is not None:
        stored_weights(model.features.weights, folder, "model.features.weights")
    body = model.frozen_body
    if body is not None and body.weights is not None:
        shape = model_input_shape(model.model_copy(update={"frozen_body": None}), task)
        frozen_body(model, body, shape, weights_folder=folder)

"""Whether an own module is computed record by record, and what a person is told of that."""

from fl_dpbayes.config import Model, ModuleModel, RunWarning, Task, warning
from fl_dpbayes.models import ROWS, build_model, model_input_shape, where_rows_meet


def record_by_record_warnings(model: Model, task: Task) -> list[RunWarning]:
    """Return a warning where an own module's rows may meet, so that each record has its own pass.

    Args:
        model: Of a scenario; its weights are not read.
        task: Of the scenario's records.

    Returns:
        The warning, or nothing.

    Raises:
        UserError: The module cannot be made.
    """
    if not isinstance(model, ModuleModel):
        return []
    without_weights = model.model_copy(update={"weights": None})
    module = build_model(without_weights, task, seed=model.seed)
    place = where_rows_meet(module, (ROWS, *model_input_shape(model, task)))
    return [] if place is None else [warning("record-by-record", place=place)]

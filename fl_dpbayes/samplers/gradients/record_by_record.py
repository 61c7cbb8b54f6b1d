"""Whether a module of one's own is computed record by record, and what a person is told of that."""

from fl_dpbayes.config import Model, ModuleModel, RunWarning, Task, warning
from fl_dpbayes.models import ROWS, build_model, model_input_shape, where_rows_meet


def record_by_record_warnings(model: Model, task: Task) -> list[RunWarning]:
    """Return a warning where an own module's rows may meet, so that each record is computed by itself.

    Args:
        model: of a scenario; its weights are not read.
        task: of the scenario's records.

    Raises:
        UserError: the module cannot be made.
    """
    if not isinstance(model, ModuleModel):
        return []
    module = build_model(model.model_copy(update={"weights": None}), task, model.seed)
    place = where_rows_meet(module, (ROWS, *model_input_shape(model, task)))
    return [] if place is None else [warning("record-by-record", place=place)]

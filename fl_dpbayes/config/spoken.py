"""Records as a person makes them in Python: a call that does not fit is told in one sentence."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError, create_model

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.validation_text import explain

RecordT = TypeVar("RecordT", bound=BaseModel)


def spoken(record: type[RecordT], name: str) -> type[RecordT]:
    """Give a record a name of its own and make a call of it that does not fit a UserError of one sentence."""

    class Spoken(BaseModel):
        def __init__(self, *values: Any, **keys: Any) -> None:
            if values:
                raise UserError(f"{name} takes its values by name: {', '.join(record.model_fields)}")
            try:
                super().__init__(**keys)
            except ValidationError as error:
                raise UserError(f"{name}: {explain(error, record)}") from None

    made: Any = create_model(name, __base__=(Spoken, record), __doc__=record.__doc__, __module__="fl_dpbayes")
    return made

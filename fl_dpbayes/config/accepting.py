"""Fields that hold one type and may be given as another, so that type checkers see both."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

Held = TypeVar("Held", covariant=True)
Given = TypeVar("Given", contravariant=True)
# A record within a record may be given by its keys.
Keys = Mapping[str, Any]


if TYPE_CHECKING:

    class Accepting(Generic[Held, Given]):
        """A field that holds the first type, and into which validation turns the second.

        A checker reads from this descriptor what may be given; pydantic sees the type held.
        """

        @overload
        def __get__(self, record: None, owner: object) -> Self: ...
        @overload
        def __get__(self, record: object, owner: object) -> Held: ...
        def __get__(self, record: object, owner: object) -> Any: ...
        def __set__(self, record: object, value: Given | Held) -> None: ...

else:

    class Accepting:  # noqa: D101
        def __class_getitem__(cls, types: tuple[Any, Any]) -> Any:
            return types[0]


def default(value: Any) -> Any:
    """Return the default of an `Accepting` field, whose own type it is not."""
    return value

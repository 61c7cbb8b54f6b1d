"""From a source to its records: one loader per source, imported only when it is used."""

from fl_dpbayes.config.built_in_tasks import BUILT_IN_TASKS
from fl_dpbayes.config.data import BuiltIn, HuggingFace, ImageFolder, OfficialPart, Source, Table
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.synthetic_sources import Logistic2D, Radiographs
from fl_dpbayes.config.task import Task
from fl_dpbayes.data.records import Records

OFFICIAL_PARTS: dict[str, tuple[OfficialPart, ...]] = {
    "mnist": ("train", "test"),
    "pneumonia": ("train", "validation", "test"),
    "logistic-2d": ("train", "test"),
    "radiographs": ("train", "test"),
}


def load_source(source: Source, part: OfficialPart) -> Records:
    """Load one official part of a source with float32 features, pixels in [0, 1].

    Args, returns and errors are those of `load_unscaled`.
    """
    return load_unscaled(source, part).scaled()


def load_unscaled(source: Source, part: OfficialPart) -> Records:
    """Load one official part of a source as its files hold it: pixels may still be whole numbers.

    Args:
        source: a built-in data set, a table, a folder of images, a Hugging Face data set or made-up records.
        part: the part as its authors split it; a source without official parts has only `train`, which is all of it.

    Returns:
        Its records, in the order of the files.

    Raises:
        UserError: if the source has no such part, or a file is missing, damaged or not as described.
    """
    parts = tuple(source.splits) if isinstance(source, HuggingFace) else OFFICIAL_PARTS.get(source.kind, ("train",))
    if part not in parts:
        raise UserError(
            f"source {source.kind!r} has no part {part!r}: choose {' or '.join(parts)}"
            + ("; for held-out records give the site a number of records" if parts == ("train",) else "")
        )
    match source:
        case BuiltIn(kind="digits"):
            from fl_dpbayes.data.sources.digits import digits_records

            return digits_records()
        case BuiltIn(kind="mnist"):
            from fl_dpbayes.data.sources.mnist import mnist_records

            return mnist_records(source.folder, part)
        case BuiltIn(kind="pneumonia"):
            from fl_dpbayes.data.sources.pneumonia import pneumonia_records

            return pneumonia_records(source.folder, part)
        case BuiltIn():
            from fl_dpbayes.data.sources.heart import heart_records

            return heart_records(source.folder)
        case Table():
            from fl_dpbayes.data.sources.table import table_records

            return table_records(source)
        case ImageFolder():
            from fl_dpbayes.data.sources.images import image_records

            return image_records(source)
        case HuggingFace():
            from fl_dpbayes.data.sources.hugging_face import hugging_face_records

            return hugging_face_records(source, part)
        case Logistic2D():
            from fl_dpbayes.data.sources.logistic_2d import logistic_2d_records

            return logistic_2d_records(source, part)
        case Radiographs():
            from fl_dpbayes.data.sources.radiographs import radiograph_records

            return radiograph_records(source, part)


def source_task(source: Source) -> Task:
    """Say what a source's records are, without loading them.

    Args:
        source: a built-in data set, a table, a folder of images, a Hugging Face data set or made-up records.

    Returns:
        Shape of a record and number of classes.

    Raises:
        UserError: if a folder of images is absent or has fewer than two classes.
    """
    match source:
        case BuiltIn():
            return BUILT_IN_TASKS[source.kind]
        case Table():
            return Task(input_shape=(len(source.features),), classes=source.classes)
        case ImageFolder():
            from fl_dpbayes.data.sources.images import image_task

            return image_task(source)
        case HuggingFace():
            from fl_dpbayes.data.sources.hugging_face import hugging_face_task

            return hugging_face_task(source)
        case Logistic2D():
            return Task(input_shape=(2,), classes=2)
        case Radiographs():
            return Task(input_shape=(1, source.side, source.side), classes=2)


def source_unit(source: Source) -> str:
    """Name the privacy unit of a source: a table's unit column, patient, image or record; loads no record."""
    match source:
        case BuiltIn(kind="heart") | ImageFolder(patient_pattern=str()):
            return "patient"
        case Table(unit_column=str(column)) | HuggingFace(unit_column=str(column)):
            return column
        case ImageFolder() | HuggingFace(features=str()):
            return "image"
        case _:
            return "record"

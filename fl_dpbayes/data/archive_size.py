"""How much a NumPy archive takes once it is unpacked, seen before it is."""

import zipfile
from pathlib import Path


def check_unpacked_size(path: Path, most_bytes: int) -> None:
    """Refuse an archive that would unpack to more than it may, before unpacking it.

    Args:
        path: The archive.
        most_bytes: What all its members may take together.

    Raises:
        ValueError: It is too large, or packed in a way that could hide it.
        zipfile.BadZipFile: It is no archive.
    """
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    # Python bounds what it unpacks by the size that the directory states, for these two ways of
    # packing alone.
    bounded = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
    if not {member.compress_type for member in members} <= bounded:
        raise ValueError("it is packed in another way")
    if sum(member.file_size for member in members) > most_bytes:
        raise ValueError(f"it unpacks to more than {most_bytes >> 20} MiB")

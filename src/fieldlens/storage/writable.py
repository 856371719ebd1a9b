"""Whether output can be written, found out before anything is computed."""

import errno
import os
import tempfile
from pathlib import Path

from fieldlens.core.errors import BadInput, FieldlensError


class NotWritable(FieldlensError):
    """The output folder cannot be written."""

    exit_code = 4


def check_folder(path: Path, flag: str = "--out") -> None:
    """Raise unless files can be written into this folder, which need not exist yet; nothing is left behind."""
    place = path
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise BadInput(f"{flag} must be a folder, but {place} is {'a file' if place.exists() else 'a broken link'}")
    longest = os.pathconf(place, "PC_NAME_MAX")
    if any(len(os.fsencode(part)) > longest for part in path.parts):
        raise BadInput(f"{flag} has a name that is too long: at most {longest} bytes are allowed")
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(4096))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(error.errno, error.strerror, str(path)) from None
        remedy = f"choose another folder ({error.strerror})"
        raise NotWritable(f"{flag} {path} cannot be written, because {place} takes no new files: {remedy}") from None


def check_file(path: Path, flag: str) -> None:
    """Raise unless this file can be written."""
    if path.is_dir():
        raise BadInput(f"{flag} must be a file, but {path} is a folder")
    check_folder(path.parent, f"the folder of {flag}")

"""Folders that appear whole or not at all, with a manifest that holds the hash of every file and of itself.

A folder is written beside its final place, fsynced and renamed. No pickle, and nothing is overwritten in place.
"""

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fieldlens.core.errors import FieldlensError
from fieldlens.core.faults import machine_fault
from fieldlens.storage.atomic import hash_of, sync, sync_folder, touch_disk, write_file

MANIFEST = "manifest.json"
BUILDING = ".building-"
"""Prefix of folders that are being written."""

ABANDONED_AFTER = 3600.0
"""Seconds after which an unlocked temporary folder is removed: a new one is not locked yet."""


class Damaged(FieldlensError):
    """A folder differs from what was written: something is missing, altered or truncated."""

    exit_code = 4


def build_folder(
    path: Path, fill: Callable[[Path], Mapping[str, Any]], about: Mapping[str, Any], replace: bool = True
) -> None:
    """Write a folder atomically. `fill` writes its files into a temporary folder and returns more for the manifest.

    With `replace` a folder of this name is replaced; otherwise an intact one, which another process was faster to
    write, is kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path.parent, 0.0 if replace else ABANDONED_AFTER)
    temporary = path.with_name(f"{BUILDING}{path.name}-{secrets.token_hex(8)}")
    touch_disk()
    temporary.mkdir()  # not mkdtemp, whose folders nobody else could read in a shared cache
    handle = os.open(temporary, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel releases it when this process ends
        content = {**about, **_filled(fill, temporary)}
        files = sorted(file for file in temporary.iterdir() if file.is_file())
        hashes = {file.name: {"bytes": file.stat().st_size, "sha256": hash_of(file)} for file in files}
        for file in files:
            sync(file)
        write_file(temporary / MANIFEST, _sealed({"about": content, "files": hashes}))
        sync_folder(temporary)
        _put(temporary, path, replace)
        sync_folder(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(handle)


def _filled(fill: Callable[[Path], Mapping[str, Any]], temporary: Path) -> Mapping[str, Any]:
    """Fill a folder; a full disk that a library reports by an exception of its own becomes an OSError."""
    try:
        return fill(temporary)
    except Exception as error:
        fault = machine_fault(error)
        if fault is None or fault is error:
            raise
        raise fault from error


def write_folder(path: Path, files: Mapping[str, bytes], about: Mapping[str, Any]) -> None:
    """Write a folder with these files, replacing one of the same name."""

    def fill(temporary: Path) -> dict[str, Any]:
        for name, data in files.items():
            write_file(temporary / name, data)
        return {}

    build_folder(path, fill, about)


def read_folder(path: Path, others: bool = False) -> dict[str, bytes]:
    """Every file of a folder, verified against its manifest.

    Raises Damaged; also for files that the manifest does not list, unless `others` are allowed.
    """
    content = _manifest(path)
    wrong = _altered(path, content["files"])
    if not others:
        present = {entry.name for entry in path.iterdir()} - {MANIFEST}
        wrong += sorted(present - set(content["files"]))
    if wrong or not content["files"]:
        raise Damaged(f"{path.name}: differs from what was written: {', '.join(wrong) or 'empty'}")
    return {name: (path / name).read_bytes() for name in content["files"]}


def verified_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest of a folder, with its `files`; None unless every file matches its hash."""
    try:
        content = _manifest(path)
        return None if _altered(path, content["files"]) else {**content["about"], "files": content["files"]}
    except (Damaged, OSError, TypeError):
        return None


def verify_folder(path: Path) -> None:
    """Raise Damaged unless every file that the manifest lists matches its hash."""
    if wrong := _altered(path, _manifest(path)["files"]):
        raise Damaged(f"{path.name}: differs from what was written: {', '.join(wrong)}")


def is_whole(path: Path) -> bool:
    """Whether a folder has all files of its manifest, unaltered."""
    return verified_manifest(path) is not None


def has_manifest(path: Path) -> bool:
    """Whether a folder has a manifest of ours, also a damaged one: by words that are in it many times."""
    try:
        text = (path / MANIFEST).read_bytes()
    except OSError:
        return False
    return text.startswith(b'{"seal"') or text.count(b'"sha256": "') > 1


def _manifest(path: Path) -> dict[str, Any]:
    """The content of a manifest whose own hash is right."""
    try:
        text = (path / MANIFEST).read_bytes()
        content = json.loads(text)["content"]
        if text != _sealed(content):
            raise Damaged(f"{path.name}: differs from what was written: {MANIFEST}")
        return {"about": dict(content["about"]), "files": dict(content["files"])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{path.name}: the manifest cannot be read ({type(error).__name__})") from error


def _altered(path: Path, files: Mapping[str, Any]) -> list[str]:
    """The files that are missing or whose size or hash is another."""

    def matches(file: Path, entry: Mapping[str, Any]) -> bool:
        try:
            return file.stat().st_size == entry["bytes"] and hash_of(file) == entry["sha256"]
        except (OSError, KeyError, TypeError):
            return False

    return [name for name, entry in files.items() if not matches(path / name, entry)]


def _sealed(content: dict[str, Any]) -> bytes:
    """The text of a manifest with its own hash in front: any change of the text is noticed."""
    text = json.dumps(content, sort_keys=True)
    return f'{{"seal": "{hashlib.sha256(text.encode()).hexdigest()}", "content": {text}}}\n'.encode()


def _put(temporary: Path, path: Path, replace: bool) -> None:
    """Rename a finished folder to its final place."""
    if path.exists() and (replace or not is_whole(path)):
        previous = temporary.with_name(f"{temporary.name}-previous")
        touch_disk()
        with suppress(FileNotFoundError):  # another process may have moved it already
            path.rename(previous)
        shutil.rmtree(previous, ignore_errors=True)
    touch_disk()
    try:
        temporary.rename(path)
    except OSError:
        if replace or not is_whole(path):  # otherwise another process was faster, and its folder is the same
            raise


def _remove_abandoned(parent: Path, age: float) -> None:
    """Remove temporary folders that processes left which were killed: unlocked, and older than so many seconds."""
    for temporary in parent.glob(f"{BUILDING}*"):
        with suppress(OSError):
            old = time.time() - temporary.stat().st_mtime > age
            handle = os.open(temporary, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if old:
                    shutil.rmtree(temporary)
            finally:
                os.close(handle)

"""Sealed JSON: a file that carries the hash of its own content, so that an altered number does not go unnoticed.

The hash is taken over the values, not over the text: white space and the order of keys may change. Files that version
0.1 wrote have no seal and say so by their version; any other file without one is refused.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from fieldlens.core.errors import BadInput
from fieldlens.core.limits import is_nested_too_deeply
from fieldlens.storage.atomic import replace_text

SEAL = "seal"
UNSEALED_VERSION = "0.1.0"
"""The last version that wrote files without a seal."""


def digest(value: Any) -> str:
    """The sha256 of a value as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def seal(content: dict[str, Any]) -> dict[str, Any]:
    """The content with its hash."""
    plain = {key: value for key, value in content.items() if key != SEAL}
    return {**plain, SEAL: digest(json.loads(json.dumps(plain)))}


def write_sealed(path: Path, content: dict[str, Any], indent: int | None = 1) -> None:
    """Write a JSON object with its seal, atomically."""
    text = json.dumps(seal(content), indent=indent, ensure_ascii=False, allow_nan=False)
    replace_text(path, text + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; whether it has a seal is not checked."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except RecursionError:
        raise BadInput(f"{path} cannot be read: it is nested too deeply") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None
    if is_nested_too_deeply(content):
        raise BadInput(f"{path} cannot be read: it is nested too deeply")
    if not isinstance(content, dict):
        raise BadInput(f"{path} is not a JSON object")
    return content


def read_sealed(path: Path, unsealed: bool = False) -> dict[str, Any]:
    """The content of a sealed JSON object, without its seal; `unsealed` also accepts one that has none.

    Raises BadInput, also where there is no file.
    """
    content = read_json(path)
    if SEAL in content:
        expected = content.pop(SEAL)
        if digest(content) != expected:
            raise BadInput(f"{path} was altered after it was written: delete it and re-run the command that wrote it")
    elif not unsealed and not written_before_seals(content):
        raise BadInput(f"{path} has no seal: it was not written by fieldlens, or it is damaged")
    return content


def written_before_seals(content: dict[str, Any]) -> bool:
    """Whether a file says that version 0.1 wrote it."""
    versions = content.get("versions")
    return isinstance(versions, dict) and versions.get("fieldlens") == UNSEALED_VERSION

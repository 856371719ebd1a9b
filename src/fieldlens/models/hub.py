"""Access to transformers and the Hugging Face hub: tokenizer files, error messages in one line, no console output."""

import io
import json
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from fieldlens.core.errors import BadInput, message_only, reraise_as_bad_input
from fieldlens.core.format import HUB_ID
from fieldlens.storage.atomic import hash_of
from fieldlens.storage.content_cache import build, cache_folder
from fieldlens.storage.folders import verified_manifest
from fieldlens.storage.sealed import digest

GGUF_PACKAGES = ("gguf", "accelerate")
"""What transformers needs to load a GGUF file."""


def require_gguf(path: Path) -> None:
    """Raise BadInput if a package is missing; called before any text is tokenized."""
    missing = [name for name in GGUF_PACKAGES if find_spec(name) is None]
    if missing:
        raise BadInput(
            f"{path} requires the gguf extra ({' and '.join(missing)} not installed): pip install 'fieldlens[gguf]'"
        )


def fetched_tokenizer(name: str) -> Path:
    """Folder in the cache with the tokenizer files of a hub id; transformers does not load them."""
    from transformers.utils import cached_file

    offline = not hub_is_reachable()
    with quiet_transformers(), loading(name):
        files = [
            cached_file(name, file, _raise_exceptions_for_missing_entries=False, local_files_only=offline)
            for file in ("tokenizer.json", "tokenizer_config.json")
        ]
    if files[0] is None:
        return converted_tokenizer({"tokenizer of": name}, name, {"local_files_only": offline})
    contents = {Path(file).name: Path(file).read_bytes() for file in files if file}
    folder = cache_folder() / "tokenizers" / digest([name, *(hash_of(Path(file)) for file in files if file)])[:32]
    if verified_manifest(folder) is None:

        def write(target: Path) -> dict[str, Any]:
            for file_name, content in contents.items():
                (target / file_name).write_bytes(content)
            return {}

        build(folder, {"tokenizer of": name}, write)
    return folder


def converted_tokenizer(
    key: dict[str, Any], source: str, settings: dict[str, Any], facts: dict[str, Any] | None = None
) -> Path:
    """Folder in the cache with a tokenizer that transformers converted from another format.

    `facts` are written into its tokenizer_config.json: what the source says and the conversion loses.
    """
    from transformers import AutoTokenizer

    key = {**key, **({"facts": facts} if facts else {})}
    folder = cache_folder() / "tokenizers" / digest(key)[:32]
    if verified_manifest(folder) is None:
        with quiet_transformers(), loading(source):
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, use_fast=True, **settings)

        def write(target: Path) -> dict[str, Any]:
            tokenizer.save_pretrained(target)
            config = target / "tokenizer_config.json"
            if facts:
                config.write_text(json.dumps({**json.loads(config.read_text()), **facts}, indent=2))
            return {}

        build(folder, key, write)
    return folder


def hub_is_reachable() -> bool:
    """Whether the name of the hub resolves or a proxy is set; an unreachable hub times out only after 90 seconds."""
    from huggingface_hub.constants import ENDPOINT

    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True


def loading(name: str) -> AbstractContextManager[None]:
    """Turn any error while a model or tokenizer is loaded into one line."""
    absent = HUB_ID.fullmatch(name) and not Path(name).exists()
    cause = f"there is no folder '{name}'; {suggestion(Path(name))}from the Hugging Face hub " if absent else ""
    return reraise_as_bad_input(f"{cause}{name} cannot be loaded", explain=_explain)


def suggestion(path: Path) -> str:
    """A question that names a similar path; empty if there is none."""
    similar = similar_path(path)
    return f"did you mean '{similar}'? " if similar else ""


def similar_path(path: Path) -> Path | None:
    """A path that exists and differs from this one by misspelled names; None if there is none."""
    place = Path(path.anchor)
    for name in path.parts[bool(path.anchor) :]:
        if os.path.lexists(place / name):
            place /= name
            continue
        names = [entry.name for entry in place.iterdir()] if os.access(place, os.R_OK) and place.is_dir() else []
        close = get_close_matches(name, names, 1)
        if not close:
            return None
        place /= close[0]
    return place if place != path else None


def _explain(error: BaseException) -> str:
    message = message_only(error)
    if message.startswith("Unrecognized configuration class"):  # followed by a list of all classes
        return "transformers has no causal language model for this configuration"
    return message


@contextmanager
def quiet_transformers(stderr: bool = False) -> Iterator[None]:
    """Suppress the console output of transformers, but not what others write to stderr if that is kept."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with nullcontext() if stderr else redirect_stderr(io.StringIO()):  # some progress bars ignore the setting above
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()

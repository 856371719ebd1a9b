"""What transformers and the hub are asked for: tokenizer files, and quiet."""

import io
import socket
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from fieldlens.core.errors import BadInput
from fieldlens.storage.content_cache import build, cache_folder, digest, hash_of, verified_manifest


def require_gguf(path: Path) -> None:
    try:
        import gguf as _  # noqa: F401
    except ImportError:
        raise BadInput(f"{path} needs the extra gguf: pip install 'fieldlens[gguf]'") from None


def fetched_tokenizer(name: str) -> Path:
    """The tokenizer files of a hub id, in the cache; nothing is opened by anybody but us."""
    from transformers.utils import cached_file

    offline = not hub_is_reachable()
    with quiet_transformers(), _in_one_line(name):
        found = [
            cached_file(name, file, _raise_exceptions_for_missing_entries=False, local_files_only=offline)
            for file in ("tokenizer.json", "tokenizer_config.json")
        ]
    if found[0] is None:
        return converted_tokenizer({"tokenizer of": name}, name, {"local_files_only": offline})
    contents = {Path(file).name: Path(file).read_bytes() for file in found if file}
    folder = cache_folder() / "tokenizers" / digest([name, *(hash_of(Path(file)) for file in found if file)])[:32]
    if verified_manifest(folder) is None:

        def write(place: Path) -> dict[str, Any]:
            for file, data in contents.items():
                (place / file).write_bytes(data)
            return {}

        build(folder, {"tokenizer of": name}, write)
    return folder


def converted_tokenizer(key: dict[str, Any], place: str, settings: dict[str, Any]) -> Path:
    from transformers import AutoTokenizer

    folder = cache_folder() / "tokenizers" / digest(key)[:32]
    if verified_manifest(folder) is None:
        with quiet_transformers(), _in_one_line(place):
            tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False, use_fast=True, **settings)
        build(folder, key, lambda beside: tokenizer.save_pretrained(beside) and {})
    return folder


def hub_is_reachable() -> bool:
    """Whether the hub's name is known here, or a proxy knows it; asking in vain would take a minute and a half."""
    from huggingface_hub.constants import ENDPOINT

    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True


@contextmanager
def _in_one_line(shown: str) -> Iterator[None]:
    """Whatever a library says of a model that cannot be loaded, in one line."""
    try:
        yield
    except BadInput:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        said = " ".join(str(error).split()) or type(error).__name__
        if said.startswith("Unrecognized configuration class"):  # and then a list of all that there are
            said = "transformers has no causal language model of this kind"
        raise BadInput(f"{shown} cannot be loaded: {said[:300]}") from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers from printing while it loads."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):  # some bars do not ask whether they are wanted
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()

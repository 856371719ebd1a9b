"""The models that a command can be given: a run folder, a Hugging Face folder, a hub id, a GGUF file.

Nothing from a model folder is executed, and weights that are missing or not finite are refused.
"""

import io
import json
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch

from fieldlens.checkpoint import Damaged, read_folder
from fieldlens.decoder import Decoder
from fieldlens.errors import BadInput
from fieldlens.run import Run
from fieldlens.schemes import parse, source_of
from fieldlens.store import build, cache_folder, digest, hash_of, intact
from fieldlens.subject import Subject, check_causal, subject, weights_hash

_HUB = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_OF_TOKENIZER = re.compile(r".*(token|vocab|merges|spiece).*")
_BESIDE = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"}
"""What a configuration says that changes no number."""

_NAMELESS = re.compile(r"model|weights|checkpoints?|best|final|last|latest", re.IGNORECASE)


@dataclass(frozen=True)
class Origin:
    """Where a model comes from: found and looked at, not loaded."""

    text: str
    name: str
    """What tables and legends call it: a run goes by its scheme."""
    path: Path | None
    """None for a hub id."""
    run: Run | None = None

    @property
    def diverged(self) -> bool:
        return self.run is not None and self.run.read(self.run.status).get("state") == "diverged"

    @cached_property
    def tokenizer(self) -> Path:
        """The folder of the model's tokenizer: its own, or one made in the cache from what transformers can read."""
        if self.path is None:
            return _fetched(self.text)
        if self.path.is_file():
            _need_gguf(self.path)
            return _converted(
                {"tokenizer of": hash_of(self.path)}, str(self.path.parent), {"gguf_file": self.path.name}
            )
        if (self.path / "tokenizer.json").is_file():
            return self.path
        hashes = [[file.name, hash_of(file)] for file in sorted(self.path.iterdir()) if _OF_TOKENIZER.match(file.name)]
        if not hashes:
            raise BadInput(f"{self.text} has no tokenizer: put its tokenizer.json beside the weights")
        return _converted({"tokenizer of": hashes}, str(self.path), {})

    @property
    def trained_on(self) -> tuple[str, str | None] | None:
        """Where the text of a run lies, and its fingerprint; None for models that are no runs."""
        if self.run is None:
            return None
        data = self.run.read(self.run.data)
        return data.get("place") or self.about()["recipe"]["corpus"], data.get("corpus")

    def about(self) -> dict[str, Any]:
        """What a result says of the model before it is loaded: its name, and a run's recipe."""
        if self.run is None:
            return {"name": self.name}
        known = self.run.read(self.run.config)
        return {
            "name": self.name,
            "folder": self.run.folder.name,
            "recipe": known["recipe"],
            "data": known["experiment"]["data"],
            "address": known["address"],
            **{key: known["experiment"][key] for key in ("scheme_source",) if key in known["experiment"]},
        }


def find(text: str) -> Origin:
    """The origin that a command's MODEL means."""
    run, path = Run(Path(text)), Path(text)
    if run.status.is_file() and run.config.is_file():
        _check_run(run, text)
        state = run.read(run.status).get("state")
        if state != "diverged" and not run.model.is_dir():
            raise BadInput(f"{text} is a run without a model: it is {state}; fieldlens train --resume finishes it")
        return Origin(text, str(run.read(run.config)["recipe"]["scheme"]), run.model, run)
    if path.is_dir():
        _check_folder(path, text)
        return Origin(text, name_of(path), path)
    if path.is_file() and path.suffix.lower() == ".gguf":
        return Origin(text, name_of(path.with_suffix("")), path)
    if not path.exists() and _HUB.fullmatch(text) and not path.parent.exists():
        return Origin(text, text, None)
    wanted = "give a run folder, a Hugging Face folder or id (owner/name), or a .gguf file"
    raise BadInput(
        f"{text} is a file, but no .gguf: {wanted}" if path.is_file() else f"model '{text}' does not exist: {wanted}"
    )


def name_of(path: Path) -> str:
    """What a model is called by its place: the folder's name, or the parent's where that says nothing (`model`)."""
    given = Path(os.path.abspath(path))  # links are not followed: in the hub's cache they lead to hashes
    places = [given, *given.parents]
    return next((one.name for one in places if one.name and not _NAMELESS.fullmatch(one.name)), path.name)


def tell_apart(origins: Sequence[Origin]) -> list[str]:
    """The names of models; those that share theirs with as much of the end of their path as differs."""
    found = []
    for one in origins:
        alike = [Path(other.text).parts[::-1] for other in origins if other.name == one.name]
        mine = Path(one.text).parts[::-1]
        deep = next((n for n in range(1, len(mine)) if sum(parts[:n] == mine[:n] for parts in alike) == 1), len(mine))
        found.append(one.name if len(alike) == 1 else f"{one.name} ({Path(*mine[:deep][::-1])})")
    return found


def _check_folder(path: Path, text: str) -> None:
    """Refuse what transformers would pass by in silence, or in riddles: an adapter without peft, pickled weights."""
    whole = (path / "config.json").is_file()
    if (path / "adapter_config.json").is_file() and not (whole and find_spec("peft")):
        mend = "install peft, or merge it into its base" if whole else "merge it into its base"
        raise BadInput(f"{text} is a LoRA adapter: {mend} (merge_and_unload) and save that")
    if not whole:
        raise BadInput(f"{text} is no model: there is neither a config.json nor a run in it")
    if any(path.glob("pytorch_model*.bin")) and not any(path.glob("model*.safetensors")):
        mend = "save it again with save_pretrained (safetensors)"
        raise BadInput(f"{text} has only pickled weights, which are not opened: {mend}")


def _check_run(run: Run, text: str) -> None:
    status, config = run.read(run.status), run.read(run.config)
    try:
        whole = isinstance(status["state"], str) and isinstance(config["recipe"]["scheme"], str)
        whole = whole and {"corpus", "seed"} <= set(config["recipe"]) and {"experiment", "address"} <= set(config)
    except (KeyError, TypeError):
        whole = False
    if not whole:
        raise BadInput(f"{text} looks like a run folder, but its status.json or config.json is not one of ours")


@dataclass(frozen=True)
class Model:
    """A subject, and what a result says of it."""

    subject: Subject
    about: dict[str, Any]


def load(origin: Origin, device: torch.device, dtype: torch.dtype, train_length: int | None = None) -> Model:
    """The model of an origin, ready to be asked, and causal."""
    if train_length is not None and train_length < 1:
        raise BadInput(f"train length is {train_length}: at least 1 is needed")
    _check_source(origin)
    found, described = _weights(origin, dtype)
    one = subject(found.to(device), origin.name)
    one.named_dtype = _named_dtype(described)
    one.train_length = train_length or one.train_length
    with _in_one_line(origin.text):
        check_causal(one)
    inside = getattr(found, "decoder", None)
    spec = inside.config.scheme if isinstance(inside, Decoder) else None
    about = {
        **origin.about(),
        "kind": found.config.model_type,
        "scheme": spec,
        "train_length": one.train_length,
        "parameters": sum(parameter.numel() for parameter in found.parameters()),
        "dtype": str(dtype).removeprefix("torch."),
        "weights": weights_hash(found),
        "configuration": _configuration(found.config, source_of(spec) if spec else {}),
    }
    return Model(one, about)


def _check_source(origin: Origin) -> None:
    """Refuse a run whose scheme is no longer the one that it was trained with."""
    known = origin.about()
    if "scheme_source" in known and known["scheme_source"] != parse(origin.name)[0].file_hash:
        raise BadInput(
            f"{origin.text}: the file of scheme '{origin.name}' has changed since this run was trained: put it back as "
            "it was, or train again"
        )


def _configuration(config: Any, source: dict[str, str]) -> str:
    """Names what a model computes with its weights: a rotary base, a window or a plugin's formula is in no weight."""
    known = {key: value for key, value in config.to_dict().items() if key not in _BESIDE} | source
    return digest(json.loads(json.dumps(known, sort_keys=True, default=str)))[:16]


def _named_dtype(described: dict[str, Any]) -> torch.dtype | None:
    """The dtype that a configuration names, by its newer or its older word, itself or for its text."""
    text = described.get("text_config")
    places = [described, text] if isinstance(text, dict) else [described]
    names = [str(place[word]) for place in places for word in ("dtype", "torch_dtype") if place.get(word)]
    found = getattr(torch, names[0].removeprefix("torch."), None) if names else None
    return found if isinstance(found, torch.dtype) else None


def _weights(origin: Origin, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    if origin.path is None:
        return _pretrained(origin.text, origin.text, dtype=dtype, local_files_only=not _hub_is_near())
    if origin.run is not None:
        try:
            read_folder(origin.path, others=True)
        except Damaged as error:
            raise BadInput(f"{origin.text}: the model folder is damaged ({error}); train again, or --resume") from None
    if origin.path.is_file():
        _need_gguf(origin.path)
        return _pretrained(str(origin.path.parent), str(origin.path), dtype=dtype, gguf_file=origin.path.name)
    return _pretrained(str(origin.path), origin.text, dtype=dtype)


def _need_gguf(path: Path) -> None:
    try:
        import gguf as _  # noqa: F401
    except ImportError:
        raise BadInput(f"{path} needs the extra gguf: pip install 'fieldlens[gguf]'") from None


def _pretrained(place: str, shown: str, **settings: Any) -> tuple[Any, dict[str, Any]]:
    """Load by transformers, and refuse what it would let pass: absent or non-finite weights.

    Returns the model, and its configuration as the folder has it.
    """
    from transformers import AutoModelForCausalLM

    import fieldlens.huggingface  # noqa: F401

    settings |= {"trust_remote_code": False, "output_loading_info": True}
    if "gguf_file" not in settings:
        settings["use_safetensors"] = True
    with _quiet(), _in_one_line(shown):
        described = _described(place, settings)
        try:
            model, info = AutoModelForCausalLM.from_pretrained(place, attn_implementation="sdpa", **settings)
        except ValueError as error:
            if "attn_implementation" not in str(error) and "scaled_dot_product" not in str(error):
                raise
            model, info = AutoModelForCausalLM.from_pretrained(place, attn_implementation="eager", **settings)
    for what in ("missing_keys", "mismatched_keys"):
        if info[what]:
            raise BadInput(f"{shown}: weights do not fit, {what.replace('_', ' ')}: {sorted(map(str, info[what]))[:5]}")
    broken = [name for name, weight in model.named_parameters() if not torch.isfinite(weight).all()]
    if broken:
        raise BadInput(f"{shown}: weights are not finite: {', '.join(broken[:5])}")
    return model.requires_grad_(False), described


def _described(place: str, settings: dict[str, Any]) -> dict[str, Any]:
    """A configuration as it is written; empty in a GGUF file.

    A decoder without its encoder is refused: it would run, and say nothing of what the two say together.
    """
    from transformers import PreTrainedConfig

    if "gguf_file" in settings:
        return {}
    local = {key: settings[key] for key in ("local_files_only",) if key in settings}
    described, _ = PreTrainedConfig.get_config_dict(place, **local)
    alone = any(str(name).endswith("ForCausalLM") for name in described.get("architectures") or [])
    if described.get("is_encoder_decoder") and not alone:
        raise BadInput(f"{place} is an encoder and a decoder: a causal language model is needed")
    return described


def _fetched(name: str) -> Path:
    """The tokenizer files of a hub id, in the cache; nothing is opened by anybody but us."""
    from transformers.utils import cached_file

    offline = not _hub_is_near()
    with _quiet(), _in_one_line(name):
        found = [
            cached_file(name, file, _raise_exceptions_for_missing_entries=False, local_files_only=offline)
            for file in ("tokenizer.json", "tokenizer_config.json")
        ]
    if found[0] is None:
        return _converted({"tokenizer of": name}, name, {"local_files_only": offline})
    contents = {Path(file).name: Path(file).read_bytes() for file in found if file}
    folder = cache_folder() / "tokenizers" / digest([name, *(hash_of(Path(file)) for file in found if file)])[:32]
    if intact(folder) is None:

        def write(place: Path) -> dict[str, Any]:
            for file, data in contents.items():
                (place / file).write_bytes(data)
            return {}

        build(folder, {"tokenizer of": name}, write)
    return folder


def _converted(key: dict[str, Any], place: str, settings: dict[str, Any]) -> Path:
    from transformers import AutoTokenizer

    folder = cache_folder() / "tokenizers" / digest(key)[:32]
    if intact(folder) is None:
        with _quiet(), _in_one_line(place):
            tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False, use_fast=True, **settings)
        build(folder, key, lambda beside: tokenizer.save_pretrained(beside) and {})
    return folder


def _hub_is_near() -> bool:
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
def _quiet() -> Iterator[None]:
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

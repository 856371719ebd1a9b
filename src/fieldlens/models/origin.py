"""Where a model comes from: a run folder, a Hugging Face folder or id, a GGUF file. Located, not loaded."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from fieldlens.core.errors import BadInput
from fieldlens.core.format import HUB_ID
from fieldlens.models.gguf_metadata import tokenizer_facts
from fieldlens.models.hub import converted_tokenizer, fetched_tokenizer, require_gguf, suggestion
from fieldlens.storage.atomic import hash_of
from fieldlens.storage.records import OriginRecord
from fieldlens.storage.run_dir import Run

_OF_TOKENIZER = re.compile(r".*(token|vocab|merges|spiece).*")
_NAMELESS = re.compile(r"model|weights|checkpoints?|best|final|last|latest", re.IGNORECASE)


@dataclass(frozen=True)
class Origin:
    """Where a model comes from: located, not loaded."""

    text: str
    name: str
    """Its name in tables and legends: for a run, the scheme."""
    path: Path | None
    """None for a hub id."""
    run: Run | None = None
    folder: str = ""
    """The end of a run's path that tells it from runs of the same scheme; its folder's name if empty."""

    @property
    def diverged(self) -> bool:
        return self.run is not None and self.run.read_status().get("state") == "diverged"

    @cached_property
    def tokenizer(self) -> Path:
        """The folder of the model's tokenizer: its own, or one in the cache that transformers converted."""
        if self.path is None:
            return fetched_tokenizer(self.text)
        if self.path.is_file():
            require_gguf(self.path)
            facts = tokenizer_facts(self.path) | {"bos_source": "GGUF"}
            return converted_tokenizer(
                {"tokenizer of": hash_of(self.path)}, str(self.path.parent), {"gguf_file": self.path.name}, facts
            )
        if (self.path / "tokenizer.json").is_file():
            return self.path
        hashes = [[file.name, hash_of(file)] for file in sorted(self.path.iterdir()) if _OF_TOKENIZER.match(file.name)]
        if not hashes:
            raise BadInput(f"{self.text} has no tokenizer: put its tokenizer.json beside the weights")
        return converted_tokenizer({"tokenizer of": hashes}, str(self.path), {})

    @property
    def trained_on(self) -> tuple[str, str | None] | None:
        """The corpus that a run was trained on and its fingerprint; None for other models."""
        if self.run is None:
            return None
        data = self.run.read(self.run.data)
        return data.get("place") or self.about()["recipe"]["corpus"], data.get("corpus")

    def about(self) -> OriginRecord:
        """What results record of the model before it is loaded: its name, and the recipe of a run."""
        if self.run is None:
            return {"name": self.name}
        config = self.run.read(self.run.config)
        experiment = config["experiment"]
        record: OriginRecord = {
            "name": self.name,
            "folder": self.folder or self.run.folder.name,
            "recipe": config["recipe"],
            "data": experiment["data"],
            "address": config["address"],
        }
        if "scheme_source" in experiment:
            record["scheme_source"] = experiment["scheme_source"]
        return record


def find_model(text: str) -> Origin:
    """The origin of a model that was named on the command line."""
    run, path = Run(Path(text)), Path(text)
    if run.status.is_file() and run.config.is_file():
        _check_run(run, text)
        state = run.read_status().get("state")
        if state != "diverged" and not run.model.is_dir():
            raise BadInput(f"{text} has no model yet (state: {state}): finish the run with fieldlens train --resume")
        return Origin(text, str(run.read(run.config)["recipe"]["scheme"]), run.model, run)
    if path.is_dir():
        _check_folder(path, text)
        return Origin(text, name_of(path), path)
    if path.is_file() and path.suffix.lower() == ".gguf":
        return Origin(text, name_of(path.with_suffix("")), path)
    if not path.exists() and HUB_ID.fullmatch(text) and not path.parent.exists():
        return Origin(text, text, None)
    allowed = "give a run folder, a Hugging Face folder or id (owner/name), or a .gguf file"
    problem = f"{text} is a file but not a .gguf" if path.is_file() else f"model '{text}' does not exist"
    raise BadInput(f"{problem}: {suggestion(path)}{allowed}")


def name_of(path: Path) -> str:
    """The name of a model by its path: the folder's name, or its parent's if that says nothing (`model`)."""
    absolute = Path(os.path.abspath(path))  # links are not followed: in the hub's cache they lead to hashes
    folders = [absolute, *absolute.parents]
    return next((folder.name for folder in folders if folder.name and not _NAMELESS.fullmatch(folder.name)), path.name)


def unique_names(origins: Sequence[Origin]) -> list[str]:
    """The names of models; where names are equal, with as much of the end of the path as makes them differ."""
    endings = unique_endings(origins)
    return [f"{origin.name} ({end})" if end else origin.name for origin, end in zip(origins, endings, strict=True)]


def unique_endings(origins: Sequence[Origin]) -> list[str]:
    """As much of the end of each path as tells it from models of the same name; empty if there are none."""
    endings = []
    for origin in origins:
        same = [Path(other.text).parts[::-1] for other in origins if other.name == origin.name]
        parts = Path(origin.text).parts[::-1]
        lengths = (n for n in range(1, len(parts)) if sum(other[:n] == parts[:n] for other in same) == 1)
        ending = Path(*parts[: next(lengths, len(parts))][::-1])
        endings.append("" if len(same) == 1 else str(ending))
    return endings


def _check_folder(path: Path, text: str) -> None:
    """Refuse what transformers would load silently or fail on unclearly: LoRA adapters, pickled weights."""
    complete = (path / "config.json").is_file()
    if (path / "adapter_config.json").is_file() and not (complete and find_spec("peft")):
        remedy = "install peft, or merge it into its base model" if complete else "merge it into its base model"
        raise BadInput(f"{text} is a LoRA adapter: {remedy} (merge_and_unload) and save the result")
    if not complete:
        raise BadInput(f"{text} is not a model: it contains neither a config.json nor a run")
    if any(path.glob("pytorch_model*.bin")) and not any(path.glob("model*.safetensors")):
        remedy = "save it with save_pretrained (safetensors)"
        raise BadInput(f"{text} has only pickled weights, which are not loaded: {remedy}")


def _check_run(run: Run, text: str) -> None:
    status, config = run.read_status(), run.read(run.config)
    try:
        complete = isinstance(status["state"], str) and isinstance(config["recipe"]["scheme"], str)
        complete = complete and {"corpus", "seed"} <= set(config["recipe"]) and {"experiment", "address"} <= set(config)
    except (KeyError, TypeError):
        complete = False
    if not complete:
        raise BadInput(f"{text} looks like a run folder, but fieldlens did not write its status.json or config.json")

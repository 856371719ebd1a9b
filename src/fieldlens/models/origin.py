"""Where a model comes from: a run folder, a Hugging Face folder or id, a GGUF file. Found and checked, not loaded."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fieldlens.core.errors import BadInput
from fieldlens.models.hub import converted_tokenizer, fetched_tokenizer, require_gguf
from fieldlens.storage.content_cache import hash_of
from fieldlens.storage.run_dir import Run

_HUB = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


_OF_TOKENIZER = re.compile(r".*(token|vocab|merges|spiece).*")


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
            return fetched_tokenizer(self.text)
        if self.path.is_file():
            require_gguf(self.path)
            return converted_tokenizer(
                {"tokenizer of": hash_of(self.path)}, str(self.path.parent), {"gguf_file": self.path.name}
            )
        if (self.path / "tokenizer.json").is_file():
            return self.path
        hashes = [[file.name, hash_of(file)] for file in sorted(self.path.iterdir()) if _OF_TOKENIZER.match(file.name)]
        if not hashes:
            raise BadInput(f"{self.text} has no tokenizer: put its tokenizer.json beside the weights")
        return converted_tokenizer({"tokenizer of": hashes}, str(self.path), {})

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


def find_model(text: str) -> Origin:
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


def unique_names(origins: Sequence[Origin]) -> list[str]:
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

"""Hugging Face datasets as documents, through the optional `datasets` library."""

import glob
import hashlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldlens.core.errors import BadInput
from fieldlens.core.faults import machine_fault
from fieldlens.data.documents import ASIDE, ROLE, File, Part, Source, list_files, split_roles


@dataclass(frozen=True)
class DatasetSplit:
    """One split of a Hugging Face dataset; `files` are its local files, empty for a dataset from the hub."""

    name: str
    split: str | None
    rows: Any
    files: Sequence[tuple[str, Path]]
    form: str = "table"

    def documents(self) -> Iterator[str]:
        try:
            for number, row in enumerate(self.rows, 1):
                if not isinstance(row.get("text"), str):
                    columns = ", ".join(sorted(row))
                    reason = "is not a string" if "text" in row else f"is missing, available columns: {columns}"
                    raise BadInput(f"{self.name}, row {number}: column 'text' {reason}")
                yield row["text"]
        except BadInput:
            raise
        except Exception as error:  # Arrow raises various exceptions for a damaged file
            raise _unreadable(self.name, error) from error

    def sources(self) -> list[Source]:
        if self.files:
            return [source for name, path in self.files for source in File(name, path, None).sources()]
        digest, size = hashlib.sha256(), 0
        for text in self.documents():
            data = text.encode()
            digest.update(len(data).to_bytes(8, "big") + data)
            size += len(data)
        return [Source(self.name, size, digest.hexdigest())]


def _import_datasets(name: str) -> Any:
    """Import the `datasets` library, which is an optional dependency."""
    try:
        return importlib.import_module("datasets")
    except ImportError:
        raise BadInput(f"{name} requires the datasets library: pip install 'fieldlens[data]'") from None


def _unreadable(name: str, error: Exception) -> Exception:
    if fault := machine_fault(error):
        return fault
    return BadInput(f"{name} cannot be read: {' '.join(str(error).split()) or type(error).__name__}")


def hub(text: str) -> tuple[dict[str, Any], list[Part]]:
    """Load a dataset from the Hugging Face hub by its id."""
    name = f"corpus '{text}' (not an existing path, tried as a Hugging Face dataset)"
    library = _import_datasets(name)
    try:
        dataset = library.load_dataset(text)
    except Exception as error:  # network, missing dataset or permission: the exception classes vary
        raise _unreadable(name, error) from error
    return _split_parts(library, text, dataset, lambda split: [])


def saved(path: Path) -> tuple[dict[str, Any], list[Part]]:
    """Load a folder written by save_to_disk; its Arrow files are hashed."""
    library = _import_datasets(str(path))
    try:
        dataset = library.load_from_disk(str(path))
    except Exception as error:
        raise _unreadable(str(path), error) from error
    arrow_files = [(name, file) for name, file in list_files(path) if file.suffix == ".arrow"]
    has_splits = (path / "dataset_dict.json").is_file()

    def split_files(split: str) -> list[tuple[str, Path]]:
        return [(name, file) for name, file in arrow_files if not has_splits or name.startswith(f"{split}/")]

    return _split_parts(library, str(path), dataset, split_files)


def _split_parts(
    library: Any, name: str, dataset: Any, files: Callable[[str], Sequence[tuple[str, Path]]]
) -> tuple[dict[str, Any], list[Part]]:
    """Return one part per named split; the library calls a dataset without splits `train`."""
    tables = dict(dataset) if isinstance(dataset, dict) else {"train": dataset}
    names = [split for split in tables if ROLE.fullmatch(split)]
    roles = split_roles(names) if "train" in names and len(names) > 1 else None
    parts: list[Part] = [
        DatasetSplit(name, roles[split] if roles else None, _text_only(tables[split]), files(split))
        for split in (roles or tables)
    ]
    return {"datasets": library.__version__, "left out": sorted(set(tables) - set(roles or tables))}, parts


def _text_only(rows: Any) -> Any:
    """Select the text column, so that the other columns are not read."""
    return rows.select_columns("text") if "text" in (rows.column_names or ()) else rows


def parquet(
    text: str, files: Sequence[tuple[str, Path]], roles: dict[str, str] | None
) -> tuple[dict[str, Any], list[Part]]:
    """Stream Parquet files, without a copy in the cache of the `datasets` library."""
    library = _import_datasets(text)
    for name, path in files:
        if path.suffix.lower() != ".parquet" and not ASIDE.fullmatch(path.name):
            raise BadInput(f"corpus '{text}' mixes Parquet and other files: {name}")
    parts: list[Part] = []
    for name, path in files:
        if path.suffix.lower() == ".parquet":
            try:
                data_files = {"all": glob.escape(str(path.resolve()))}
                rows = library.load_dataset("parquet", data_files=data_files, split="all", streaming=True)
            except Exception as error:
                raise _unreadable(str(path), error) from error
            parts.append(DatasetSplit(str(path), roles[name] if roles else None, _text_only(rows), [(name, path)]))
    return {"datasets": library.__version__}, parts

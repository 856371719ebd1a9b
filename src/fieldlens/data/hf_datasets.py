"""Tables: Hugging Face datasets as documents, through the `datasets` library, which is an extra."""

import glob
import hashlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldlens.core.errors import BadInput
from fieldlens.data.documents import ASIDE, ROLE, File, Part, Source, list_files, split_roles


@dataclass(frozen=True)
class DatasetSplit:
    """One split of a Hugging Face dataset; files are its local files, none for one from the hub."""

    what: str
    split: str | None
    rows: Any
    files: Sequence[tuple[str, Path]]
    form: str = "table"

    def documents(self) -> Iterator[str]:
        try:
            for number, row in enumerate(self.rows, 1):
                if not isinstance(row.get("text"), str):
                    reason = "is not a string" if "text" in row else f"is missing, there are: {', '.join(sorted(row))}"
                    raise BadInput(f"{self.what}, row {number}: column 'text' {reason}")
                yield row["text"]
        except BadInput:
            raise
        except Exception as error:  # Arrow has many ways to say that a file is damaged
            raise _unreadable(self.what, error) from error

    def sources(self) -> list[Source]:
        if self.files:
            return [source for name, path in self.files for source in File(name, path, None).sources()]
        digest, count = hashlib.sha256(), 0
        for text in self.documents():
            data = text.encode()
            digest.update(len(data).to_bytes(8, "big") + data)
            count += len(data)
        return [Source(self.what, count, digest.hexdigest())]


def _datasets(what: str) -> Any:
    """The library, which is an extra."""
    try:
        return importlib.import_module("datasets")
    except ImportError:
        raise BadInput(f"{what} is read by the datasets library: pip install 'fieldlens[data]'") from None


def _unreadable(what: str, error: Exception) -> BadInput:
    return BadInput(f"{what} cannot be read: {' '.join(str(error).split()) or type(error).__name__}")


def hub(text: str) -> tuple[dict[str, Any], list[Part]]:
    what = f"corpus '{text}', which is not a path here but may be a Hugging Face dataset,"
    library = _datasets(what)
    try:
        loaded = library.load_dataset(text)
    except Exception as error:  # no network, no such dataset, no permission: each library has its own classes
        raise _unreadable(what, error) from error
    return _tables(library, text, loaded, lambda split: [])


def saved(path: Path) -> tuple[dict[str, Any], list[Part]]:
    """A folder written by save_to_disk; its Arrow files are what is hashed."""
    library = _datasets(str(path))
    try:
        loaded = library.load_from_disk(str(path))
    except Exception as error:
        raise _unreadable(str(path), error) from error
    arrow = [(name, file) for name, file in list_files(path) if file.suffix == ".arrow"]
    inside = (path / "dataset_dict.json").is_file()
    return _tables(
        library, str(path), loaded, lambda split: [one for one in arrow if not inside or one[0].startswith(f"{split}/")]
    )


def _tables(
    library: Any, what: str, loaded: Any, files: Callable[[str], Sequence[tuple[str, Path]]]
) -> tuple[dict[str, Any], list[Part]]:
    """A part for each named split; `train` alone is what the library calls a dataset without splits."""
    tables = dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
    names = [name for name in tables if ROLE.fullmatch(name)]
    kept = split_roles(names) if "train" in names and len(names) > 1 else None
    parts: list[Part] = [
        DatasetSplit(what, kept[name] if kept else None, _text_only(tables[name]), files(name))
        for name in (kept or tables)
    ]
    return {"datasets": library.__version__, "left out": sorted(set(tables) - set(kept or tables))}, parts


def _text_only(rows: Any) -> Any:
    """Leave the other columns unread."""
    return rows.select_columns("text") if "text" in (rows.column_names or ()) else rows


def parquet(
    text: str, files: Sequence[tuple[str, Path]], roles: dict[str, str] | None
) -> tuple[dict[str, Any], list[Part]]:
    """Parquet files, streamed: nothing is copied into the library's own cache."""
    library = _datasets(text)
    for name, path in files:
        if path.suffix.lower() != ".parquet" and not ASIDE.fullmatch(path.name):
            raise BadInput(f"corpus '{text}' mixes Parquet and other files: {name}")
    parts: list[Part] = []
    for name, path in files:
        if path.suffix.lower() == ".parquet":
            try:
                found = {"all": glob.escape(str(path.resolve()))}
                rows = library.load_dataset("parquet", data_files=found, split="all", streaming=True)
            except Exception as error:
                raise _unreadable(str(path), error) from error
            parts.append(DatasetSplit(str(path), roles[name] if roles else None, _text_only(rows), [(name, path)]))
    return {"datasets": library.__version__}, parts

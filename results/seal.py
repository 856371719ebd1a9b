"""Seal the results that version 0.1 wrote: add the hashes of arrays and of the JSON itself, and verify every number.

Example: python results/seal.py results/paper

Arrays are not touched. Each JSON file keeps its content and gains `arrays_sha256` (if it has arrays) and `seal`;
result.json lists the new hashes of its files, and timings.json with them. A sealed folder is only verified.
"""

import json
import sys
from pathlib import Path
from typing import Any

from fieldlens.storage.atomic import hash_of
from fieldlens.storage.results import ARRAYS
from fieldlens.storage.sealed import SEAL, read_sealed, write_sealed
from fieldlens.study.result_folder import RECORD
from fieldlens.study.results import read_result


def seal_file(path: Path) -> None:
    """Add the hash of the arrays beside a JSON file, and its own."""
    content = json.loads(path.read_bytes())
    arrays = path.with_suffix(".npz")
    more = {ARRAYS: hash_of(arrays)} if arrays.is_file() else {}
    write_sealed(path, content | more)
    after = read_sealed(path)
    if {key: value for key, value in after.items() if key != ARRAYS} != content:
        sys.exit(f"{path}: the content changed")


def seal_folder(folder: Path) -> str:
    """Seal one result folder; its state before."""
    record: dict[str, Any] = json.loads((folder / RECORD).read_bytes())
    if SEAL in record:
        read_result(folder)
        return "sealed already"
    altered = [name for name, expected in record["files"].items() if hash_of(folder / name) != expected]
    if altered:
        sys.exit(f"{folder}: {', '.join(altered)} differ from what result.json says")
    for name in record["files"]:
        if name.endswith(".json"):
            seal_file(folder / name)
    names = [*record["files"], *(["timings.json"] if (folder / "timings.json").is_file() else [])]
    write_sealed(folder / RECORD, record | {"files": {name: hash_of(folder / name) for name in names}})
    read_result(folder)
    return "sealed"


def main() -> None:
    counts: dict[str, int] = {}
    for root in map(Path, sys.argv[1:] or ["results/paper"]):
        for record in sorted(root.glob(f"*/{RECORD}")):
            state = seal_folder(record.parent)
            counts[state] = counts.get(state, 0) + 1
        for path in sorted((root / "parity").glob("*.json")):
            if SEAL not in json.loads(path.read_bytes()):
                seal_file(path)
                counts["parity"] = counts.get("parity", 0) + 1
    print(", ".join(f"{count} {state}" for state, count in counts.items()))


if __name__ == "__main__":
    main()

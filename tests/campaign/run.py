"""Runs the pieces of the campaign one after another, at low priority, and writes what came out into one JSON.

Example: PYTHONPATH=tests python -m campaign.run --minutes 60

Stopped or interrupted, the same command goes on with the next case. The record belongs to one state of the source.
"""

import argparse
import dataclasses
import hashlib
import importlib
import json
import os
import platform
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from campaign.piece import SEED, Outcome, Piece

ROOT = Path(__file__).parents[2]
PIECES = ("flips", "disk", "kills", "memory", "hostile", "fuzz", "browser", "studies", "study_disk", "planted")
NOTES = 40
"""Maximum number of notes of a piece in the JSON."""


def source_hash() -> str:
    """Hash of the library, of the campaign and of the planted bugs: another state of them begins a new record."""
    library = (file for file in (ROOT / "src").rglob("*") if file.is_file() and file.suffix != ".pyc")
    files = sorted([*library, *(ROOT / "tests" / "campaign").glob("*.py"), ROOT / "tests" / "plant.py"])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def read_record(path: Path) -> dict[str, Any]:
    """What came out so far; empty if the source has changed since."""
    empty = {"source": source_hash(), "pieces": {}}
    record = json.loads(path.read_text()) if path.exists() else empty
    if record["source"] != empty["source"]:
        print(f"the source has changed since {path} was begun: starting over", flush=True)
        return empty
    return record


def perform(piece: Piece, record: dict[str, Any], path: Path, end: float, count: int | None) -> None:
    """Run the cases of a piece that are not recorded yet, until the time is over; at most `count` in all."""
    entry = record["pieces"].setdefault(piece.name, {"promise": piece.promise, "seconds": 0.0, "outcomes": {}})
    if entry.get("complete") or time.monotonic() > end:
        return
    with tempfile.TemporaryDirectory(prefix=f"campaign-{piece.name}-") as name:
        start = time.monotonic()
        context = piece.prepare(Path(name))
        cases = list(piece.cases(context))
        entry["cases"], saved = len(cases), time.monotonic()
        entry["outcomes"] = {case: outcome for case, outcome in entry["outcomes"].items() if case in set(cases)}
        for case in cases if count is None else cases[:: max(1, len(cases) // count)]:
            if case in entry["outcomes"]:
                continue
            if time.monotonic() > end:
                break
            outcome = piece.run(context, case)
            entry["outcomes"][case] = dataclasses.asdict(outcome)
            if outcome.wrong:
                print(f"{piece.name}, {case}: {outcome.notes}", flush=True)
            if time.monotonic() - saved > 5:
                saved = time.monotonic()
                _save(record, entry, start, path)
                start = saved
        entry["complete"] = entry["outcomes"].keys() == set(cases)
        _save(record, entry, start, path)
    total = totals(entry)
    print(f"{piece.name}: {len(entry['outcomes'])} of {len(cases)} cases, {total}", flush=True)


def _save(record: dict[str, Any], entry: dict[str, Any], start: float, path: Path) -> None:
    entry["seconds"] += time.monotonic() - start
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(record, indent=1))
    temporary.replace(path)


def totals(entry: dict[str, Any]) -> dict[str, int]:
    """Trials of a piece, by what came out."""
    keys = [field.name for field in dataclasses.fields(Outcome) if field.name != "notes"]
    return {key: sum(outcome[key] for outcome in entry["outcomes"].values()) for key in keys}


def summary(record: dict[str, Any]) -> dict[str, Any]:
    """The JSON that the documentation shows: counts, seed, versions, and what is worth reading of the notes."""
    pieces = []
    for name, entry in record["pieces"].items():
        notes = [f"{case}: {note}" for case, outcome in entry["outcomes"].items() for note in outcome["notes"]]
        pieces.append(
            {
                "name": name,
                "promise": entry["promise"],
                "cases": entry["cases"],
                "done": len(entry["outcomes"]),
                **totals(entry),
                "seconds": round(entry["seconds"]),
                "notes": list(dict.fromkeys(notes))[:NOTES],
            }
        )
    return {
        "source": record["source"],
        "seed": SEED,
        "versions": {
            name: version(name) for name in ("fieldlens", "torch", "transformers", "tokenizers", "safetensors")
        }
        | {"python": platform.python_version()},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "pieces": pieces,
    }


def main() -> None:
    """Run the pieces that were named, or all."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("pieces", nargs="*", help=f"pieces to run: {', '.join(PIECES)}; default: all")
    options.add_argument("--minutes", type=float, default=60.0, help="stop after so long; the same command goes on")
    options.add_argument("--cases", type=int, help="run about so many cases of each piece, spread evenly: a trial")
    options.add_argument("--record", type=Path, default=ROOT / "campaign" / "record.json", help="every outcome so far")
    options.add_argument("--out", type=Path, help="the JSON; default: docs/campaign.json, none for a trial")
    arguments = options.parse_args()
    if unknown := set(arguments.pieces) - set(PIECES):
        sys.exit(f"no such piece: {', '.join(sorted(unknown))}; there are {', '.join(PIECES)}")
    os.nice(10)
    torch.set_num_threads(1)  # children are forked: no other thread may be alive
    record, end = read_record(arguments.record), time.monotonic() + 60 * arguments.minutes
    for name in arguments.pieces or PIECES:
        perform(importlib.import_module(f"campaign.{name}").PIECE, record, arguments.record, end, arguments.cases)
    out = arguments.out or (None if arguments.cases else ROOT / "docs" / "campaign.json")
    if out is not None:
        out.write_text(json.dumps(summary(record), indent=1, ensure_ascii=False) + "\n")
    left = [name for name in PIECES if not record["pieces"].get(name, {}).get("complete")]
    print(f"left: {', '.join(left) or 'nothing'}")
    sys.exit(1 if any(totals(entry)["wrong"] for entry in record["pieces"].values()) else 0)


if __name__ == "__main__":
    main()

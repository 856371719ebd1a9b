"""Register the study `paper` and the rules of its claims, or record a later change of them.

Examples:
  python results/register.py                                         # before any result exists
  fieldlens paper claims --json > before.json                        # later: the verdicts before the change,
  python results/register.py --reason "…" --before before.json       # then the change, recorded as exploratory

Without --reason it refuses to touch rules or a study that judge existing results.
"""

import argparse
import datetime
import json
import sys
from pathlib import Path

from fieldlens.paper.registration import (
    FILE,
    addendum,
    changed,
    read_registration,
    record_change,
    registration,
    unrecorded,
)
from fieldlens.paper.results import PaperResults
from fieldlens.storage.results import write_json
from fieldlens.study.plan import read_study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", default="paper")
    parser.add_argument("--reason")
    parser.add_argument("--before", type=Path, help="output of fieldlens paper claims --json before the change")
    options = parser.parse_args()
    study = read_study(options.study)
    results = PaperResults(study, Path("results") / study.name)
    registered, today = read_registration(results.folder), datetime.datetime.now(datetime.UTC).date().isoformat()
    if registered is not None and (extended := addendum(registered, results, today)) != registered:
        write_json(results.folder / FILE, extended)
        print(f"{results.folder / FILE}: added {', '.join(extended['addenda'][-1]['sha256'])}")
        return
    problems = [] if registered is None else unrecorded(registered, results)
    if registered is not None and not changed(registered, study):
        print(f"{results.folder / FILE}: nothing to record, registered on {registered['date']}")
        return
    if problems and options.reason is None:
        sys.exit(f"results exist that these judge, give --reason and --before: {', '.join(problems)}")
    if registered is not None and problems:
        claims = json.loads(options.before.read_bytes())["claims"] if options.before else []
        words = (f"{claim['verdict']}: {claim['reason']}" if claim["reason"] else claim["verdict"] for claim in claims)
        before = dict(zip((claim["name"] for claim in claims), words, strict=True))
        content = record_change(registered, results, today, options.reason, before)
    else:
        kept = {key: registered[key] for key in ("changes", "addenda") if key in registered} if registered else {}
        content = registration(study, today) | kept
    write_json(results.folder / FILE, content)
    print(f"{results.folder / FILE}: {len(content['controls'])} rules, {content['runs']} runs, {content['date']}")


main()

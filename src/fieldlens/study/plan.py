"""A study file and the jobs that it expands to. All of it is validated here, before any job starts.

A job is one training run with its evaluations and its measurement. Each of the three has its own configuration hash,
over everything that affects its numbers: a new protocol version repeats the evaluation, not the training.
"""

import dataclasses
import itertools
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from fieldlens.core.errors import BadInput, unknown
from fieldlens.core.format import slug
from fieldlens.data.corpus import BUILT_IN, open_corpus
from fieldlens.evaluation.protocols import options as protocol_options
from fieldlens.evaluation.request import EvalRequest
from fieldlens.receptive.request import MeasureRequest
from fieldlens.receptive.result import RULES
from fieldlens.schemes.spec import canonical, source_of
from fieldlens.storage.atomic import hash_of
from fieldlens.storage.sealed import digest
from fieldlens.training.recipe import Recipe, identity, recipe_from
from fieldlens.training.recipe import recipe as named_recipe
from fieldlens.training.trainer import check_shape

VERSION = 1
"""Version of the configuration hashes."""

EVALUATE = {
    "lengths": list, "segments": int, "protocol": str, "window": int, "method": str, "target_seed": int, "split": str,
    "models": list, **{name: option.kind for name, option in protocol_options().items()},
}  # fmt: skip
MEASURE = {
    "length": int, "segments": int, "target": str, "average": str, "window": int, "target_seed": int, "split": str,
    "models": list,
}  # fmt: skip
KEYS = {
    "title": str, "preset": str, "order": str, "models": list, "corpora": list, "seeds": list, "recipe": dict,
    "evaluate": (dict, list), "measure": (dict, list), "data": dict,
}  # fmt: skip
WORDS = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}
_ABSENT = object()
MEASURE_BASELINE = {
    "length": None, "segments": 20, "target": "log-likelihood", "average": "shares", "window": None, "target_seed": 0,
    "split": "test",
}  # fmt: skip
"""Options of a measurement with their defaults in version 1 of the hashes: these values are left out of the hash."""

ORDERS = ("seeds", "rows")  # all models of a seed and corpus before the next ones, or models as they are listed

BY_STUDY = {"scheme", "corpus", "seed"}
"""Recipe fields that a study file sets by its own keys, not in [recipe]."""


@dataclass(frozen=True)
class Job:
    """One training run of a study, with its evaluations and its measurement."""

    recipe: Recipe
    """Its corpus is a name, not a path."""
    evaluations: tuple[dict[str, Any], ...]
    measurement: dict[str, Any] | None

    @cached_property
    def training_hash(self) -> str:
        fields = identity(self.recipe)
        if self.recipe.tokenizer is not None:  # by content, not by path
            fields["tokenizer"] = hash_of(Path(self.recipe.tokenizer) / "tokenizer.json")
        return _config_hash({"recipe": fields, **source_of(self.recipe.scheme)})

    def evaluation_hash(self, request: Mapping[str, Any]) -> str:
        asked = EvalRequest(None, **request_fields(request))
        about = {**asked.plan(request["lengths"], None).about(), "split": asked.split}
        about |= {"method": asked.method} if asked.method else {}  # older hashes have no such key
        return _config_hash({"training": self.training_hash, **about})

    @cached_property
    def measurement_hash(self) -> str | None:
        if self.measurement is None:
            return None
        options = {key: value for key, value in self.measurement.items() if value != MEASURE_BASELINE.get(key, _ABSENT)}
        return _config_hash({"training": self.training_hash, "rules": RULES, **options})

    @cached_property
    def config_hashes(self) -> dict[str, Any]:
        """The hashes of training, evaluations and measurement, as a result records them."""
        return {
            "training": self.training_hash,
            "evaluations": [self.evaluation_hash(request) for request in self.evaluations],
            "measurement": self.measurement_hash,
        }

    @cached_property
    def name(self) -> str:
        """The name of the job's folders."""
        recipe = self.recipe
        return f"{slug(recipe.scheme)}-{recipe.corpus}-{recipe.seed}-{self.training_hash[:8]}"

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def job_from(data: Mapping[str, Any]) -> Job:
    """A job from its JSON form."""
    return Job(recipe_from(data["recipe"]), tuple(data["evaluations"]), data["measurement"])


@dataclass(frozen=True)
class Study:
    """The content of a study file."""

    name: str
    title: str
    jobs: tuple[Job, ...]
    whole: tuple[Job, ...]
    """All jobs of the study file; `jobs` may be a selection."""
    folder: Path
    """The folder of the study file, which may contain corpora."""
    pins: dict[str, str]
    """The required fingerprint of a corpus, by its name."""

    def place(self, corpus: str, corpora: Path | None) -> str:
        """The path of a corpus in `corpora` or next to the study file; otherwise its name."""
        for folder in (corpora, self.folder):
            if folder is not None and (folder / corpus).exists():
                return str((folder / corpus).resolve())
        return corpus

    def only(self, patterns: Sequence[str]) -> "Study":
        """The jobs whose names match any of the patterns; all jobs if there are no patterns."""
        if not patterns:
            return self
        jobs = tuple(job for job in self.jobs if any(fnmatch(job.name, pattern) for pattern in patterns))
        if not jobs:
            raise BadInput(
                f"no run of study '{self.name}' matches {', '.join(patterns)}; run names look like {self.jobs[0].name}"
            )
        return dataclasses.replace(self, jobs=jobs)

    def has(self, corpus: str, corpora: Path | None) -> bool:
        """Whether a corpus is available on this machine."""
        return corpus in BUILT_IN or self.place(corpus, corpora) != corpus

    def check_corpora(self, corpora: Path | None, jobs: Sequence[Job]) -> None:
        """Raise BadInput unless every corpus of the jobs is available."""
        if corpora is not None and not corpora.is_dir():
            raise BadInput(f"--corpora must be a folder, got {corpora}")
        for corpus in dict.fromkeys(job.recipe.corpus for job in jobs):
            if not self.has(corpus, corpora):
                raise BadInput(
                    f"study '{self.name}': corpus '{corpus}' is not built in ({', '.join(BUILT_IN)}) and was found "
                    f"neither next to the study file nor in --corpora {corpora or 'FOLDER'}: "
                    f"give --corpora with a folder that contains a file or folder '{corpus}'"
                )
            open_corpus(self.place(corpus, corpora))


def built_in() -> dict[str, str]:
    """The built-in study files, by name."""
    return {
        file.name.removesuffix(".toml"): file.read_text("utf-8")
        for file in files("fieldlens.study").joinpath("studies").iterdir()
        if file.name.endswith(".toml")
    }


def read_study(name_or_path: str) -> Study:
    """Read a study from a file, or a built-in study by its name."""
    path = Path(name_or_path)
    if path.is_file():
        try:
            text, name, folder = path.read_text("utf-8-sig"), path.stem, path.parent
        except UnicodeDecodeError as error:
            raise BadInput(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    elif name_or_path in built_in():
        text, name, folder = built_in()[name_or_path], name_or_path, Path()
    elif path.suffix or path.exists():
        raise BadInput(f"study '{name_or_path}' is not a file; built-in studies: {', '.join(sorted(built_in()))}")
    else:
        raise unknown("study", name_or_path, built_in())
    try:
        return _study(tomllib.loads(text), name, folder)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(f"{name_or_path} is not TOML, or nested too deeply: {error}") from None
    except BadInput as error:
        raise BadInput(f"study '{name}': {error}") from None


def _study(content: dict[str, Any], name: str, folder: Path) -> Study:
    _check_keys("key", content, KEYS)
    _check_keys("order", {content.get("order", "seeds"): 0}, dict.fromkeys(ORDERS, int))
    preset = named_recipe(content.get("preset", "glance"))
    changes = _recipe_changes(content.get("recipe", {}))
    models = [fields for entry in _non_empty(content, "models", []) for fields in _rows(entry)]
    corpora = [_corpus_name(entry) for entry in _non_empty(content, "corpora", ["stdlib"])]
    seeds = _non_empty(content, "seeds", [preset.seed])
    if not all(type(seed) is int and 0 <= seed < 2**63 for seed in seeds):
        raise BadInput(f"seeds must be integers from 0 to 2^63 - 1, got {seeds!r}")
    evaluations = [_request(table, "evaluate", EVALUATE) for table in _tables(content, "evaluate")]
    measurements = [_request(table, "measure", MEASURE) for table in _tables(content, "measure")]
    _check_names(models, corpora, seeds, [*evaluations, *measurements])
    jobs: dict[str, Job] = {}
    for model, corpus, seed in itertools.product(models, corpora, seeds):
        if corpus in model.get("corpora", corpora) and seed in model.get("seeds", seeds):
            fields = {key: value for key, value in model.items() if key not in ("corpora", "seeds")}
            recipe = dataclasses.replace(preset, **{**changes, **fields, "corpus": corpus, "seed": seed})
            job = _job(recipe, evaluations, measurements)
            jobs[job.training_hash] = job
    if not jobs:
        raise BadInput("the study has no runs: every model has an empty list of corpora or seeds")
    ordered = list(jobs.values())
    if content.get("order", "seeds") == "seeds":
        ordered.sort(key=lambda job: (seeds.index(job.recipe.seed), corpora.index(job.recipe.corpus)))
    pins = content.get("data", {})
    _check_keys("corpus", pins, dict.fromkeys(corpora, str))
    return Study(name, content.get("title", name), tuple(ordered), tuple(ordered), folder, pins)


def _check_names(
    models: Sequence[dict[str, Any]], corpora: Sequence[str], seeds: Sequence[int], requests: Sequence[dict[str, Any]]
) -> None:
    """Check that the corpora, seeds and models that a table names belong to the study."""
    schemes = {fields["scheme"] for fields in models}
    for fields in models:
        for key, allowed in (("corpora", corpora), ("seeds", seeds)):
            for value in fields.get(key, []):
                if value not in allowed:
                    raise BadInput(f"model {fields['scheme']}: {value!r} is not among the study's {key}")
    for request in requests:
        for spec in request.get("models", []):
            if spec not in schemes:
                raise unknown("model", spec, schemes)


def _job(recipe: Recipe, evaluations: Sequence[dict[str, Any]], measurements: Sequence[dict[str, Any]]) -> Job:
    """One run with its evaluations and measurement, validated as far as that is possible without data."""
    own_evaluations, own_measurements = (
        [_without_models(request) for request in requests if recipe.scheme in request.get("models", [recipe.scheme])]
        for requests in (evaluations, measurements)
    )
    if len(own_measurements) > 1:
        raise BadInput(f"{recipe.scheme} is measured {len(own_measurements)} times: at most one [measure] is allowed")
    job = Job(recipe, tuple(own_evaluations), own_measurements[0] if own_measurements else None)
    check_shape(recipe)
    for request in job.evaluations:
        job.evaluation_hash(request)
    if job.measurement is not None:
        MeasureRequest(**job.measurement)
    return job


def _rows(entry: Any) -> list[dict[str, Any]]:
    """The models of one entry: one, or with `schemes` one for each scheme with the same other fields."""
    if not isinstance(entry, dict) or "schemes" not in entry:
        return [_model_fields(entry)]
    shared = {key: value for key, value in entry.items() if key != "schemes"}
    if "scheme" in shared or not isinstance(entry["schemes"], list):
        raise BadInput(f"schemes must be a list of specs, without a key 'scheme' beside it, got {entry!r}")
    return [_model_fields({**shared, "scheme": scheme}) for scheme in entry["schemes"]]


def _model_fields(entry: Any) -> dict[str, Any]:
    """A model: a spec, or a table with a scheme, changes to the recipe, and the corpora and seeds to use."""
    fields = {"scheme": entry} if isinstance(entry, str) else entry
    if not isinstance(fields, dict) or not isinstance(fields.get("scheme"), str):
        raise BadInput(f"a model must be a scheme's spec or a table with the key 'scheme', got {entry!r}")
    own = {key: fields[key] for key in ("corpora", "seeds") if key in fields}
    _check_keys("key", own, {"corpora": list, "seeds": list})
    rest = {key: value for key, value in fields.items() if key not in ("scheme", *own)}
    return {**_recipe_changes(rest), **own, "scheme": canonical(fields["scheme"])}


def _recipe_changes(fields: dict[str, Any]) -> dict[str, Any]:
    kinds = {key: type(value) for key, value in dataclasses.asdict(Recipe(tokenizer="", max_bytes=1)).items()}
    _check_keys("recipe field", fields, {key: kind for key, kind in kinds.items() if key not in BY_STUDY})
    if "tokenizer" in fields and not Path(fields["tokenizer"], "tokenizer.json").is_file():
        raise BadInput(f"tokenizer must be a folder with a tokenizer.json, got '{fields['tokenizer']}'")
    return fields


def _corpus_name(name: Any) -> str:
    if not isinstance(name, str) or not name.isprintable() or name != Path(name).name or name in ("", ".", ".."):
        raise BadInput(f"a corpus must be a name without a path, got {name!r}: --corpora gives the folder")
    return name


def _request(table: dict[str, Any], kind: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The table of an evaluation or a measurement, with canonical specs of its models."""
    _check_keys(f"{kind} key", table, kinds)
    if kind == "evaluate":
        lengths = table.get("lengths")
        if not isinstance(lengths, list) or not lengths or not all(type(length) is int for length in lengths):
            raise BadInput(f"evaluate: lengths must be a list of integers, got {lengths!r}")
    return {**table, "models": [canonical(str(spec)) for spec in table["models"]]} if "models" in table else table


def _without_models(request: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in request.items() if key != "models"}


def request_fields(request: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an EvalRequest, with the options of the protocol in `options`."""
    fields = {key: value for key, value in request.items() if key not in protocol_options()}
    options = {key: request.get(key) for key in protocol_options()}
    return {**fields, "lengths": tuple(request["lengths"]), "options": options}


def _non_empty(content: dict[str, Any], key: str, default: list[Any]) -> list[Any]:
    values = content.get(key, default)
    if not values:
        raise BadInput(f"{key} must be a non-empty list, got {content.get(key)!r}")
    return values


def _tables(content: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """A table, or a list of tables, as a list."""
    tables = content.get(key, [])
    tables = [tables] if isinstance(tables, dict) else tables
    if not all(isinstance(table, dict) for table in tables):
        raise BadInput(f"{key} must be a table or a list of tables, got {tables!r}")
    return tables


def _check_keys(kind: str, table: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """Check that every key is allowed and that its value has the right type."""
    for key, value in table.items():
        if key not in kinds:
            raise unknown(kind, key, kinds)
        allowed = kinds[key] if isinstance(kinds[key], tuple) else (kinds[key],)
        whole = type(value) is int and float in allowed
        if (type(value) not in allowed and not whole) or (type(value) is float and not math.isfinite(value)):
            raise BadInput(f"{key} must be {' or '.join(WORDS[expected] for expected in allowed)}, got {value!r}")


def _config_hash(content: dict[str, Any]) -> str:
    return digest({"version": VERSION, **content})[:16]

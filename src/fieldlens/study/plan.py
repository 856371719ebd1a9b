"""A study file, and the jobs that it expands to. Everything that can be wrong with it is found here, before any work.

A job is one run: a training, its evaluations and its measurement. Each of the three has an address of its own, made
from what decides its numbers, so that another protocol version does not train again.
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
from fieldlens.data.corpus import BUILT_IN, open_corpus
from fieldlens.evaluation.command import EvalRequest, slug
from fieldlens.receptive.result import RULES, MeasureRequest
from fieldlens.schemes.spec import canonical, source_of
from fieldlens.storage.content_cache import digest, hash_of
from fieldlens.training.recipe import Recipe
from fieldlens.training.recipe import recipe as named_recipe
from fieldlens.training.trainer import check_shape

VERSION = 1
"""Of what a study's addresses mean."""

EVALUATE = {
    "lengths": list, "segments": int, "protocol": str, "window": int, "k": int, "stride": int, "target_seed": int,
    "split": str, "models": list,
}  # fmt: skip
MEASURE = {
    "length": int, "segments": int, "target": str, "average": str, "window": int, "target_seed": int, "split": str,
    "models": list,
}  # fmt: skip
KEYS = {
    "title": str, "preset": str, "models": list, "corpora": list, "seeds": list, "recipe": dict,
    "evaluate": (dict, list), "measure": (dict, list), "data": dict,
}  # fmt: skip
WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}
BY_STUDY = {"scheme", "corpus", "seed"}
"""Fields of a recipe that have keys of their own."""


@dataclass(frozen=True)
class Job:
    """One run of a study."""

    recipe: Recipe
    """With the corpus's name, wherever it lies."""
    evaluations: tuple[dict[str, Any], ...]
    measurement: dict[str, Any] | None

    @cached_property
    def training_hash(self) -> str:
        fields = dataclasses.asdict(self.recipe)
        if self.recipe.tokenizer is not None:  # by what it is, wherever it lies
            fields["tokenizer"] = hash_of(Path(self.recipe.tokenizer) / "tokenizer.json")
        return _address({"recipe": fields, **source_of(self.recipe.scheme)})

    def evaluation_hash(self, asked: Mapping[str, Any]) -> str:
        plan = EvalRequest(None, **question(asked)).plan(asked["lengths"], None)
        return _address({"training": self.training_hash, **plan.about(), "split": asked.get("split", "test")})

    @cached_property
    def measurement_hash(self) -> str | None:
        if self.measurement is None:
            return None
        return _address({"training": self.training_hash, "rules": RULES, **self.measurement})

    @cached_property
    def config_hashes(self) -> dict[str, Any]:
        """All three kinds, as a result keeps them."""
        return {
            "training": self.training_hash,
            "evaluations": [self.evaluation_hash(asked) for asked in self.evaluations],
            "measurement": self.measurement_hash,
        }

    @cached_property
    def name(self) -> str:
        """The name of its folders."""
        recipe = self.recipe
        return f"{slug(recipe.scheme)}-{recipe.corpus}-{recipe.seed}-{self.training_hash[:8]}"

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def job_from(data: Mapping[str, Any]) -> Job:
    return Job(Recipe(**data["recipe"]), tuple(data["evaluations"]), data["measurement"])


@dataclass(frozen=True)
class Study:
    """What a study file asks for."""

    name: str
    title: str
    jobs: tuple[Job, ...]
    whole: tuple[Job, ...]
    """All of its jobs, also where only some are asked for."""
    folder: Path
    """Where the file lies; its corpora may lie there too."""
    pins: dict[str, str]
    """The fingerprint that the text of a corpus must have, by the corpus's name."""

    def place(self, corpus: str, corpora: Path | None) -> str:
        """Where a corpus lies: in the folder of corpora, beside the study file, or wherever its name leads."""
        for folder in (corpora, self.folder):
            if folder is not None and (folder / corpus).exists():
                return str((folder / corpus).resolve())
        return corpus

    def only(self, patterns: Sequence[str]) -> "Study":
        """The jobs whose names match one of these patterns; all if there is none."""
        if not patterns:
            return self
        jobs = tuple(job for job in self.jobs if any(fnmatch(job.name, pattern) for pattern in patterns))
        if not jobs:
            raise BadInput(
                f"no run of study '{self.name}' is named like {', '.join(patterns)}; one is {self.jobs[0].name}"
            )
        return dataclasses.replace(self, jobs=jobs)

    def has(self, corpus: str, corpora: Path | None) -> bool:
        """Whether a corpus can be read here."""
        return corpus in BUILT_IN or self.place(corpus, corpora) != corpus

    def check_corpora(self, corpora: Path | None, jobs: Sequence[Job]) -> None:
        """Every corpus of these jobs must be there."""
        if corpora is not None and not corpora.is_dir():
            raise BadInput(f"--corpora {corpora} is no folder")
        for corpus in dict.fromkeys(job.recipe.corpus for job in jobs):
            if not self.has(corpus, corpora):
                raise BadInput(
                    f"study '{self.name}': corpus '{corpus}' is not built in ({', '.join(BUILT_IN)}) and lies neither "
                    f"beside the study file nor in --corpora {corpora or 'FOLDER'}: "
                    f"give --corpora with a folder that has a file or folder '{corpus}' in it"
                )
            open_corpus(self.place(corpus, corpora))


def built_in() -> dict[str, str]:
    """The texts of the studies that come with fieldlens, by name."""
    return {
        file.name.removesuffix(".toml"): file.read_text("utf-8")
        for file in files("fieldlens.study").joinpath("studies").iterdir()
        if file.name.endswith(".toml")
    }


def read_study(given: str) -> Study:
    """A study by its file or its built-in name."""
    path = Path(given)
    if path.is_file():
        try:
            text, name, folder = path.read_text("utf-8-sig"), path.stem, path.parent
        except UnicodeDecodeError as error:
            raise BadInput(f"{given} is not UTF-8: {error.reason} at byte {error.start}") from None
    elif given in built_in():
        text, name, folder = built_in()[given], given, Path()
    elif path.suffix or path.exists():
        raise BadInput(f"study '{given}' is no file; built in: {', '.join(sorted(built_in()))}")
    else:
        raise unknown("study", given, built_in())
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{given} is not TOML: {error}") from None
    try:
        return _study(content, name, folder)
    except BadInput as error:
        raise BadInput(f"study '{name}': {error}") from None


def _study(content: dict[str, Any], name: str, folder: Path) -> Study:
    _check_keys("key", content, KEYS)
    preset = named_recipe(content.get("preset", "glance"))
    changes = _changes(content.get("recipe", {}))
    models = [_model(one) for one in _filled(content, "models", [])]
    corpora = [_corpus_name(one) for one in _filled(content, "corpora", ["stdlib"])]
    seeds = _filled(content, "seeds", [preset.seed])
    if not all(type(seed) is int and 0 <= seed < 2**63 for seed in seeds):
        raise BadInput(f"seeds are {seeds!r}: whole numbers from 0 are needed")
    evaluations = [_asked(one, "evaluate", EVALUATE) for one in _tables(content, "evaluate")]
    measurements = [_asked(one, "measure", MEASURE) for one in _tables(content, "measure")]
    _check_names(models, corpora, seeds, [*evaluations, *measurements])
    jobs: dict[str, Job] = {}
    for model, corpus, seed in itertools.product(models, corpora, seeds):
        if corpus in model.get("corpora", corpora) and seed in model.get("seeds", seeds):
            fields = {key: value for key, value in model.items() if key not in ("corpora", "seeds")}
            recipe = dataclasses.replace(preset, **{**changes, **fields, "corpus": corpus, "seed": seed})
            job = _job(recipe, evaluations, measurements)
            jobs[job.training_hash] = job
    if not jobs:
        raise BadInput("there is no run in it: the models name no corpus and seed")
    ordered = sorted(jobs.values(), key=lambda job: (seeds.index(job.recipe.seed), corpora.index(job.recipe.corpus)))
    pins = content.get("data", {})
    _check_keys("corpus", pins, dict.fromkeys(corpora, str))
    return Study(name, content.get("title", name), tuple(ordered), tuple(ordered), folder, pins)


def _check_names(
    models: Sequence[dict[str, Any]], corpora: Sequence[str], seeds: Sequence[int], questions: Sequence[dict[str, Any]]
) -> None:
    """What a table names must be in the study."""
    schemes = {fields["scheme"] for fields in models}
    for fields in models:
        for key, all_of_them in (("corpora", corpora), ("seeds", seeds)):
            for one in fields.get(key, []):
                if one not in all_of_them:
                    raise BadInput(f"{fields['scheme']} names {one!r}, which is not among the study's {key}")
    for asked in questions:
        for spec in asked.get("models", []):
            if spec not in schemes:
                raise unknown("model", spec, schemes)


def _job(recipe: Recipe, evaluations: Sequence[dict[str, Any]], measurements: Sequence[dict[str, Any]]) -> Job:
    """One run with what is asked of it; what is impossible is found by making everything that needs no data."""
    some, chosen = (
        [one for one in (_for(asked, recipe.scheme) for asked in questions) if one is not None]
        for questions in (evaluations, measurements)
    )
    if len(chosen) > 1:
        raise BadInput(f"{recipe.scheme} is to be measured {len(chosen)} times: once is all there is")
    job = Job(recipe, tuple(some), chosen[0] if chosen else None)
    check_shape(recipe)
    for asked in job.evaluations:
        job.evaluation_hash(asked)
    if job.measurement is not None:
        MeasureRequest(**job.measurement)
    return job


def _model(one: Any) -> dict[str, Any]:
    """A model: a spec, or a table with a scheme, what differs from the preset, and the corpora and seeds it is for."""
    fields = {"scheme": one} if isinstance(one, str) else one
    if not isinstance(fields, dict) or not isinstance(fields.get("scheme"), str):
        raise BadInput(f"a model is {one!r}: a scheme's spec, or a table with one, is needed")
    own = {key: fields[key] for key in ("corpora", "seeds") if key in fields}
    _check_keys("key", own, {"corpora": list, "seeds": list})
    rest = {key: value for key, value in fields.items() if key not in ("scheme", *own)}
    return {**_changes(rest), **own, "scheme": canonical(fields["scheme"])}


def _changes(fields: dict[str, Any]) -> dict[str, Any]:
    kinds = {key: type(value) for key, value in dataclasses.asdict(Recipe(tokenizer="", max_bytes=1)).items()}
    _check_keys("recipe field", fields, {key: kind for key, kind in kinds.items() if key not in BY_STUDY})
    if "tokenizer" in fields and not Path(fields["tokenizer"], "tokenizer.json").is_file():
        raise BadInput(f"tokenizer '{fields['tokenizer']}' is no folder with a tokenizer.json")
    return fields


def _corpus_name(one: Any) -> str:
    if not isinstance(one, str) or not one.isprintable() or one != Path(one).name or one in ("", ".", ".."):
        raise BadInput(f"a corpus is {one!r}: the name of a folder is needed; --corpora says where it lies")
    return one


def _asked(one: dict[str, Any], what: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    _check_keys(f"{what} key", one, kinds)
    if what == "evaluate":
        lengths = one.get("lengths")
        if not isinstance(lengths, list) or not lengths or not all(type(length) is int for length in lengths):
            raise BadInput(f"evaluate's lengths are {lengths!r}: a list of whole numbers is needed")
    return {**one, "models": [canonical(str(spec)) for spec in one["models"]]} if "models" in one else one


def _for(asked: dict[str, Any], spec: str) -> dict[str, Any] | None:
    """What is asked of a model; nothing if it is not among those named."""
    if "models" in asked and spec not in asked["models"]:
        return None
    return {key: value for key, value in asked.items() if key != "models"}


def question(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of evaluate's question, with the protocol's options apart."""
    fields = {key: value for key, value in asked.items() if key not in ("k", "stride")}
    return {**fields, "lengths": tuple(asked["lengths"]), "options": {key: asked.get(key) for key in ("k", "stride")}}


def _filled(content: dict[str, Any], key: str, usual: list[Any]) -> list[Any]:
    found = content.get(key, usual)
    if not found:
        raise BadInput(f"{key} is {content.get(key)!r}: a list that is not empty is needed")
    return found


def _tables(content: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """One table, or a list of them."""
    found = content.get(key, [])
    found = [found] if isinstance(found, dict) else found
    if not all(isinstance(one, dict) for one in found):
        raise BadInput(f"{key} is {found!r}: a table, or several, is needed")
    return found


def _check_keys(kind: str, given: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """Keys that are known, with values of their kind."""
    for key, value in given.items():
        if key not in kinds:
            raise unknown(kind, key, kinds)
        wanted = kinds[key] if isinstance(kinds[key], tuple) else (kinds[key],)
        whole = type(value) is int and float in wanted
        if (type(value) not in wanted and not whole) or (type(value) is float and not math.isfinite(value)):
            raise BadInput(f"{key} is {value!r}: {' or '.join(WORDS[one] for one in wanted)} is needed")


def _address(content: dict[str, Any]) -> str:
    return digest({"version": VERSION, **content})[:16]

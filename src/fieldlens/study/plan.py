"""A study file, and the jobs that it expands to. Everything that can be wrong with it is found here, before any work.

A job is one run: a training, its evaluations and its measurement. Each of the three has an address of its own, made
from what decides its numbers, so that another protocol version does not train again.
"""

import dataclasses
import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from fieldlens.corpus import BUILT_IN, open_corpus
from fieldlens.errors import BadInput, unknown
from fieldlens.evaluate import Question, slug
from fieldlens.measure import RULES
from fieldlens.measure import Question as MeasureQuestion
from fieldlens.recipe import PRESETS, Recipe
from fieldlens.schemes import canonical, parse, scheme
from fieldlens.store import digest
from fieldlens.trainer import shape

VERSION = 1
"""Of what a study's addresses mean."""

EVALUATE = {"lengths", "segments", "protocol", "window", "k", "stride", "target_seed", "split", "models"}
MEASURE = {"length", "segments", "target", "average", "window", "target_seed", "split", "models"}
KEYS = {"title", "preset", "models", "corpora", "seeds", "recipe", "evaluate", "measure", "data"}
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
    def training_address(self) -> str:
        return _address({"recipe": dataclasses.asdict(self.recipe)})

    def evaluation_address(self, asked: Mapping[str, Any]) -> str:
        plan = Question(None, **question(asked)).plan(asked["lengths"], None)
        return _address({"training": self.training_address, **plan.about(), "split": asked.get("split", "test")})

    @cached_property
    def measurement_address(self) -> str | None:
        if self.measurement is None:
            return None
        return _address({"training": self.training_address, "rules": RULES, **self.measurement})

    @cached_property
    def addresses(self) -> dict[str, Any]:
        """All three kinds, as a result keeps them."""
        return {
            "training": self.training_address,
            "evaluations": [self.evaluation_address(asked) for asked in self.evaluations],
            "measurement": self.measurement_address,
        }

    @cached_property
    def name(self) -> str:
        """The name of its folders."""
        recipe = self.recipe
        return f"{slug(recipe.scheme)}-{recipe.corpus}-{recipe.seed}-{self.training_address[:8]}"

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

    def check_corpora(self, corpora: Path | None) -> None:
        """Every corpus must be there."""
        for corpus in dict.fromkeys(job.recipe.corpus for job in self.jobs):
            place = self.place(corpus, corpora)
            if place == corpus and corpus not in BUILT_IN:
                raise BadInput(
                    f"study '{self.name}': corpus '{corpus}' is not built in ({', '.join(BUILT_IN)}) and lies neither "
                    f"beside the study file nor in --corpora {corpora or 'FOLDER'}"
                )
            open_corpus(place)


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
            text, name, folder = path.read_text("utf-8"), path.stem, path.parent
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
    _known("key", content, KEYS)
    preset = content.get("preset", "glance")
    if preset not in PRESETS:
        raise unknown("preset", str(preset), PRESETS)
    changes = _changes(_table(content, "recipe"))
    models = [_model(one) for one in _filled(content, "models")]
    corpora = [_corpus_name(one) for one in content.get("corpora", ["stdlib"])]
    seeds = content.get("seeds", [PRESETS[preset].seed])
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        raise BadInput(f"seeds are {seeds!r}: a list of whole numbers is needed")
    evaluations = [_asked(one, "evaluate", EVALUATE) for one in _tables(content, "evaluate")]
    measurements = [_asked(one, "measure", MEASURE) for one in _tables(content, "measure")]
    schemes = {fields["scheme"] for fields in models}
    for fields in models:
        for key, all_of_them in (("corpora", corpora), ("seeds", seeds)):
            for one in fields.get(key, []):
                if one not in all_of_them:
                    raise BadInput(f"{fields['scheme']} names {one!r}, which is not among the study's {key}")
    for asked in (*evaluations, *measurements):
        for spec in asked.get("models", []):
            if spec not in schemes:
                raise unknown("model", spec, schemes)
    jobs = {}
    for model, corpus, seed in itertools.product(models, corpora, seeds):
        if corpus not in model.get("corpora", corpora) or seed not in model.get("seeds", seeds):
            continue
        fields = {key: value for key, value in model.items() if key not in ("corpora", "seeds")}
        recipe = _recipe(preset, {**changes, **fields, "corpus": corpus, "seed": seed})
        wanted = [_for(asked, fields["scheme"]) for asked in measurements]
        chosen = [one for one in wanted if one is not None]
        if len(chosen) > 1:
            raise BadInput(f"{fields['scheme']} is to be measured {len(chosen)} times: once is all there is")
        some = [_for(asked, fields["scheme"]) for asked in evaluations]
        job = Job(recipe, tuple(one for one in some if one is not None), chosen[0] if chosen else None)
        _check(job)
        jobs[job.training_address] = job
    ordered = sorted(jobs.values(), key=lambda job: (seeds.index(job.recipe.seed), corpora.index(job.recipe.corpus)))
    pins = _table(content, "data")
    _known("corpus", pins, corpora)
    return Study(name, str(content.get("title", name)), tuple(ordered), tuple(ordered), folder, pins)


def _model(one: Any) -> dict[str, Any]:
    """A model: a spec, or a table with a scheme, what differs from the preset, and the corpora and seeds it is for."""
    fields = {"scheme": one} if isinstance(one, str) else one
    if not isinstance(fields, dict) or not isinstance(fields.get("scheme"), str):
        raise BadInput(f"a model is {one!r}: a scheme's spec, or a table with one, is needed")
    own = {key: fields[key] for key in ("corpora", "seeds") if key in fields}
    if not all(isinstance(some, list) for some in own.values()):
        raise BadInput(f"{fields['scheme']}: corpora and seeds are lists")
    rest = {key: value for key, value in fields.items() if key not in ("scheme", *own)}
    return {**_changes(rest), **own, "scheme": _canonical(fields)}


def _canonical(fields: dict[str, Any]) -> str:
    parse(fields["scheme"])
    return canonical(fields["scheme"])


def _changes(fields: dict[str, Any]) -> dict[str, Any]:
    _known("recipe field", fields, {field.name for field in dataclasses.fields(Recipe)} - BY_STUDY)
    return fields


def _recipe(preset: str, fields: dict[str, Any]) -> Recipe:
    for field in dataclasses.fields(Recipe):
        if field.name in fields and field.name != "tokenizer":
            wanted = type(getattr(PRESETS["paper"], field.name)) if field.name != "max_bytes" else int
            given = fields[field.name]
            if type(given) is not wanted and not (wanted is float and type(given) is int):
                raise BadInput(f"{field.name} is {given!r}: {wanted.__name__} is needed")
    return dataclasses.replace(PRESETS[preset], **fields)


def _corpus_name(one: Any) -> str:
    if not isinstance(one, str) or not one or one != Path(one).name or one in (".", ".."):
        raise BadInput(f"a corpus is {one!r}: the name of a folder is needed; --corpora says where it lies")
    return one


def _asked(one: dict[str, Any], what: str, keys: set[str]) -> dict[str, Any]:
    _known(f"{what} key", one, keys)
    return {**one, "models": [_canonical({"scheme": str(spec)}) for spec in one["models"]]} if "models" in one else one


def _for(asked: dict[str, Any], spec: str) -> dict[str, Any] | None:
    """What is asked of a model; nothing if it is not among those named."""
    if "models" in asked and spec not in asked["models"]:
        return None
    return {key: value for key, value in asked.items() if key != "models"}


def _check(job: Job) -> None:
    """Make everything that needs no data, so that what is impossible is found at once."""
    config = shape(job.recipe, job.recipe.bpe)
    scheme(config.scheme, config.heads, config.width // config.heads)
    try:
        for asked in job.evaluations:
            lengths = asked.get("lengths")
            if not isinstance(lengths, list) or not all(type(length) is int for length in lengths):
                raise BadInput(f"evaluate's lengths are {lengths!r}: a list of whole numbers is needed")
            job.evaluation_address(asked)
        if job.measurement is not None:
            MeasureQuestion(**job.measurement)
    except TypeError as error:
        raise BadInput(f"{error}") from None


def question(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of evaluate's question, with the protocol's options apart."""
    fields = {key: value for key, value in asked.items() if key not in ("k", "stride")}
    return {**fields, "lengths": tuple(asked["lengths"]), "options": {key: asked.get(key) for key in ("k", "stride")}}


def _filled(content: dict[str, Any], key: str) -> list[Any]:
    found = content.get(key)
    if not isinstance(found, list) or not found:
        raise BadInput(f"{key} is {found!r}: a list that is not empty is needed")
    return found


def _table(content: dict[str, Any], key: str) -> dict[str, Any]:
    found = content.get(key, {})
    if not isinstance(found, dict):
        raise BadInput(f"{key} is {found!r}: a table is needed")
    return found


def _tables(content: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """One table, or a list of them."""
    found = content.get(key, [])
    found = [found] if isinstance(found, dict) else found
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise BadInput(f"{key} is {found!r}: a table, or several, is needed")
    return found


def _known(kind: str, given: Mapping[str, Any], allowed: Sequence[str] | set[str]) -> None:
    for key in given:
        if key not in allowed:
            raise unknown(kind, key, allowed)


def _address(content: dict[str, Any]) -> str:
    return digest({"version": VERSION, **content})[:16]

"""Export the models of finished runs as reference models: bf16 weights, tokenizer and model card in one sealed folder.

Example: python results/export_models.py runs/paper/sandwich-code-1236-1be5fb52 runs/paper/rotary-code-1236-dc057ee7

A run must be finished, and the results folder must contain the result of the same weights. The corpus is read to count
licences and to measure, on the validation split, how much rounding to bf16 changes the perplexity; no text is copied.
"""

import argparse
import gzip
import json
import math
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from fieldlens.core.errors import BadInput, FieldlensError
from fieldlens.evaluation.evaluate_models import evaluate_all
from fieldlens.evaluation.request import EvalRequest
from fieldlens.evaluation.result import Evaluation
from fieldlens.models.hf_export import FieldlensForCausalLM, folder_files
from fieldlens.models.loading import load
from fieldlens.models.origin import find_model
from fieldlens.schemes.spec import parse
from fieldlens.storage.folders import write_folder
from fieldlens.storage.run_dir import Run
from fieldlens.study.results import Result, read_result

LARGEST = 4 << 20
"""Largest size of a model folder in bytes."""

DESCRIPTIONS = {
    "code": "library source code in Python, C, Go, Rust, Java, C++ and JavaScript; documents are cut at 150 to 300 kB, "
    "host names of package registries are replaced",
    "latex": "LaTeX sources, mostly books: the Stacks project, textbooks, specifications, some papers",
    "prose": "English books, government web pages, proposals and essays",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--results", type=Path, default=Path("results/paper"), help="results of the study")
    parser.add_argument("--out", type=Path, default=Path("results/models"), help="folder of the reference models")
    parser.add_argument("--corpus", type=Path, help="the corpus of the runs, if it has moved")
    parser.add_argument("--segments", type=int, default=100, help="validation segments, for the effect of rounding")
    options = parser.parse_args()
    try:
        for folder in options.runs:
            print(export(folder, options.results, options.out, options.corpus, options.segments))
    except FieldlensError as error:
        sys.exit(f"export_models.py: {error}")


def export(folder: Path, results: Path, out: Path, corpus: Path | None = None, segments: int = 100) -> str:
    """Write the reference model of one run; return a line that describes it."""
    run = Run(folder)
    if run.read(run.status).get("state") != "finished":
        raise BadInput(f"{folder} is not a finished run")
    result = read_result(results / folder.name)
    model = load(find_model(str(folder)), torch.device("cpu"), torch.float32)
    evaluated = {evaluation.about["model"]["weights"] for evaluation in result.evaluations}
    if evaluated != {model.about["weights"]}:
        raise BadInput(f"{results / folder.name} is the result of other weights than {run.model}")
    place = corpus or Path(run.read(run.data)["place"])
    rounded = FieldlensForCausalLM.from_pretrained(run.model).decoder.to(torch.bfloat16)
    files = folder_files(rounded, run.model)
    about = {"run": folder.name, "weights": model.about["weights"], "address": run.read(run.config)["address"]}
    rounding = effect_of_rounding(run.model, files, result.evaluations[0], place, segments)
    name = parse(result.recipe["scheme"])[0].name
    files["README.md"] = card(name, result, rounding, licences(place)).encode()
    size = sum(map(len, files.values()))
    if size > LARGEST:
        raise BadInput(f"{out / name} would have {size:,} bytes, more than {LARGEST:,}")
    write_folder(out / name, files, about)
    return f"{out / name}: {size / 2**20:.1f} MiB; rounding changes perplexity by at most {largest(rounding):.3%}"


def effect_of_rounding(
    model: Path, files: dict[str, bytes], evaluation: Evaluation, corpus: Path, segments: int
) -> dict[int, tuple[float, float]]:
    """Perplexity by length on the validation split: of the weights as trained, and rounded."""
    with tempfile.TemporaryDirectory() as place:
        write_folder(Path(place) / "rounded", files, {})
        asked = evaluation.about["asked"]
        options = {key: asked[key] for key in ("k", "stride") if key in asked}
        request = EvalRequest(
            str(corpus), tuple(asked["lengths"]), segments, protocol=asked.get("protocol", "last-token"),
            options=options, split="validation",
        )  # fmt: skip
        pair = [str(model), str(Path(place) / "rounded")]
        machine: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float32}
        (_, trained), (_, rounded) = evaluate_all(pair, request, out=Path(place) / "evaluations", **machine)
    return {length: (trained.score(length), rounded.score(length)) for length in trained.losses}


def largest(rounding: dict[int, tuple[float, float]]) -> float:
    """The largest relative change of perplexity."""
    return max(abs(math.expm1(math.log(after) - math.log(before))) for before, after in rounding.values())


def licences(corpus: Path) -> list[tuple[str, str, int, int]]:
    """Sources of the training split, as the corpus states them: licence, source, documents and bytes."""
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for path in sorted(corpus.glob("train*.jsonl*")):
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            for line in lines:
                document = json.loads(line)
                meta = document.get("meta", {})
                count = counts[meta.get("licence", "not stated"), meta.get("source", "not stated")]
                count[0] += 1
                count[1] += len(document["text"].encode())
    return [(*key, *count) for key, count in sorted(counts.items(), key=lambda item: -item[1][1])]


def card(
    name: str, result: Result, rounding: dict[int, tuple[float, float]], sources: list[tuple[str, str, int, int]]
) -> str:
    """The model card."""
    recipe, evaluation, about = result.recipe, result.evaluations[0], result.about
    label, length = parse(recipe["scheme"])[0].label, recipe["length"]
    tokens, corpus = recipe["steps"] * recipe["batch"] * length, recipe["corpus"]
    fields = ", ".join(f"{key} {value}" for key, value in recipe.items() if value is not None)
    lengths = sorted(evaluation.losses)
    shared = (
        f"last {evaluation.about['protocol']['k']} tokens of {evaluation.about['segments']} segments of the test split"
        if "k" in evaluation.about["protocol"]
        else f"{evaluation.about['segments']} targets of the test split"
    )
    return "\n".join(
        [
            "---\nlibrary_name: fieldlens\npipeline_tag: text-generation\nlicense: other\n---\n",
            f"# {label}, trained on {length} tokens of {corpus}\n",
            f"A decoder of {about['parameters']:,} parameters with the positional scheme `{recipe['scheme']}`, trained "
            "for studying length extrapolation. It is too small to be of use for anything else. Its weights are a "
            "reference for the tables and the demo of fieldlens.\n",
            "```python\nimport fieldlens",
            f'model = fieldlens.load_model("results/models/{name}")',
            "# or, with transformers, after `import fieldlens.models.hf_export`:",
            f'# AutoModelForCausalLM.from_pretrained("results/models/{name}")\n```\n',
            "## Training\n",
            f"{recipe['steps']:,} steps of {recipe['batch']} × {length} tokens ({tokens / 1e6:.1f} million in all), "
            f"seed {recipe['seed']}, in float32; these are the weights of the last step, rounded to bf16. Recipe: "
            f"{fields}.\n",
            f"Text: `{corpus}`, {DESCRIPTIONS.get(corpus, 'a corpus of the user')}. SHA-256 of the corpus: "
            f"`{about['text']}`; of its tokens: `{about['data']}`.\n",
            "## Evaluation\n",
            f"Perplexity by context length, on the {shared}, as in `results/paper/{result.name}` (weights before "
            "rounding):\n",
            _table(lengths, [["perplexity", *(f"{evaluation.score(length):.2f}" for length in lengths)]]),
            f"Effect of rounding, on {corpus}'s validation split: the largest change of perplexity is "
            f"{largest(rounding):.3%}.\n",
            _table(
                list(rounding),
                [
                    [words, *(f"{pair[number]:.3f}" for pair in rounding.values())]
                    for number, words in enumerate(("as trained", "rounded to bf16"))
                ],
            ),
            "## Licences\n",
            "The text is not part of this folder. The model was trained on these sources, with licences as the corpus "
            "states them; some are copyleft licences (GPL). Whether the weights of a model are a work derived from its "
            "training text is not settled, and we make no statement about it: Apache-2.0, the licence of this "
            "repository, is what its authors grant for their own part. Text that the model generates may repeat parts "
            "of its training text.\n",
            _sources(sources),
        ]
    )


def _table(lengths: list[int], rows: list[list[str]]) -> str:
    lines = [["tokens", *map(str, lengths)], ["---", *["--:"] * len(lengths)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _sources(sources: list[tuple[str, str, int, int]]) -> str:
    total = [sum(source[2] for source in sources), sum(source[3] for source in sources) / 1e6]
    rows = [f"| {licence} | {name} | {count} | {size / 1e6:.2f} |" for licence, name, count, size in sources]
    rows.append(f"| all | {len(sources)} sources | {total[0]} | {total[1]:.2f} |")
    return "\n".join(["| licence | source | documents | MB |", "|---|---|--:|--:|", *rows]) + "\n"


if __name__ == "__main__":
    main()

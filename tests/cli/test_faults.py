"""Every verb with every class of fault: one line on standard error, the documented exit code, no traceback."""

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from newcomer import save_model
from short_training import short_runs

from fieldlens import cli
from fieldlens.core.errors import BadInput, NonFiniteResult, OutOfMemory
from fieldlens.storage import atomic

LENGTHS = ["--lengths", "8,16", "--segments", "4", "--threads", "1"]
VERBS: dict[str, list[str]] = {
    "measure": ["measure", "runs/alibi", "--length", "16", "--segments", "2", "--plain", "--out", "out"],
    "explore": ["explore", "runs/alibi", "--no-browser"],
    "evaluate": ["evaluate", "runs/alibi", *LENGTHS, "--out", "out"],
    "extend": [
        "extend",
        "runs/alibi",
        "--lengths",
        "48",
        "--targets",
        "4",
        "--gradients",
        "0",
        "--trials",
        "0",
        "--method",
        "window",
        "--out",
        "out",
    ],
    "compare": ["compare", "results/a.json", "results/b.json", "--out", "out"],
    "generate": ["generate", "runs/alibi", "--prompt", "abc", "--tokens", "2"],
    "train": ["train", "--preset", "smoke", "--steps", "2", "--bpe", "300", "--corpus", "runs/corpus", "--out", "out"],
    "runs": ["runs", "runs"],
    "schemes": ["schemes", "alibi", "--plot", "out/plot.png", "--length", "32"],
    "corpus": ["corpus", "runs/corpus", "--vocab-size", "300"],
    "study": ["study", "results/study", "--report"],
    "paper": ["paper", "alibi", "--out", "out"],
    "doctor": ["doctor"],
}
"""A call of each verb that succeeds."""

ERRORS: dict[str, tuple[Callable[[], BaseException], int]] = {
    "bad input": (lambda: BadInput("bad"), 2),
    "numerical": (lambda: NonFiniteResult("NaN"), 3),
    "out of memory": (lambda: OutOfMemory("too large"), 4),
    "memory": (MemoryError, 4),
    "allocation": (lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory"), 4),
    "full disk": (lambda: OSError(errno.ENOSPC, "No space left on device"), 4),
    "full disk in Rust": (lambda: Exception("No space left on device (os error 28)"), 4),
    "input/output": (lambda: OSError(errno.EIO, "Input/output error"), 4),
    "read-only": (lambda: OSError(errno.EROFS, "Read-only file system"), 4),
    "permission": (lambda: PermissionError(errno.EACCES, "Permission denied", "x"), 4),
    "too many files": (lambda: OSError(errno.EMFILE, "Too many open files"), 4),
}
"""Classes of faults, wherever they strike, and their exit codes."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, its corpus, two results, and the results folder of a study without results."""
    folder = tmp_path_factory.mktemp("faults")
    short_runs(folder / "runs", ("alibi", "none"), steps=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIELDLENS_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        for model, name in (("alibi", "a"), ("none", "b")):
            cli.main(["evaluate", f"runs/{model}", *LENGTHS, "--out", f"results/{name}"])
            for file in (folder / "results" / name).glob(f"{model}*"):
                shutil.copy(file, folder / "results" / f"{name}{file.suffix}")
    (folder / "results" / "study").mkdir()
    (folder / "results" / "study" / "study.json").write_text(
        '{"kind": "fieldlens study", "name": "s", "title": "S", "jobs": []}'
    )
    return folder


@pytest.fixture(autouse=True)
def _here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(home)
    monkeypatch.setenv("FIELDLENS_CACHE", str(home / "cache"))
    monkeypatch.setattr(atomic, "_changes", 0)
    yield
    shutil.rmtree(home / "out", ignore_errors=True)


def call(capsys: pytest.CaptureFixture[str], words: list[str]) -> tuple[Any, str]:
    """Run a command; its exit code, and what it wrote to standard error."""
    capsys.readouterr()
    code: Any = 0
    try:
        cli.main(words)
    except SystemExit as stop:
        code = stop.code
    return code, capsys.readouterr().err


def is_one_line(err: str) -> bool:
    lines = err.splitlines()
    return bool(lines) and lines[-1].startswith("fieldlens: ") and "Traceback" not in err


def test_every_verb_has_a_call() -> None:
    assert {verb.__name__ for verb in cli.VERBS} == set(VERBS)


@pytest.fixture
def _stop_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server end as soon as it runs."""
    uvicorn = pytest.importorskip("uvicorn", reason="needs the extra: pip install 'fieldlens[explore]'")
    startup = uvicorn.Server.startup

    async def start_and_stop(server: Any, sockets: Any = None) -> None:
        await startup(server, sockets)
        server.should_exit = True

    monkeypatch.setattr(uvicorn.Server, "startup", start_and_stop)
    monkeypatch.setattr("fieldlens.receptive.explorer.server.GRACE", 60.0)  # the model is loaded to the end


@pytest.mark.usefixtures("_stop_serving")
@pytest.mark.parametrize("verb", list(VERBS))
def test_the_calls_succeed_without_a_fault(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, VERBS[verb])[0] == 0


def fault_points(words: list[str]) -> list[str]:
    """A function of each verb, far inside, in which the fault strikes."""
    return {
        "measure": ["fieldlens.receptive.measure_models.load"],
        "explore": ["fieldlens.receptive.explorer.session.load"],
        "evaluate": ["fieldlens.evaluation.evaluate_models.load"],
        "extend": ["fieldlens.receptive.extend_model.load"],
        "compare": ["fieldlens.evaluation.result.read_result"],
        "generate": ["fieldlens.generation.generate_text.load"],
        "train": ["fieldlens.training.loop.tokenize"],
        "runs": ["fieldlens.storage.run_dir.runs_below"],
        "schemes": ["fieldlens.reporting.plots.save"],
        "corpus": ["fieldlens.data.tokens.verified_manifest"],
        "study": ["fieldlens.study.page.report.page"],
        "paper": ["fieldlens.paper.artifact.redraw"],
        "doctor": ["fieldlens.kernels.selection.requested_kernel"],
    }[words[0]]


@pytest.mark.parametrize("fault", ERRORS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_fault_inside_any_verb_is_one_line(
    verb: str, fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error, expected = ERRORS[fault]

    def strike(*_: Any, **__: Any) -> Any:
        raise error()

    for point in fault_points(VERBS[verb]):
        monkeypatch.setattr(point, strike)
    code, err = call(capsys, VERBS[verb])
    assert code == expected, err
    assert is_one_line(err), err


@pytest.mark.parametrize("verb", ["measure", "evaluate", "extend", "train", "corpus", "study", "compare"])
@pytest.mark.parametrize("fault", ["ENOSPC", "EIO"])
def test_a_disk_that_fails_while_a_verb_writes_is_one_line(
    verb: str, fault: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if verb == "corpus":
        monkeypatch.setenv("FIELDLENS_CACHE", str(home / f"cache-{fault}"))
    (home / "results" / "study" / "report.html").unlink(missing_ok=True)
    monkeypatch.setenv(atomic.FAILPOINT, f"2:{fault}")
    code, err = call(capsys, VERBS[verb])
    assert code == 4, err
    assert is_one_line(err), err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--no-such-flag"],
        ["--threads", "many"],
        ["--device", "abacus"],
        ["--dtype", "float7"],
        ["--threads", "-1"],
        ["--max-document-bytes", "0"],
    ],
)
@pytest.mark.parametrize("verb", VERBS)
def test_a_wrong_flag_is_one_line(verb: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Without words: the verb alone, which is complete for some."""
    code, err = call(capsys, [*VERBS[verb], *words] if words else [verb])
    unused = (
        verb in ("runs", "study", "paper") and words and words[0] in ("--device", "--threads", "--max-document-bytes")
    )
    complete = not words and verb in ("runs", "schemes", "corpus", "paper", "doctor")
    assert code == 2 or ((unused or complete) and code in (0, 2)), err
    assert code == 0 or is_one_line(err), err


@pytest.mark.parametrize("verb", ["measure", "evaluate", "generate"])
def test_a_model_that_gives_nan_is_no_traceback(
    verb: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fieldlens.models.decoder import Decoder

    states = Decoder.states
    monkeypatch.setattr(Decoder, "states", lambda *words, **options: states(*words, **options) * torch.nan)
    monkeypatch.setattr("fieldlens.models.loading.check_causal", lambda _: None)
    code, err = call(capsys, [word.replace("runs/alibi", "runs/none") for word in VERBS[verb]])
    assert code == 3, err
    assert "Traceback" not in err


def test_a_damaged_model_is_one_line_for_every_verb_that_loads_one(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(home / "damaged")
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        whole = (home / "damaged" / name).read_bytes()
        for damage in (b"", whole[: len(whole) // 2], b"\x00" * 100, b"[" * 5000):
            (home / "damaged" / name).write_bytes(damage)
            for verb in ("measure", "evaluate", "generate"):
                code, err = call(capsys, [word.replace("runs/alibi", "damaged") for word in VERBS[verb]])
                assert code == 2, (name, err)
                assert is_one_line(err), err
        (home / "damaged" / name).write_bytes(whole)

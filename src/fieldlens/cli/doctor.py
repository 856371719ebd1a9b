"""fieldlens doctor: what this machine has, which kernels will be used and why, and whether they are exact."""

import json
import math
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from fieldlens import __version__
from fieldlens.cli.console import console
from fieldlens.cli.installed import EXTRAS, NEEDED, installed_version
from fieldlens.core.device import Machine

if TYPE_CHECKING:
    import torch

HEADS, HEAD_WIDTH, TOKENS = 4, 32, 160
TOLERANCES = {"float32": 2e-5, "bfloat16": 3e-2, "float64": 1e-11}
"""Largest error of outputs and gradients, relative to the largest value of each if that exceeds 1."""
SPEED_TOKENS = 512


def doctor(
    *,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    device: str = Machine.device,
    dtype: Literal["auto", "float32", "float64", "bfloat16"] = Machine.dtype,
    threads: int | None = Machine.threads,
) -> None:
    """Show what this machine has, and test the kernels that it uses.

    Example: fieldlens doctor --json > doctor.json

    Prints which attention kernel each scheme uses and why, compares outputs and gradients of every scheme with float64,
    and measures the speed. Takes about ten seconds, longer where kernels are compiled first. Exits with 4 if a kernel
    gives wrong numbers. Please include the output in a bug report.

    Parameters
    ----------
    as_json
        Print JSON.
    device
        Device to test: cpu, cuda, cuda:1, mps …; auto selects a GPU if one is available.
    dtype
        Dtype to test; auto is float32 on a CPU and bfloat16 on a GPU that supports it.
    threads
        Number of CPU threads. Default: as torch chooses.
    """
    from fieldlens.kernels.selection import requested_kernel

    requested_kernel()  # a wrong name is an error at once
    chosen, number_type = Machine(device, dtype, threads).start()
    report: dict[str, Any] = {
        "versions": _versions(),
        "machine": _machine(chosen, number_type),
        "compile": _compilers(chosen, number_type),
        "extras": {extra: installed_version(package) for extra, package in EXTRAS.items()},
        "caches": _caches(),
        "kernels": _kernels(chosen, number_type),
        "self_test": _self_test(chosen, number_type),
        "speed": _speed(chosen, number_type),
    }
    if as_json:
        print(json.dumps(report))
    else:
        _show(report)
    if not report["self_test"]["exact"]:
        sys.exit(4)


def _versions() -> dict[str, Any]:
    packages = {name: installed_version(name) for name in NEEDED}
    return {"fieldlens": __version__, "python": platform.python_version(), **packages}


def _machine(device: "torch.device", dtype: "torch.dtype") -> dict[str, Any]:
    import torch

    from fieldlens.core.cores import free_cores, usable_cores
    from fieldlens.core.device import bfloat16_runs
    from fieldlens.core.memory import free_memory, total_memory

    cpu = torch.device("cpu")
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "free_cores": free_cores(),
        "threads": torch.get_num_threads(),
        "memory_bytes": total_memory(cpu),
        "free_memory_bytes": free_memory(cpu),
        "gpus": [_gpu(number) for number in range(torch.cuda.device_count())],
        "mps": torch.backends.mps.is_available(),
        "cpu_bfloat16": bfloat16_runs(),
        "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _gpu(number: int) -> dict[str, Any]:
    import torch

    about = torch.cuda.get_device_properties(number)
    capability = f"{about.major}.{about.minor}"
    bfloat16 = torch.cuda.is_bf16_supported()
    return {"name": about.name, "memory_bytes": about.total_memory, "capability": capability, "bfloat16": bfloat16}


def _compilers(device: "torch.device", dtype: "torch.dtype") -> dict[str, Any]:
    """What torch.compile needs. On a GPU the kernel is compiled and run once."""
    from fieldlens.kernels import flex
    from fieldlens.kernels.selection import wants_flex

    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    flex_state = "not used on this device"
    if wants_flex(device):
        flex_state = flex.failure(device, dtype, 64) or "works"
    return {"cxx": compiler, "triton": installed_version("triton"), "flex": flex_state}


def _caches() -> dict[str, Any]:
    from fieldlens.storage.content_cache import cache_folder

    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    folders = {"fieldlens": cache_folder(), "huggingface": home}
    return {name: {"folder": str(folder), "bytes": _size(folder)} for name, folder in folders.items()}


def _size(folder: Path) -> int:
    """Bytes of the files of a folder; links are not followed."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent) / name
            total += 0 if path.is_symlink() else path.stat().st_size
    return total


def _specs() -> list[str]:
    from fieldlens.schemes.discovery import registry

    return [*registry(), "none:window=40", "rotary:sink=learned"]


def _kernels(device: "torch.device", dtype: "torch.dtype") -> list[dict[str, str]]:
    """The kernel of each scheme with heads of usual width and more than 64 tokens, in training and in inference."""
    from fieldlens.kernels.selection import usual_kernel
    from fieldlens.schemes.spec import scheme

    rows = []
    for spec in _specs():
        built = scheme(spec, 12, 64, train_length=512)
        rows.append({
            "scheme": spec,
            "training": str(usual_kernel(built, device, dtype, training=True)),
            "inference": str(usual_kernel(built, device, dtype, training=False)),
        })  # fmt: skip
    return rows


def _self_test(device: "torch.device", dtype: "torch.dtype") -> dict[str, Any]:
    """Outputs and gradients of every scheme against one float64 mask over all queries and keys, on the CPU."""
    start = time.perf_counter()
    errors = {spec: _error(spec, device, dtype) for spec in _specs()}
    worst = max(errors, key=lambda spec: errors[spec])
    tolerance = TOLERANCES[str(dtype).removeprefix("torch.")]
    return {
        "exact": all(error <= tolerance for error in errors.values()),
        "tolerance": tolerance,
        "worst": worst,
        "error": errors[worst],
        "errors": errors,
        "seconds": time.perf_counter() - start,
    }


def _error(spec: str, device: "torch.device", dtype: "torch.dtype") -> float:
    """Largest error of the output and of the gradients of q, k, v and parameters; NaN counts as infinite."""
    import torch

    import fieldlens
    from fieldlens.schemes.spec import scheme

    torch.manual_seed(0)
    built = scheme(spec, HEADS, HEAD_WIDTH, train_length=TOKENS)
    inputs = [torch.randn(1, HEADS, TOKENS, HEAD_WIDTH) for _ in range(3)] + [
        torch.randn(1, TOKENS, HEADS * HEAD_WIDTH)
    ]
    inputs = [x.to(dtype) for x in inputs]  # both compute with the same rounded numbers

    def results(place: torch.device, wide: torch.dtype) -> list[torch.Tensor]:
        module = built.to(place, torch.float64 if wide == torch.float64 else torch.float32)
        q, k, v, x = (value.to(place, wide).requires_grad_() for value in inputs)
        out = fieldlens.attention(q, k, v, module, x_BSD=x)
        sought = [q, k, v, *module.parameters()]
        gradients = torch.autograd.grad(
            out.to(torch.promote_types(wide, torch.float32)).cos().sum(),
            sought,
            allow_unused=True,
            materialize_grads=True,
        )
        return [value.detach().cpu().double() for value in (out, *gradients)]

    computed = results(device, dtype)
    with _reference_kernel():
        expected = results(torch.device("cpu"), torch.float64)
    ratios = [float((a - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in zip(computed, expected, strict=True)]
    return max(float("inf") if math.isnan(ratio) else ratio for ratio in ratios)


@contextmanager
def _reference_kernel() -> Iterator[None]:
    """Select the simplest kernel."""
    from fieldlens.kernels.selection import VARIABLE

    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "sdpa"
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def _speed(device: "torch.device", dtype: "torch.dtype") -> dict[str, float]:
    """Matrix products, and training steps of a small decoder, in this process with its threads."""
    import torch

    from fieldlens.models.decoder import Config, Decoder
    from fieldlens.training.trainer import Objective

    a = torch.randn(1024, 1024, device=device)
    flops = 2 * 1024**3 / _seconds(lambda: a @ a, device)
    objective = Objective(Decoder(Config(layers=4, width=256, heads=8, vocab_size=4096)).to(device))
    ids_BT = torch.randint(4096, (2, SPEED_TOKENS + 1), device=device)

    def step() -> None:
        with torch.autocast(device.type, dtype, enabled=dtype == torch.bfloat16):
            loss = objective(ids_BT)
        loss.backward()

    tokens = 2 * SPEED_TOKENS / _seconds(step, device)
    return {"matmul_gflops": flops / 1e9, "training_tokens_per_second": tokens}


def _seconds(run: Any, device: "torch.device", rounds: int = 4) -> float:
    """The least time of a few calls, after one to warm up."""
    import torch

    least = float("inf")
    for _ in range(rounds + 1):
        start = time.perf_counter()
        run()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        least = min(least, time.perf_counter() - start)
    return least


def _show(report: dict[str, Any]) -> None:
    from fieldlens.core.format import format_bytes
    from fieldlens.reporting.table import Table

    screen = console()
    machine, test, speed = report["machine"], report["self_test"], report["speed"]
    gpus = [f"{gpu['name']}, {format_bytes(gpu['memory_bytes'])}, {gpu['capability']}" for gpu in machine["gpus"]]
    cores = f"{machine['cores']}, {machine['usable_cores']} usable, {machine['free_cores']} free now"
    missing = [extra for extra, version in report["extras"].items() if version is None]
    lines = {
        "versions": ", ".join(f"{name} {version or 'missing'}" for name, version in report["versions"].items()),
        "system": f"{machine['system']}; {machine['processor']} ({machine['capability']})",
        "cores": f"{cores}; {machine['threads']} threads",
        "memory": f"{format_bytes(machine['memory_bytes'])}, {format_bytes(machine['free_memory_bytes'])} free",
        "GPUs": "; ".join(gpus) or ("Apple GPU" if machine["mps"] else "none"),
        "bfloat16 on CPU": "works" if machine["cpu_bfloat16"] else "does not run; float32 is used",
        "default": f"{machine['device']}, {machine['dtype']}",
        "compile": f"C++ {report['compile']['cxx'] or 'missing'}; Triton {report['compile']['triton'] or 'missing'}",
        "flex": report["compile"]["flex"],
        "extras": f"missing: {', '.join(missing)}" if missing else "all installed",
        **{
            f"cache of {name}": f"{cache['folder']}, {format_bytes(cache['bytes'])}"
            for name, cache in report["caches"].items()
        },
    }
    for name, text in lines.items():
        screen.print(f"{name}: {text}", markup=False)
    rows = [[row["scheme"], row["training"], row["inference"]] for row in report["kernels"]]
    screen.print(Table(["scheme", "training", "inference"], rows, "Attention kernels"))
    verdict = "exact" if test["exact"] else "WRONG"
    errors = f"largest relative error {test['error']:.1e} ({test['worst']}), allowed {test['tolerance']:.0e}"
    screen.print(f"self-test of {len(test['errors'])} schemes with gradients: {verdict}; {errors}", markup=False)
    step = f"training of a 4-layer decoder {speed['training_tokens_per_second']:,.0f} tokens/s"
    screen.print(f"speed: matrix products {speed['matmul_gflops']:.0f} GFLOP/s, {step}", markup=False)

"""benchmarks/attention.py: every registered scheme can be timed, forward and backward."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fieldlens.schemes.discovery import registry

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture
def attention(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("attention")
    for name in ("attention", "rounds"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", registry())
def test_every_scheme_can_be_timed(attention: ModuleType, name: str, backward: bool) -> None:
    attention.ours(32, name, backward)()

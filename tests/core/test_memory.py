"""Garbage collection is paused in the context, and afterwards as it was before."""

import gc
from collections.abc import Iterator

import pytest

from fieldlens.core.memory import without_collection


@pytest.fixture(autouse=True)
def _collection() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize("enabled", [True, False])
def test_collection_is_paused_and_then_as_before(enabled: bool) -> None:
    gc.enable() if enabled else gc.disable()
    with without_collection():
        assert not gc.isenabled()
        with without_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled() == enabled


def test_collection_resumes_after_an_error() -> None:
    with pytest.raises(ValueError, match="refused"), without_collection():
        raise ValueError("refused")
    assert gc.isenabled()

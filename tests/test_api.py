"""The public API: what `import fieldlens` offers, and how results show themselves."""

import builtins
import subprocess
import sys
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

import fieldlens
from fieldlens.core.errors import BadInput

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def model() -> fieldlens.Decoder:
    torch.manual_seed(0)
    shape = {"layers": 2, "width": 32, "heads": 4, "vocab_size": 97, "train_length": 16}
    return fieldlens.Decoder(fieldlens.Config(scheme="alibi", **shape))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def evaluation(model: fieldlens.Decoder) -> fieldlens.Evaluation:
    documents = [torch.randint(97, (80,), generator=torch.Generator().manual_seed(n)) for n in range(12)]
    return fieldlens.perplexity(model, documents, [8, 16, 32], 40)


@pytest.fixture(scope="module")
def field(model: fieldlens.Decoder) -> fieldlens.ReceptiveField:
    return fieldlens.receptive_field(model, torch.randint(97, (3, 21)))


def test_every_name_is_documented_and_imported_when_used() -> None:
    program = (
        "import sys, fieldlens\n"
        "assert 'torch' not in sys.modules\n"
        "assert set(fieldlens.__all__) <= set(dir(fieldlens))\n"
        "print([name for name in fieldlens.__all__ if not getattr(fieldlens, name).__doc__])"
    )
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"


def test_the_names_are_those_promised() -> None:
    promised = (
        "Scheme scheme schemes attention Config Decoder load_model train Recipe perplexity Evaluation compare "
        "receptive_field ReceptiveField generate Sampling"
    )
    assert set(promised.split()) <= set(fieldlens.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        fieldlens.nothing  # noqa: B018
    assert fieldlens.schemes.registry()["alibi"].label == "ALiBi"


def test_plots_take_and_return_axes(evaluation: fieldlens.Evaluation, field: fieldlens.ReceptiveField) -> None:
    figure, axes = plt.subplots(1, 2)
    for result, ax in zip((evaluation, field), axes, strict=True):
        assert result.plot(ax=ax) is ax
        assert ax.lines
        assert result.plot().figure is not figure
    plt.close("all")


def test_results_show_themselves(evaluation: fieldlens.Evaluation, field: fieldlens.ReceptiveField) -> None:
    for result, expected in ((evaluation, "perplexity"), (field, "99%")):
        assert expected in repr(result)
        assert "\n" not in repr(result)
        page = result._repr_html_()
        assert page.startswith("<table>")
        assert expected in page


def test_a_hostile_name_is_only_a_name(field: fieldlens.ReceptiveField) -> None:
    hostile = fieldlens.ReceptiveField(field.norms_NT, name="<script>alert(1)</script>")
    assert "<script>" not in hostile._repr_html_()


def test_frames(
    evaluation: fieldlens.Evaluation, field: fieldlens.ReceptiveField, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Frame(list[Any]):
        pass

    class Pandas:
        DataFrame = Frame

    monkeypatch.setitem(sys.modules, "pandas", Pandas)  # type: ignore[arg-type]
    assert [row["length"] for row in evaluation.to_frame()] == [4, 8, 16, 32]  # with a quarter of 16
    rows = field.to_frame()
    assert rows[0]["distance"] == 1
    assert rows[-1]["cumulative"] == pytest.approx(1)
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "pandas":
            raise ImportError
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "pandas")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadInput, match="needs pandas"):
        evaluation.to_frame()


def test_generate_takes_what_the_package_offers(model: fieldlens.Decoder) -> None:
    generation = fieldlens.generate(model, [1, 2, 3], 5, mode="full", sampling=fieldlens.Sampling(0.8, seed=1))
    assert len(generation.ids[0]) == 5

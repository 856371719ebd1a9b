"""Schemes of one's own: what they return is asked first, their numbers stay theirs, and slips are one line."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import short_training as training
import studying
import torch

import fieldlens
from fieldlens import schemes
from fieldlens.core.device import Machine
from fieldlens.core.distributed import World
from fieldlens.core.errors import BadInput
from fieldlens.data.corpus import open_corpus
from fieldlens.data.tokens import tokenize
from fieldlens.models.hf_export import FieldlensForCausalLM
from fieldlens.models.loading import load
from fieldlens.models.origin import find_model
from fieldlens.schemes import base, discovery
from fieldlens.schemes.spec import source_of
from fieldlens.schemes.validation import check_scheme
from fieldlens.study import job
from fieldlens.study.executors import Order
from fieldlens.training.loop import train
from fieldlens.training.recipe import recipe
from fieldlens.training.trainer import Trainer, check_shape

HEAD = (
    "import torch\nfrom typing import Literal, Optional\nfrom torch import nn\nfrom fieldlens.schemes import Scheme\n"
)
BUILT = "    def __init__(self, heads, head_width):\n        super().__init__(heads, head_width)\n"

Declare = Callable[..., None]


def gives(seam: str, what: str) -> str:
    return f"    def {seam}(self, d):\n        return {what}\n"


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Declare:
    """Import a plugin with one scheme `mine`, for one test."""
    schemes.registry()
    monkeypatch.setattr(base, "REGISTERED", dict(base.REGISTERED))
    monkeypatch.setenv("FIELDLENS_CACHE", str(tmp_path / "cache"))

    def write(body: str, name: str = "name = 'mine'") -> None:
        plugin = tmp_path / f"plugin{len(list(tmp_path.glob('plugin*')))}.py"
        plugin.write_text(f"{HEAD}class Mine(Scheme):\n    {name}\n{body}")
        discovery._load_file(str(plugin))

    return write


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (gives("bias", "torch.zeros(3, len(d))"), r"bias\(\) of scheme 'mine' gives the shape \(3, 4\)"),
        (gives("embedding", "torch.zeros(len(d), 1)"), r"embedding.* \(4, 32\) is needed"),
        (gives("angles", "torch.zeros(len(d), 8)"), r"angles.* \(4, 4\) is needed"),
        (gives("bias", "torch.zeros(1, len(d)) / 0"), "bias.* gives no numbers"),
        (gives("bias", "-torch.ones(1, len(d)) / 0"), "bias.* gives no numbers"),
        (gives("bias", "None").replace("d)", "q, k)"), "bias.* does not work: TypeError: "),
        (gives("bias", "0.5"), "bias.* gives float: a tensor is needed"),
        (BUILT + "        raise ValueError('odd')", "'mine' cannot be built for 4 heads of width 8: ValueError: odd"),
        (
            BUILT + "        self.table = torch.randn(heads, 9)\n" + gives("bias", "self.table[:, :len(d)]"),
            "uses numbers that are neither parameters nor buffers",
        ),
    ],
)  # fmt: skip
def test_what_no_decoder_can_use_is_refused_first(declare: Declare, body: str, message: str) -> None:
    declare(body)
    with pytest.raises(BadInput, match=message):
        check_scheme("mine", 4, 8)
    with pytest.raises(BadInput):
        check_shape(recipe("smoke", scheme="mine"))


def test_a_row_for_all_heads_and_an_edge_are_sound(declare: Declare) -> None:
    declare(gives("bias", "torch.where(d < 3, 0.0, -torch.inf)[None]"))
    check_scheme("mine", 4, 8)


PROJECTED = (
    BUILT + "        self.slope = nn.Parameter(0.1 * torch.randn(heads))\n" + gives("bias", "-self.slope[:, None] * d")
)


@pytest.mark.parametrize("rule", ["clamp_(min=0)", "div_(self.slope.data.norm())"])
def test_what_a_scheme_projects_is_no_number_of_its_own(declare: Declare, rule: str) -> None:
    declare(f"{PROJECTED}    def project(self):\n        self.slope.data.{rule}\n")
    for _ in range(20):
        check_scheme("mine", 4, 8)


FACTORY = (
    "def make(name):\n    return type(name, (Scheme,), {'name': name})\n\nmade = [make('first'), make('second')]\n"
)


@pytest.mark.parametrize("text", [FACTORY, "import {package}.schemes\n"])
def test_a_file_may_have_its_schemes_made_elsewhere(
    declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    package = f"package_{abs(hash(tmp_path))}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "schemes.py").write_text(f"{HEAD}{FACTORY}")
    monkeypatch.syspath_prepend(tmp_path)
    plugin = tmp_path / "all.py"
    plugin.write_text(HEAD + text.replace("{package}", package))
    discovery._load_file(str(plugin))
    assert {"first", "second"} <= schemes.registry().keys()


LEARNT = (
    BUILT
    + (
        "        self.table = nn.Embedding(64, heads * head_width)\n"
        "        self.layer = nn.Linear(1, heads)\n"
        "        nn.init.constant_(self.table.weight, 5.0)\n"
        "        nn.init.constant_(self.layer.bias, -8.0)\n"
        "        self.order = torch.logspace(-2, 0, heads).tolist()\n"
        "        assert (torch.arange(heads).diff() > 0).all()\n"
    )
    + gives("embedding", "self.table(d)")
)


def test_a_scheme_starts_as_it_made_itself(declare: Declare) -> None:
    declare(LEARNT)
    model = fieldlens.Decoder(fieldlens.Config(scheme="mine", layers=1, width=32, heads=4, vocab_size=64))
    assert model.scheme.get_parameter("table.weight").unique().tolist() == [5.0]
    assert model.scheme.get_parameter("layer.bias").unique().tolist() == [-8.0]
    assert model.embedding.weight.std() < 0.1


def test_a_scheme_may_look_at_its_numbers_and_is_loaded_all_the_same(declare: Declare, tmp_path: Path) -> None:
    declare(LEARNT)
    model = fieldlens.Decoder(fieldlens.Config(scheme="mine", layers=1, width=32, heads=4, vocab_size=64)).eval()
    FieldlensForCausalLM.of(model).save_pretrained(tmp_path / "folder")
    loaded = FieldlensForCausalLM.from_pretrained(tmp_path / "folder").decoder.eval()
    ids_BT = torch.arange(20)[None]
    assert torch.equal(loaded(ids_BT), model(ids_BT))


def test_validation_is_no_training(declare: Declare, tmp_path: Path) -> None:
    """Whoever looks more often must not end with other weights."""
    declare(gives("bias", "-torch.rand(1) * d[None] if self.training else -0.5 * d[None]"))
    words = training.write_corpus(tmp_path / "words")
    chosen = recipe("smoke", scheme="mine", corpus=str(words), bpe=300)
    tokens = tokenize(open_corpus(str(words)), 300, None, None)
    trainer = Trainer(chosen, tokens, torch.device("cpu"), torch.float32, World())
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert trainer.validate() == trainer.validate()
    assert torch.equal(torch.get_rng_state(), before)
    assert trainer.decoder.training


def test_a_run_whose_formula_has_changed_is_not_evaluated(
    declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bias = gives("bias", "-0.05 * d[None]")
    declare(bias)
    words = training.write_corpus(tmp_path / "words")
    train(recipe("smoke", scheme="mine", corpus=str(words), steps=2), tmp_path / "run")
    origin = find_model(str(tmp_path / "run"))
    loaded = load(origin, torch.device("cpu"), torch.float32)
    assert loaded.about["scheme_source"] == source_of("mine")["scheme_source"]
    mine = base.REGISTERED["mine"]
    monkeypatch.setattr(mine, "__module__", "fieldlens.schemes.mine")  # moved to where settled formulas are
    assert load(origin, torch.device("cpu"), torch.float32).about["scheme_source"] == mine.file_hash
    del base.REGISTERED["mine"]
    declare(bias.replace("0.05", "3.0"))
    with pytest.raises(BadInput, match="the file of scheme 'mine' has changed since this run was trained"):
        load(origin, torch.device("cpu"), torch.float32)


def test_a_worker_that_finds_another_formula_does_not_begin(
    declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    declare(gives("bias", "-0.05 * d[None]"))
    study, places = studying.opened(studying.write_study(tmp_path, ["mine"]))
    order = Order(study.jobs[0], places, str(tmp_path / "words"), Machine(device="cpu", threads=1))
    order.write()
    del base.REGISTERED["mine"]
    declare(gives("bias", "-3.0 * d[None]"))
    monkeypatch.setattr(sys, "argv", ["job", str(order.file), "0"])
    monkeypatch.setattr(job, "_end_with_parent", lambda: None)
    with pytest.raises(SystemExit) as ended:
        job.main()
    assert ended.value.code == 2
    assert "the file of scheme 'mine' has changed since the study was started" in capsys.readouterr().err
    assert not places.results.exists()


OPTIONS = BUILT.replace("head_width)", (
    "head_width, *, rate: Literal[0.5, 1.0, 2.0] = 1.0, flag: Literal[True, False] = True, "
    "how: Optional[Literal['a', 'b']] = None, edge: int | float = 1, most: int | None = 8)"
), 1)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("rate=2.0", 2.0), ("rate=2", 2.0), ("flag=false", False), ("how=b", "b"), ("edge=1.5", 1.5), ("edge=3", 3),
        ("most=none", None), ("most=9", 9),
    ],
)  # fmt: skip
def test_every_option_that_can_be_declared_can_be_given(declare: Declare, text: str, value: object) -> None:
    declare(OPTIONS)
    assert schemes.parse(f"mine:{text}")[1] == {text.split("=", maxsplit=1)[0]: value}
    assert schemes.canonical(schemes.canonical(f"mine:{text}")) == schemes.canonical(f"mine:{text}")


@pytest.mark.parametrize(
    ("body", "name", "message"),
    [
        ("    label = 'x'", "source = 'y'", "declares no scheme: give a subclass of Scheme a name"),
        ("    pass", "name = 'my scheme:v2'", "a scheme is named 'my scheme:v2': letters, digits"),
        ("    pass", "name = 5", "a scheme is named 5: letters, digits"),
        ("    colour = 'bluish'", "name = 'mine'", "the colour of scheme 'mine' is 'bluish': one like #0072B2"),
        (BUILT.replace("head_width)", "head_width, slope: float = 2.0)", 1), "name = 'mine'", "stands before the .: "),
        (BUILT.replace("head_width)", "head_width, *, window: int = 2)", 1), "name = 'mine'", "an option 'window'"),
        (BUILT.replace("head_width)", "head_width, *, a: 'Gone' = 2)", 1), "name = 'mine'", "NameError: name 'Gone'"),
    ],
)  # fmt: skip
def test_a_slip_of_a_newcomer_is_one_line(declare: Declare, body: str, name: str, message: str) -> None:
    def use() -> None:
        declare(body, name)
        schemes.parse("mine")

    with pytest.raises(BadInput, match=message):
        use()


def test_schemes_without_a_colour_are_told_apart(declare: Declare) -> None:
    from fieldlens.reporting.plots import tints

    declare("    pass", "name = 'mine'")
    declare("    pass", "name = 'yours'")
    assert len(set(tints(["mine", "yours", "alibi", None]))) == 4


def test_a_scheme_keeps_its_colour_among_its_variants() -> None:
    from matplotlib import colors

    from fieldlens.reporting.plots import tints

    def light(colour: str) -> float:
        return sum(colors.to_rgb(colour))

    variants = ["sandwich:dims=32", "sandwich:dims=64", "sandwich", "sandwich:dims=256", "sandwich:dims=512"]
    found = tints(variants)
    assert found[2] == tints(["sandwich"])[0]
    lightness = [light(colour) for colour, _ in found]
    assert lightness == sorted(set(lightness), reverse=True)
    assert {marker for _, marker in found} == {found[2][1]}
    assert tints(variants[:2])[1] == found[2]  # without the scheme itself, the last has its colour

"""User-defined schemes: outputs are checked before training, parameters are kept, and errors are one line."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import short_training as training
import small_studies
import torch

import fieldlens
from fieldlens import schemes
from fieldlens.cli import main
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
from fieldlens.schemes.validation import check_scheme, scheme_warnings, unused_parameters
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


def method(name: str, expression: str) -> str:
    """Source of a method that returns an expression of its argument `d`."""
    return f"    def {name}(self, d):\n        return {expression}\n"


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
        (method("bias", "torch.zeros(3, len(d))"), r"bias\(\) of scheme 'mine' returned shape \(3, 4\)"),
        (method("embedding", "torch.zeros(len(d), 1)"), r"embedding.* expected \(4, 32\)"),
        (method("angles", "torch.zeros(len(d), 8)"), r"angles.* expected \(4, 4\)"),
        (method("bias", "torch.zeros(1, len(d)) / 0"), "bias.* returned NaN or inf"),
        (method("bias", "-torch.ones(1, len(d)) / 0"), "bias.* returned NaN or inf"),
        (method("bias", "None").replace("d)", "q, k)"), "bias.* failed: TypeError: "),
        (method("bias", "torch.where(d < 3, 0.0, torch.inf)[None]"), "bias.* returned NaN or inf"),
        (method("embedding", "torch.full((len(d), 32), torch.inf)"), "embedding.* returned NaN or inf"),
        (method("bais", "torch.zeros(1, len(d))"), "'mine' would train as 'none': .* override at least one"),
        (method("bias", "0.5"), "bias.* must return a tensor or None, got float"),
        (BUILT + "        raise ValueError('odd')", "cannot build .*'mine' for 4 heads of width 8: ValueError: odd"),
        (
            BUILT + "        self.table = torch.randn(heads, 9)\n" + method("bias", "self.table[:, :len(d)]"),
            "uses values that are neither parameters nor buffers",
        ),
    ],
)  # fmt: skip
def test_invalid_outputs_are_refused_before_training(declare: Declare, body: str, message: str) -> None:
    declare(body)
    with pytest.raises(BadInput, match=message):
        check_scheme("mine", 4, 8)
    with pytest.raises(BadInput):
        check_shape(recipe("smoke", scheme="mine"))


def test_a_row_for_all_heads_and_an_edge_are_valid(declare: Declare) -> None:
    declare(method("bias", "torch.where(d < 3, 0.0, -torch.inf)[None]"))
    check_scheme("mine", 4, 8)


def test_a_learned_bias_may_start_at_zero(declare: Declare) -> None:
    zeros = BUILT + "        self.table = nn.Parameter(torch.zeros(heads, 512))\n"
    declare(zeros + method("bias", "self.table[:, d.clamp(max=511)]"))
    check_scheme("mine", 4, 8)
    assert scheme_warnings("mine", 4, 8) == []


def test_a_method_that_returns_nothing_here_is_a_warning(declare: Declare, capsys: pytest.CaptureFixture[str]) -> None:
    """Positions of the check are small: a scheme may add nothing to them."""
    declare(method("bias", "-d[None] / 9.0 if d.max() > 99 else None"))
    main(["schemes", "mine"])
    assert "warning: 'mine' adds nothing to 4 tokens: bias() returned None\n" in capsys.readouterr().err
    assert scheme_warnings("alibi/none", 4, 8) == []


def test_the_listing_validates_and_warns_of_parameters_without_a_gradient(
    declare: Declare, capsys: pytest.CaptureFixture[str]
) -> None:
    idle = (
        BUILT
        + "        self.idle = nn.Parameter(torch.ones(heads))\n        self.used = nn.Parameter(torch.ones(heads))\n"
    )
    declare(idle + method("bias", "self.used[:, None] * d"))
    assert unused_parameters("mine", 4, 8) == ["idle"]
    main(["schemes", "mine"])
    assert "warning: 'mine' has parameters without a gradient: idle\n" in capsys.readouterr().err
    assert unused_parameters("kerple", 4, 8) == []
    declare(method("bias", "torch.zeros(3, len(d))"), "name = 'wrong'")
    with pytest.raises(SystemExit, match="2"):
        main(["schemes", "wrong"])
    assert "bias() of scheme 'wrong' returned shape (3, 4)" in capsys.readouterr().err


def test_the_listing_prints_the_options_that_were_given(capsys: pytest.CaptureFixture[str]) -> None:
    main(["schemes", "sandwich:dims=64,window=40"])
    out = capsys.readouterr().out
    assert "dims=64 (default 128)" in out
    assert "window=40 (default none)" in out


PROJECTED = (
    BUILT + "        self.slope = nn.Parameter(0.1 * torch.randn(heads))\n" + method("bias", "-self.slope[:, None] * d")
)


@pytest.mark.parametrize("rule", ["clamp_(min=0)", "div_(self.slope.data.norm())"])
def test_projected_parameters_pass_the_check(declare: Declare, rule: str) -> None:
    declare(f"{PROJECTED}    def project(self):\n        self.slope.data.{rule}\n")
    for _ in range(20):
        check_scheme("mine", 4, 8)


FACTORY = (
    "def make(name):\n    return type(name, (Scheme,), {'name': name})\n\nmade = [make('first'), make('second')]\n"
)


@pytest.mark.parametrize("text", [FACTORY, "import {package}.schemes\n"])
def test_a_file_may_import_or_generate_its_schemes(
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
    + method("embedding", "self.table(d)")
)


def test_a_scheme_keeps_its_own_initialisation(declare: Declare) -> None:
    declare(LEARNT)
    model = fieldlens.Decoder(fieldlens.Config(scheme="mine", layers=1, width=32, heads=4, vocab_size=64))
    assert model.scheme.get_parameter("table.weight").unique().tolist() == [5.0]
    assert model.scheme.get_parameter("layer.bias").unique().tolist() == [-8.0]
    assert model.embedding.weight.std() < 0.1


def test_a_scheme_that_reads_its_values_when_built_can_be_loaded(declare: Declare, tmp_path: Path) -> None:
    declare(LEARNT)
    model = fieldlens.Decoder(fieldlens.Config(scheme="mine", layers=1, width=32, heads=4, vocab_size=64)).eval()
    FieldlensForCausalLM.of(model).save_pretrained(tmp_path / "folder")
    loaded = FieldlensForCausalLM.from_pretrained(tmp_path / "folder").decoder.eval()
    ids_BT = torch.arange(20)[None]
    assert torch.equal(loaded(ids_BT), model(ids_BT))


def test_validation_does_not_change_the_random_state(declare: Declare, tmp_path: Path) -> None:
    """The number of validations must not affect the trained weights."""
    declare(method("bias", "-torch.rand(1) * d[None] if self.training else -0.5 * d[None]"))
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
    bias = method("bias", "-0.05 * d[None]")
    declare(bias)
    words = training.write_corpus(tmp_path / "words")
    train(recipe("smoke", scheme="mine", corpus=str(words), steps=2), tmp_path / "run")
    origin = find_model(str(tmp_path / "run"))
    loaded = load(origin, torch.device("cpu"), torch.float32)
    assert loaded.about["scheme_source"] == source_of("mine")["scheme_source"]
    cls = base.REGISTERED["mine"]
    monkeypatch.setattr(cls, "__module__", "fieldlens.schemes.mine")  # as if moved into the package
    assert load(origin, torch.device("cpu"), torch.float32).about["scheme_source"] == cls.file_hash
    del base.REGISTERED["mine"]
    declare(bias.replace("0.05", "3.0"))
    with pytest.raises(BadInput, match="the file of scheme 'mine' has changed since this run was trained"):
        load(origin, torch.device("cpu"), torch.float32)


def test_a_worker_with_another_formula_does_not_start(
    declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    declare(method("bias", "-0.05 * d[None]"))
    study, places = small_studies.opened(small_studies.write_study(tmp_path, ["mine"]))
    order = Order(study.jobs[0], places, str(tmp_path / "words"), Machine(device="cpu", threads=1))
    order.write()
    del base.REGISTERED["mine"]
    declare(method("bias", "-3.0 * d[None]"))
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
def test_every_declared_option_can_be_parsed(declare: Declare, text: str, value: object) -> None:
    declare(OPTIONS)
    assert schemes.parse(f"mine:{text}")[1] == {text.split("=", maxsplit=1)[0]: value}
    assert schemes.canonical(schemes.canonical(f"mine:{text}")) == schemes.canonical(f"mine:{text}")


@pytest.mark.parametrize(
    ("body", "name", "message"),
    [
        ("    label = 'x'", "source = 'y'", "declares no scheme and no method: define a subclass of Scheme"),
        ("    pass", "name = 'my scheme:v2'", "invalid scheme name 'my scheme:v2': use letters, digits"),
        ("    pass", "name = 5", "invalid scheme name 5: use letters, digits"),
        ("    colour = 'bluish'", "name = 'mine'", "colour of scheme 'mine' must be a code like #0072B2, got 'bluish'"),
        (BUILT.replace("head_width)", "head_width, slope: float = 2.0)", 1), "name = 'mine'", "is not keyword-only: "),
        (BUILT.replace("head_width)", "head_width, *, window: int = 2)", 1), "name = 'mine'", "an option 'window'"),
        (BUILT.replace("head_width)", "head_width, *, a: 'Gone' = 2)", 1), "name = 'mine'", "NameError: name 'Gone'"),
    ],
)  # fmt: skip
def test_errors_in_a_declaration_are_one_line(declare: Declare, body: str, name: str, message: str) -> None:
    def use() -> None:
        declare(body, name)
        schemes.parse("mine")

    with pytest.raises(BadInput, match=message):
        use()


def test_schemes_without_a_colour_get_different_ones(declare: Declare) -> None:
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
    styles = tints(variants)
    assert styles[2] == tints(["sandwich"])[0]
    lightness = [light(colour) for colour, _ in styles]
    assert lightness == sorted(set(lightness), reverse=True)
    assert {marker for _, marker in styles} == {styles[2][1]}
    assert tints(variants[:2])[1] == styles[2]  # without the default variant, the last one has the scheme's colour

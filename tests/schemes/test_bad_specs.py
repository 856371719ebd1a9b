"""Bad specs: one line that says what was given and what is allowed, and exit code 2."""

import typing

import pytest

import fieldlens
from fieldlens.cli import main
from fieldlens.core.errors import BadInput
from fieldlens.schemes.discovery import is_built_in, registry
from fieldlens.schemes.spec import COMMON, canonical, options, scheme

BUILT_IN = {name: cls for name, cls in registry().items() if is_built_in(cls)}
OPTIONS = [(name, key, option) for name, cls in BUILT_IN.items() for key, option in options(cls).items()]


def refused(spec: str, train_length: int | None = None) -> str:
    """The message with which a spec is refused, wherever it is read first."""
    with pytest.raises(BadInput) as caught:
        scheme(spec, 2, 8, train_length)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(("name", "key", "option"), OPTIONS, ids=[f"{name}:{key}" for name, key, _ in OPTIONS])
def test_every_option_refuses_what_it_cannot_read(name: str, key: str, option: typing.Any) -> None:
    """Of every option of every scheme: text, no value, given twice, not a number, too large."""
    allowed = typing.get_args(option.annotation) if typing.get_origin(option.annotation) is typing.Literal else ()
    message = refused(f"{name}:{key}=qqq")
    assert key in message
    assert "qqq" in message
    assert all(str(choice) in message for choice in allowed) or "must be" in message
    assert refused(f"{name}:{key}=").endswith(f"has no value: write {name}:{key}=VALUE")
    value = allowed[0] if allowed else 2
    assert refused(f"{name}:{key}={value},{key}={value}") == f"option '{key}' of scheme '{name}' is given twice"
    if not allowed:
        assert "must be" in refused(f"{name}:{key}=nan")
        assert "must be" in refused(f"{name}:{key}=1e99")


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_scheme_names_its_options(name: str) -> None:
    """An option that no scheme has: the answer lists those that this one has."""
    message = refused(f"{name}:qqq=1")
    assert f"unknown {name} option 'qqq'" in message
    assert all(key in message for key in options(BUILT_IN[name]))


BAD = {
    "rotary:scaling=yarn,factor=4": "scaling=yarn needs the original length, at least 2, got None: add original=",
    "rotary:scaling=dynamic,factor=4": "add original=LENGTH",
    "rotary:scaling=yarn,original=64": "scaling=yarn needs a factor greater than 1, got 1: add factor=4",
    "rotary:factor=4": "factor and original need a scaling, for example rotary:scaling=yarn,factor=4",
    "rotary:scaling=linear,factor=0.5": "needs a factor greater than 1, got 0.5",
    "rotary:scaling=yearn": "did you mean 'yarn'",
    "rotary:fraction=2": "fraction must be between 0 and 1, got 2",
    "rotary:base=1,scaling=yarn,factor=4,original=9": "base must be greater than 1, got 1",
    "xpos:scale_base=0": "scale_base must be greater than 0, got 0",
    "none:logits=logn": "logits=logn needs a training length of at least 2, got None",
    "none:logits=log": "unknown value of option 'logits' of scheme 'none': 'log'",
    "none:sink=yes": "unknown value of option 'sink' of scheme 'none': 'yes'",
    "fire:threshold=0": "threshold must be greater than 0, got 0",
    "fire:width=0": "width must be between 1 and 65536, got 0",
    "inkling:rank=0": "rank must be between 1 and 65536, got 0",
    "inkling:floor=0": "floor must be at least 1, got 0",
    "cope:positions=1": "positions must be between 2 and 65536, got 1",
    "rotary:fraction=-0.1": "fraction must be between 0 and 1, got -0.1",
    "rotary:scaling=ntk,factor=1": "scaling=ntk needs a factor greater than 1, got 1: add factor=4",
    "rotary:scaling=dynamic,factor=0.5,original=9": "scaling=dynamic needs a factor greater than 1, got 0.5",
    "rotary:original=64": "factor and original need a scaling",
    "rotary:base=0": "base must be greater than 0, got 0",
    "xpos:base=-1": "base must be greater than 0, got -1",
    "xpos:scale_base=-512": "scale_base must be greater than 0, got -512",
    "inkling:extent=0": "extent must be between 1 and 65536, got 0",
    "inkling:extent=70000": "extent must be between 1 and 65536, got 70000",
    "cope:positions=70000": "positions must be between 2 and 65536, got 70000",
    "fire:width=70000": "width must be between 1 and 65536, got 70000",
    "fire:threshold=-1": "threshold must be greater than 0, got -1",
    "none:window=-3": "window must be at least 1, got -3",
    "fox:gates=2": "unknown fox option 'gates'",
}


@pytest.mark.parametrize("spec", BAD)
def test_values_out_of_range(spec: str) -> None:
    assert BAD[spec] in refused(spec)


@pytest.mark.parametrize("scaling", ["dynamic", "yarn", "llama3"])
def test_a_scaling_needs_the_original_or_the_training_length(scaling: str) -> None:
    spec = f"rotary:scaling={scaling},factor=4"
    assert refused(spec).endswith("needs the original length, at least 2, got None: add original=LENGTH")
    assert "got 1: add original=LENGTH" in refused(spec, train_length=1)
    scheme(spec, 2, 8, train_length=32)
    scheme(f"{spec},original=32", 2, 8)
    with pytest.raises(BadInput, match="needs the original length"):
        fieldlens.Decoder(fieldlens.Config(scheme=f"none/{spec}", layers=2, width=16, heads=2))


PATTERNS = {
    "": "unknown scheme ''",
    "/": "'/' lacks a scheme before or after a slash",
    "rotary//none": "'rotary//none' lacks a scheme before or after a slash",
    "rotary/": "'rotary/' lacks a scheme before or after a slash",
    "/none": "'/none' lacks a scheme before or after a slash",
    "2*/none": "lacks a scheme before or after a slash",
    "2*": "unknown scheme ''",
    "*none": "'*none' in '*none' must be COUNT*SPEC with a count from 1 to 1024",
    "0*rotary/none": "'0*rotary' in '0*rotary/none' must be COUNT*SPEC with a count from 1 to 1024",
    "00*rotary/none": "must be COUNT*SPEC with a count from 1 to 1024",
    "-2*rotary": "must be COUNT*SPEC with a count from 1 to 1024",
    "1.5*rotary": "must be COUNT*SPEC with a count from 1 to 1024",
    "2*3*rotary/none": "'2*3*rotary' in '2*3*rotary/none' must be COUNT*SPEC with a count from 1 to 1024",
    "99999*rotary/none": "must be COUNT*SPEC with a count from 1 to 1024",
    "1000*rotary/1000*none": "has 2000 layers, more than 1024",
    "1025*none": "has 1025 layers, more than 1024",
    "2*(rotary/none)": "unknown scheme '(rotary'",
    "3*rotery/none": "unknown scheme 'rotery': did you mean 'rotary'",
    "rotary/none:window=0": "window must be at least 1, got 0",
    "rotary/none:windw=3": "unknown none option 'windw'",
    "none/rotary:scaling=yarn": "scaling=yarn needs a factor greater than 1, got 1: add factor=4",
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns(pattern: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadInput) as caught:
        fieldlens.Decoder(fieldlens.Config(scheme=pattern, layers=2, width=16, heads=2, vocab_size=9))
    assert PATTERNS[pattern] in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(SystemExit) as ended:
        main(["train", "--preset", "smoke", f"--scheme={pattern}", "--out", "never"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_common_options_are_read_by_all() -> None:
    for name in BUILT_IN:
        text = canonical(f"{name}:window=3,sink=learned,logits=ssmax")
        assert text == f"{name}:logits=ssmax,sink=learned,window=3"
    assert set(COMMON) == {"logits", "sink", "window"}

"""Protocols: the same targets at every length."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.protocols import Anchor, Eligible, Protocol, draw, eligible, options, protocol, registry

LENGTHS = [8, 16, 50]


def example(name: str) -> Protocol:
    """A protocol with options that the lengths above allow."""
    return protocol(name, **{"sliding": {"stride": 6}, "last-k": {"k": 8}}.get(name, {}))


@pytest.mark.parametrize("name", registry())
@given(seed=st.integers(0, 1000))
def test_excerpts_stay_inside_their_documents(name: str, seed: int) -> None:
    chosen, documents = example(name), [40, 160, 400, 51, 350]
    anchors = draw(eligible(documents, chosen, 50), 8, seed)
    assert len(set(anchors)) == 8
    for anchor in anchors:
        for length in LENGTHS:
            for excerpt in chosen.excerpts(anchor, length, 50):
                assert 0 <= excerpt.start < excerpt.stop < documents[excerpt.document]
                assert 1 <= excerpt.scored <= excerpt.stop - excerpt.start <= length
    targets = [t for a in anchors for w in chosen.excerpts(a, 50, 50) for t in w.targets()]
    assert len(set(targets)) == len(targets)


@pytest.mark.parametrize("name", [name for name in registry() if name != "by-position"])
def test_every_length_has_the_same_targets(name: str) -> None:
    chosen = example(name)
    targets = [[t for w in chosen.excerpts(Anchor(0, 60), n, 50) for t in w.targets()] for n in LENGTHS]
    assert targets[0] == targets[1] == targets[2]
    assert len(set(targets[0])) == len(targets[0])


def test_contexts_have_the_requested_length() -> None:
    (excerpt,) = protocol("last-token").excerpts(Anchor(3, 100), 64, 64)
    assert excerpt == (3, 36, 100, 1)
    assert excerpt.targets() == [(3, 100)]
    (excerpt,) = protocol("by-position").excerpts(Anchor(3, 100), 64, 64)
    assert excerpt.targets() == [(3, 164)]
    excerpts = protocol("non-overlapping").excerpts(Anchor(0, 1), 4, 10)
    assert [(w.start, w.stop, w.scored) for w in excerpts] == [(0, 4, 4), (4, 8, 4), (8, 10, 2)]
    excerpts = protocol("sliding", stride=2).excerpts(Anchor(0, 10), 4, 5)
    assert [(w.start, w.stop, w.scored) for w in excerpts] == [(7, 11, 2), (9, 13, 2), (10, 14, 1)]


def test_targets_are_drawn_uniformly_and_reproducibly() -> None:
    spans = [Eligible(5, 3), Eligible(0, 0), Eligible(2, 2)]
    assert draw(spans, 5, 0) == [(0, 5), (0, 6), (0, 7), (2, 2), (2, 3)]
    assert draw([Eligible(0, 1000)], 4, 0) == draw([Eligible(0, 1000)], 4, 0) == GOLDEN
    assert draw([Eligible(0, 1000)], 4, 1) != GOLDEN
    hits = [anchor.offset for seed in range(300) for anchor in draw([Eligible(0, 10)], 3, seed)]
    assert all(60 < hits.count(place) < 120 for place in range(10))


# by hand from random.Random(0).random(): .8444, .7580, .4206, .2589
GOLDEN = [(0, 261), (0, 421), (0, 758), (0, 844)]


def test_more_segments_than_eligible_tokens_are_refused() -> None:
    with pytest.raises(
        BadInput, match="segments must be at most 10, the number of eligible tokens in this text, got 11"
    ):
        draw([Eligible(0, 10)], 11, 0)
    with pytest.raises(BadInput, match="segments must be at least 1, got 0"):
        draw([Eligible(0, 10)], 0, 0)


def test_bad_options_are_refused() -> None:
    with pytest.raises(BadInput, match="unknown protocol 'last-tokn': did you mean 'last-token'"):
        protocol("last-tokn")
    with pytest.raises(BadInput, match="protocol 'last-token' has no option 'stride'"):
        protocol("last-token", stride=3)
    with pytest.raises(BadInput, match="stride must be between 1 and the shortest length, 8, got 9"):
        protocol("sliding", stride=9).check([8, 16])
    with pytest.raises(BadInput, match="k must be between 1 and the shortest length, 8, got 0"):
        protocol("last-k", k=0).check([8, 16])


def test_a_new_protocol_is_one_file(tmp_path: Path) -> None:
    """The command line, its help and study files offer the option of a protocol that is only a file in the folder."""
    (tmp_path / "skipping.py").write_text(
        "from dataclasses import dataclass\n"
        "from fieldlens.evaluation.protocols.base import Excerpt, Protocol, option\n"
        "@dataclass(frozen=True)\n"
        "class Skipping(Protocol):\n"
        "    name, version, help = 'skipping', 1, 'one target after a gap'\n"
        "    gap: int = option(2, 'Number of tokens to leave out')\n"
        "    def excerpts(self, anchor, length, longest):\n"
        "        return [Excerpt(anchor.document, anchor.offset - length, anchor.offset, 1)]\n"
    )
    (tmp_path / "study.toml").write_text(
        'preset = "smoke"\nmodels = ["alibi"]\n[evaluate]\nlengths = [8]\nprotocol = "skipping"\ngap = 5\n'
    )
    program = (
        "import sys\n"
        "from fieldlens.evaluation import protocols\n"
        "protocols.__path__.append(sys.argv[1])\n"
        "from fieldlens.cli import main\n"
        "from fieldlens.evaluation.request import EvalRequest\n"
        "from fieldlens.study.plan import read_study, request_fields\n"
        "(job,) = read_study(sys.argv[1] + '/study.toml').jobs\n"
        "request = EvalRequest(None, **request_fields(job.evaluations[0]))\n"
        "print(request.plan([8], None).protocol.about())\n"
        "main(['evaluate', '--help'])\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "COLUMNS": "300"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "{'name': 'skipping', 'version': 1, 'gap': 5}" in child.stdout
    assert "skipping: one target after a gap" in child.stdout
    assert "Number of tokens to leave out, for the protocol skipping. Default: 2." in child.stdout


def test_the_page_of_protocols_lists_every_option() -> None:
    page = (Path(__file__).parents[2] / "docs" / "evaluate.md").read_text()
    for name, cls in registry().items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}`")]
        for field in dataclasses.fields(cls):
            assert f"`--{field.name}`" in row, f"the row of {name} lacks --{field.name}"


def test_consecutive_contexts_are_nearly_the_length() -> None:
    chosen = protocol("consecutive", k=32)
    anchor, targets = Anchor(3, 2048), [Anchor(3, offset) for offset in range(2048, 2080)]
    for length, count in ((16, 32), (64, 8), (100, 6), (512, 1), (2048, 1)):
        excerpts = chosen.excerpts(anchor, length, 2048)
        assert len(excerpts) == count
        assert [target for excerpt in excerpts for target in excerpt.targets()] == targets
        for excerpt in excerpts:
            assert excerpt.stop - excerpt.start == length  # the last target of an excerpt has the whole length
            assert excerpt.scored <= max(1, length / 16)
    with pytest.raises(BadInput, match="k must be at least 1, got 0"):
        protocol("consecutive", k=0)


def test_an_option_of_two_protocols_is_described_once() -> None:
    assert options()["k"].help == (
        "Number of targets per segment, for the protocol consecutive or last-k. Default: 32 for consecutive, 16 for "
        "last-k."
    )
    assert options()["stride"].help == "Number of targets per excerpt, for the protocol sliding. Default: 32."

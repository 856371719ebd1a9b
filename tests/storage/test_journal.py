"""The journal of a computation: what is kept, and what is not trusted."""

from pathlib import Path

import pytest

from fieldlens.storage.journal import Journal


def test_records_come_back_in_order_and_more_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.part"
    first = Journal(path)
    assert first.read() == []
    for record in (b"one", b"", b"three" * 1000):
        first.append(record)
    second = Journal(path)
    assert second.read() == [b"one", b"", b"three" * 1000]
    second.append(b"four")
    assert Journal(path).read()[-1] == b"four"


@pytest.mark.parametrize("cut", [1, 3, 20, 43])
def test_a_record_that_was_cut_is_dropped_and_overwritten(tmp_path: Path, cut: int) -> None:
    journal = Journal(tmp_path / "a.part")
    journal.append(b"one")
    journal.append(b"two")
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole[:-cut])
    again = Journal(journal.path)
    kept = again.read()
    assert kept == ([b"one"] if cut < 43 else [b"one"][: len(whole) - cut >= 43])
    again.append(b"three")
    assert Journal(journal.path).read() == [*kept, b"three"]


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.part")
    journal.append(b"one")
    journal.append(b"two")
    whole = journal.path.read_bytes()
    for bit in range(8 * len(whole)):
        altered = bytearray(whole)
        altered[bit // 8] ^= 1 << bit % 8
        journal.path.write_bytes(altered)
        assert Journal(journal.path).read() == ([] if bit < 4 * len(whole) else [b"one"])

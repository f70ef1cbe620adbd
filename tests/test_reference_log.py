"""The reference that logs are compared with: checked against what others have published, and against its own rules."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from eventlog import Append, Expect, NewEvent
from tools.campaigns.model.reference_log import Place, ReferenceLog, Refusal, tree_root

VECTORS = Path(__file__).parent / "vectors" / "rfc6962" / "roots.json"


def new(number: int, text: str = "x") -> NewEvent:
    return NewEvent("noted", {"text": text}, number.to_bytes(16, "big"))


def append(*events: NewEvent, stream: str = "a", expect: Expect | None = None) -> list[Append]:
    return [Append(stream, list(events), expect or Expect.any())]


def test_roots_are_those_of_the_published_vectors() -> None:
    vectors = json.loads(VECTORS.read_text())
    leaves = [hashlib.sha256(b"\0" + bytes.fromhex(text)).digest() for text in vectors["leaf_inputs_hex"]]
    roots = [tree_root(leaves[:size]).hex() for size in range(len(leaves) + 1)]
    assert roots == vectors["root_hex_by_size"]


def test_a_repeat_is_answered_as_the_first_time_whatever_it_expects() -> None:
    log = ReferenceLog()
    assert log.append(append(new(1), new(2))) == [Place("a", 2, 1, 2, False)]
    assert log.append(append(new(1), new(2), expect=Expect.at(77))) == [Place("a", 2, 1, 2, True)]
    assert log.append(append(new(2))) == [Place("a", 2, 2, 2, True)]
    assert len(log.events) == 2


def test_other_content_or_another_order_under_the_same_ids_is_a_conflict() -> None:
    log = ReferenceLog()
    log.append(append(new(1), new(2)))
    for wrong in (append(new(1, "y")), append(new(2), new(1)), append(new(1), new(3)), append(new(1), stream="b")):
        assert log.append(wrong) == Refusal("event_id_conflict")


def test_a_missed_expectation_stores_nothing_of_any_stream() -> None:
    log = ReferenceLog()
    both = [*append(new(1)), *append(new(2), stream="b", expect=Expect.exists())]
    assert log.append(both) == Refusal("version_conflict", 0)
    assert log.append(append(new(1)), [("b", Expect.at(3))]) == Refusal("version_conflict", 0)
    assert log.events == []

"""Nothing of what is proved can be changed by a bit: of a row, a name, a head, or a signed approval.

Where a bit changes no verdict, the test says which, and why it means nothing.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from eventlog.audit.verify import Finding, OutsideHead, Trust, Verdicts, verify
from eventlog.stores import SqliteLog
from tests.attacker import attacking
from tests.proven_log import ProvenLog, build, check
from tools.campaigns.bit_flips.damages import drop_guards, flips
from tools.campaigns.storage.log_files import open_file

NOTE, APPROVAL = 5, 11
COLUMNS: Final = (
    "stream_id",
    "version",
    "type_id",
    "schema_version",
    "actor_id",
    "recorded_at_us",
    "event_id",
    "body_kind",
    "body",
    "salt",
    "leaf",
    "causation_id",
    "correlation_id",
    "position",
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> ProvenLog:
    return asyncio.run(build(tmp_path_factory.mktemp("original")))


@pytest.fixture
def world(original: ProvenLog, tmp_path: Path) -> ProvenLog:
    return original.copy_to(tmp_path / "copy")


class Editor:
    """A connection to a log without triggers and checks, beside one that verifies it again and again."""

    def __init__(self, path: Path) -> None:
        self._connection: Final = sqlite3.connect(path, isolation_level=None)
        drop_guards(self._connection)

    def rows(self, statement: str, *arguments: Any) -> list[Any]:
        return self._connection.execute(statement, arguments).fetchall()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def editor(world: ProvenLog) -> Iterator[Editor]:
    editor = Editor(world.path)
    yield editor
    editor.close()


async def verdicts_on(log: SqliteLog, trust: Trust, run: str | None = None) -> Verdicts:
    async def no_views() -> Finding:
        return Finding(verdict="ok")

    return await verify(log, run=run, artifacts=log.artifacts, views=no_views, trust=trust)


@pytest.mark.parametrize("column", COLUMNS)
async def test_every_bit_of_a_row_is_found(world: ProvenLog, editor: Editor, column: str, is_long: bool) -> None:
    """Each bit by the check of its page, and one of each byte by the verdicts on the whole log."""
    ((value,),) = editor.rows(f"SELECT {column} FROM events WHERE position = ?", NOTE)
    cast = "CAST(? AS TEXT)" if isinstance(value, str) else "?"
    trust = Trust(log_keys=[world.log_key])
    tried = 0
    async with open_file(world.path, is_read_only=True) as log:
        assert not (await verdicts_on(log, trust)).is_damaged, "the control is clean"
        for number, flipped in enumerate(flips(value)):
            try:
                editor.rows(f"UPDATE events SET {column} = {cast} WHERE position = ?", flipped, NOTE)
            except sqlite3.IntegrityError:  # another row has this place, or this is no value of the column's type
                continue
            tried += 1
            assert (await log.check_page(after=0)).problems, flipped
            if is_chosen(number, is_long):
                verdicts = await verdicts_on(log, trust)
                assert "damaged" in (verdicts.integrity.verdict, verdicts.order.verdict), flipped
            now = flipped if column == "position" else NOTE
            editor.rows(f"UPDATE events SET {column} = {cast} WHERE position = ?", value, now)
        assert not (await verdicts_on(log, trust)).is_damaged, "it was put back each time"
    assert tried


@pytest.mark.parametrize("table", ["streams", "types", "actors"])
async def test_every_bit_of_a_name_is_found(world: ProvenLog, editor: Editor, table: str) -> None:
    column = f"{table[:-1]}_id"
    ((number, name),) = editor.rows(
        f"SELECT {column}, name FROM {table} JOIN events USING ({column}) WHERE position = ?", NOTE
    )
    for flipped in flips(name):
        editor.rows(f"UPDATE {table} SET name = CAST(? AS TEXT) WHERE {column} = ?", flipped, number)
        async with open_file(world.path, is_read_only=True) as log:
            verdicts = await verdicts_on(log, Trust())
        assert verdicts.integrity.verdict == "damaged", flipped


async def test_every_bit_of_the_tree_is_found(world: ProvenLog, editor: Editor, is_long: bool) -> None:
    ((size, frontier),) = editor.rows("SELECT size, frontier FROM tree")
    async with open_file(world.path, is_read_only=True) as log:
        for flipped in some(flips(frontier), is_long):
            editor.rows("UPDATE tree SET frontier = ?", flipped)
            assert (await verdicts_on(log, Trust())).tree.verdict == "damaged"
        editor.rows("UPDATE tree SET frontier = ?", frontier)
        for wrong in some(flips(size), is_long):
            editor.rows("UPDATE tree SET size = ?", wrong)
            assert (await verdicts_on(log, Trust())).tree.verdict == "damaged"
        editor.rows("UPDATE tree SET size = ?", size)
        assert not (await verdicts_on(log, Trust())).is_damaged


async def test_every_byte_of_an_outside_head_counts(world: ProvenLog, is_long: bool) -> None:
    head = world.outside_heads()[-1]
    async with open_file(world.path, is_read_only=True) as log:
        for note in some(flips(head.note), is_long):
            trust = Trust(log_keys=[world.log_key], heads=[OutsideHead(note=note, source="flipped")])
            verdicts = await verdicts_on(log, trust)
            assert verdicts.heads.verdict in ("damaged", "unknown"), note
        for cut in range(0, len(head.note), 1 if is_long else 9):
            trust = Trust(log_keys=[world.log_key], heads=[OutsideHead(note=head.note[:cut], source="cut")])
            assert (await verdicts_on(log, trust)).heads.verdict == "damaged"


async def test_every_byte_of_a_stored_head_counts_but_the_clock_of_the_signer(
    world: ProvenLog, editor: Editor, is_long: bool
) -> None:
    trust = Trust(log_keys=[world.log_key])
    ((size, log_id, note),) = editor.rows("SELECT size, log_id, note FROM heads WHERE size = 11")
    async with open_file(world.path, is_read_only=True) as log:
        for flipped in some(flips(note), is_long):
            editor.rows("UPDATE heads SET note = ? WHERE size = ?", flipped, size)
            assert (await verdicts_on(log, trust)).heads.verdict == "damaged", flipped
        editor.rows("UPDATE heads SET note = ? WHERE size = ?", note, size)
        for flipped in some(flips(log_id), is_long):
            editor.rows("UPDATE heads SET log_id = ? WHERE size = ?", flipped, size)
            assert (await verdicts_on(log, trust)).heads.verdict == "damaged", flipped
        editor.rows("UPDATE heads SET log_id = ? WHERE size = ?", log_id, size)
        for wrong in some(flips(size), is_long):
            try:
                editor.rows("UPDATE heads SET size = ? WHERE size = ?", wrong, size)
            except sqlite3.IntegrityError:
                continue
            assert (await verdicts_on(log, trust)).heads.verdict == "damaged", wrong
            editor.rows("UPDATE heads SET size = ? WHERE size = ?", size, wrong)
        # When a head was signed stands in no signed byte, and no verdict rests on it: a note has no time of its own.
        editor.rows("UPDATE heads SET signed_at_us = 5 WHERE size = ?", size)
        verdicts = await verdicts_on(log, trust)
        assert (verdicts.is_damaged, verdicts.heads.details["anchored_at_us"]) == (False, None)


async def test_every_byte_of_a_signed_approval_counts_although_every_hash_is_computed_again(
    world: ProvenLog, is_long: bool
) -> None:
    """The envelope is bound by its own signature, the rest of the event by what was signed."""
    with sqlite3.connect(world.path) as connection:
        statement = "SELECT CAST(body AS BLOB) FROM events WHERE position = ?"
        (body,) = connection.execute(statement, (APPROVAL,)).fetchone()
    connection.close()
    for at in range(0, len(body), 1 if is_long else 37):
        flipped = bytearray(body)
        flipped[at] ^= 1
        with attacking(world.path) as attacker:
            attacker.run("UPDATE events SET body = CAST(? AS TEXT) WHERE position = ?", bytes(flipped), APPROVAL)
            attacker.rehash_only(APPROVAL)
            attacker.replant()
            attacker.drop_heads()
        verdicts = await check(world.path, Trust(), run="r1")
        found = {name for name, finding in verdicts.findings.items() if finding.verdict == "damaged"}
        assert found in ({"approvals"}, {"integrity"}), bytes(flipped[max(at - 20, 0) : at + 20])


def some(values: Iterator[Any], is_long: bool) -> Iterator[Any]:
    """Give all of them, or one bit of each byte, a different one for each."""
    return (value for number, value in enumerate(values) if is_chosen(number, is_long))


def is_chosen(number: int, is_long: bool) -> bool:
    return is_long or number % 8 == number // 8 % 8

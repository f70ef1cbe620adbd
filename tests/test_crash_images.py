"""What a power cut may leave of a small trace written by hand, and what the judge of such images says."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from eventlog import Expect, NewEvent
from eventlog.entry import NO_HASH, NO_ID, prefixed, seal
from eventlog.merkle import Frontier
from tools.campaigns.power_cuts.disk import ALL, SECTOR, Cut, Disk, Kept, sectors_of
from tools.campaigns.power_cuts.draws import draws
from tools.campaigns.power_cuts.history import History, Rows, Wrong
from tools.campaigns.power_cuts.judge import Judge, read_log
from tools.campaigns.power_cuts.scene import LOG, Effect
from tools.campaigns.power_cuts.tails import check_refusal, lose_tail
from tools.campaigns.power_cuts.trace import (
    ROOT,
    Changed,
    Made,
    Operation,
    Start,
    Synced,
    Told,
    Trace,
    Truncated,
    Wrote,
)
from tools.campaigns.storage.log_files import open_file

FILE = 1
NAMED = (Made(FILE, False), Changed(ROOT, (("f", FILE),)), Synced(ROOT))
"""An empty file whose name is durable."""


def disk_after(*operations: Operation, start: Start | None = None) -> Disk:
    disk = Disk(start or Start())
    for operation in operations:
        disk.apply(operation)
    return disk


def contents_of(disk: Disk, path: str, tries: int = 300) -> set[bytes | None]:
    """Return all that was found at a path in many images."""
    found: set[bytes | None] = set()
    for kept in draws(disk, random.Random(7), tries):
        cut = Cut(disk, kept)
        number = cut.find(path)
        found.add(None if number is None else cut.content(number))
    return found


def test_what_was_flushed_is_in_every_image() -> None:
    assert contents_of(disk_after(*NAMED, Wrote(FILE, 0, b"abc"), Synced(FILE)), "f") == {b"abc"}


def test_a_write_that_was_not_flushed_is_there_or_not() -> None:
    assert contents_of(disk_after(*NAMED, Wrote(FILE, 0, b"abc")), "f") == {b"", b"abc"}


def test_writes_that_were_not_flushed_are_lost_in_any_order() -> None:
    disk = disk_after(*NAMED, Wrote(FILE, 0, b"ab"), Wrote(FILE, 1, b"c"))
    assert contents_of(disk, "f") == {b"", b"ab", b"\0c", b"ac"}


def test_a_write_is_torn_between_sectors_and_never_within_one() -> None:
    disk = disk_after(*NAMED, Wrote(FILE, 500, b"a" * 600))
    first, second, third = (500, 512), (512, 1024), (1024, 1100)
    assert sectors_of(Wrote(FILE, 500, b"a" * 600)) == 3
    for content in contents_of(disk, "f"):
        assert content is not None
        for begin, end in (first, second, third):
            assert set(content[begin:end]) in (set(), {0}, {ord("a")})
    assert len(contents_of(disk, "f")) == 2**3


def test_what_a_sector_keeps_is_what_was_written_there() -> None:
    disk = disk_after(*NAMED, Wrote(FILE, 0, b"a" * SECTOR + b"b" * SECTOR))
    assert Cut(disk, Kept({FILE: (0b10,)})).content(FILE) == bytes(SECTOR) + b"b" * SECTOR


def test_a_change_of_size_is_there_or_not_whatever_comes_of_later_writes() -> None:
    disk = disk_after(*NAMED, Wrote(FILE, 0, b"abc"), Synced(FILE), Truncated(FILE, 0), Wrote(FILE, 0, b"x"))
    assert contents_of(disk, "f") == {b"abc", b"", b"xbc", b"x"}


def test_a_file_that_is_flushed_may_still_have_no_name() -> None:
    disk = disk_after(Made(FILE, False), Changed(ROOT, (("f", FILE),)), Wrote(FILE, 0, b"abc"), Synced(FILE))
    assert contents_of(disk, "f") == {None, b"abc"}


def test_a_name_that_is_flushed_says_nothing_of_the_content() -> None:
    disk = disk_after(Made(FILE, False), Changed(ROOT, (("f", FILE),)), Wrote(FILE, 0, b"abc"), Synced(ROOT))
    assert contents_of(disk, "f") == {b"", b"abc"}


def test_of_the_changes_of_a_directory_the_first_ones_are_kept() -> None:
    changes = [Changed(ROOT, ((name, FILE),)) for name in "xyz"]
    disk = disk_after(Made(FILE, False), *changes)
    found = {frozenset(Cut(disk, kept).directory()) for kept in draws(disk, random.Random(7), 100)}
    assert found == {frozenset(""), frozenset("x"), frozenset("xy"), frozenset("xyz")}


def test_a_rename_is_seen_whole_or_not_at_all() -> None:
    disk = disk_after(*NAMED, Changed(ROOT, (("f", None), ("g", FILE))))
    found = {frozenset(Cut(disk, kept).directory()) for kept in draws(disk, random.Random(7), 100)}
    assert found == {frozenset("f"), frozenset("g")}


def test_each_directory_is_flushed_by_itself() -> None:
    disk = disk_after(
        Made(2, True),
        Changed(ROOT, (("d", 2),)),
        Synced(ROOT),
        Made(FILE, False),
        Changed(2, (("f", FILE),)),
        Changed(ROOT, (("g", FILE),)),
        Synced(ROOT),
    )
    assert contents_of(disk, "g") == {b""}
    assert contents_of(disk, "d/f") == {None, b""}


def test_a_file_with_two_names_is_one_file() -> None:
    disk = disk_after(*NAMED, Changed(ROOT, (("g", FILE),)), Synced(ROOT), Wrote(FILE, 0, b"x"), Synced(FILE))
    assert contents_of(disk, "f") == contents_of(disk, "g") == {b"x"}


def test_what_a_disk_begins_with_is_durable_and_a_cut_is_such_a_beginning() -> None:
    disk = disk_after(*NAMED, Wrote(FILE, 0, b"abc"))
    start = Cut(disk, disk.everything()).tree()
    assert contents_of(disk_after(start=start), "f") == {b"abc"}


def test_equal_choices_are_drawn_once() -> None:
    disk = disk_after(*NAMED, Wrote(FILE, 0, b"abc"))
    assert len(list(draws(disk, random.Random(7), 100))) == 2
    assert len(list(draws(disk_after(*NAMED), random.Random(7), 100))) == 1


@pytest.mark.parametrize("seed", range(20))
def test_equal_keys_mean_equal_contents(seed: int) -> None:
    """At all moments: a key is remembered beyond the one at which it was first seen."""
    chance = random.Random(seed)
    disk, seen = disk_after(*NAMED), dict[object, bytes]()
    for _ in range(40):
        wrote = Wrote(FILE, chance.randrange(1500), chance.randbytes(chance.randint(1, 900)))
        some: list[Operation] = [wrote, Truncated(FILE, chance.randrange(1000)), Synced(FILE)]
        disk.apply(chance.choice(some))
        for kept in draws(disk, chance, 8):
            cut = Cut(disk, kept)
            assert seen.setdefault(cut.key(FILE), cut.content(FILE)) == cut.content(FILE)


# ── the judge ─────────────────────────────────────────────────────────────────────────────────────────────────────────

DATABASE, WAL = 2, 3


@pytest.fixture
async def log_files(tmp_path: Path) -> tuple[Rows, bytes, bytes]:
    """A log of three events: its rows, its database and its write-ahead log."""
    async with open_file(tmp_path / LOG) as log:
        for number in range(3):
            await log.append("s", [NewEvent("noted", {"number": number})], expect=Expect.any())
        files = read_elsewhere(tmp_path / LOG), read_elsewhere(tmp_path / f"{LOG}-wal")
    return read_log(tmp_path / LOG), *files


def read_elsewhere(path: Path) -> bytes:
    """Read a file in another process: if this one closed a file that SQLite uses, SQLite would lose its locks on it."""
    return subprocess.run(["cat", path], check=True, capture_output=True).stdout


@pytest.fixture
def judge(tmp_path: Path, log_files: tuple[Rows, bytes, bytes]) -> Iterator[Judge]:
    made = Judge(tmp_path / "judge", History(log_files[0], Trace(Start(), []), []))
    yield made
    made.close()


def cut_of(database: bytes, wal: bytes | None) -> Cut:
    files = {DATABASE: database} | ({WAL: wal} if wal is not None else {})
    names = {LOG: DATABASE} | ({f"{LOG}-wal": WAL} if wal is not None else {})
    disk = Disk(Start(files, {ROOT: names}))
    return Cut(disk, Kept())


def test_the_judge_counts_the_events_that_are_left(judge: Judge, log_files: tuple[Rows, bytes, bytes]) -> None:
    _, database, wal = log_files
    assert judge.events_of(cut_of(database, wal)) == 3


def test_a_lost_end_of_the_write_ahead_log_is_fewer_events(
    tmp_path: Path, log_files: tuple[Rows, bytes, bytes]
) -> None:
    """One file gets shorter and shorter: the connection that stays open recovers each time, and sees no leftovers."""
    rows, database, wal = log_files
    disk = Disk(Start({DATABASE: database, WAL: b""}, {ROOT: {LOG: DATABASE, f"{LOG}-wal": WAL}}))
    judge = Judge(tmp_path / "lengths", History(rows, Trace(Start(), []), []))
    found = []
    for size in (*range(0, len(wal), 4120), len(wal), 0, len(wal)):
        disk.apply(Truncated(WAL, 0))
        disk.apply(Wrote(WAL, 0, wal[:size]))
        disk.apply(Synced(WAL))
        found.append(judge.events_of(Cut(disk, Kept())))
    judge.close()
    assert found[:-2] == sorted(found[:-2]) and set(found) == {0, 1, 2, 3}
    assert found[-3:] == [3, 0, 3]


def test_without_a_database_there_are_no_events(judge: Judge) -> None:
    assert judge.events_of(Cut(Disk(Start()), Kept())) == 0


def test_a_page_of_garbage_is_found(judge: Judge, log_files: tuple[Rows, bytes, bytes]) -> None:
    _, database, _ = log_files
    with pytest.raises(Wrong) as caught:
        judge.events_of(cut_of(database[:100] + b"\xff" * (len(database) - 100), None))
    assert caught.value.invariant == "I10"


def changed(rows: Rows, place: int, column: int, value: object) -> Rows:
    events = list(rows.events)
    events[place] = (*events[place][:column], value, *events[place][column + 1 :])
    return rows._replace(events=events)


@pytest.mark.parametrize(("column", "value"), [(0, 9), (2, 9), (6, 1), (7, b"x" * 16), (11, "{}"), (13, b"x" * 32)])
def test_an_event_that_is_not_the_one_that_was_appended_is_found(
    log_files: tuple[Rows, bytes, bytes], column: int, value: object
) -> None:
    rows = log_files[0]
    with pytest.raises(Wrong):
        History(rows, Trace(Start(), []), []).events_of(changed(rows, 1, column, value))
    with pytest.raises(Wrong):
        History(changed(rows, 1, column, value), Trace(Start(), []), [])


def test_a_tree_of_another_size_is_found(log_files: tuple[Rows, bytes, bytes]) -> None:
    rows = log_files[0]
    with pytest.raises(Wrong, match="tree"):
        History(rows, Trace(Start(), []), []).events_of(rows._replace(events=rows.events[:2]))


def test_what_was_told_counts_from_the_operation_behind_it(log_files: tuple[Rows, bytes, bytes]) -> None:
    rows = log_files[0]
    event = rows.events[1]
    line = f'{{"id": "{event[7].hex()}", "stream": "s", "version": 2, "position": 2, "leaf": "{event[13].hex()}"}}\n'
    trace = Trace(Start(), [Told(line[:10].encode()), Told(line[10:].encode()), Synced(ROOT)])
    history = History(rows, trace, [])
    assert [history.told_at(moment) for moment in range(4)] == [0, 0, 2, 2]
    with pytest.raises(Wrong) as caught:
        History(rows, Trace(Start(), [Told(line.replace('"version": 2', '"version": 3').encode())]), [])
    assert caught.value.invariant == "I1"


RUN = (("proposal_recorded", 1), ("resume_started", 2), ("action_executed", 3))


@pytest.mark.parametrize(
    ("count", "content", "invariant"),
    [
        (1, None, None),
        (1, b"text", "I5"),
        (2, None, None),
        (2, b"text", None),
        (2, b"te", "I6"),
        (3, b"text", None),
        (3, None, "I6"),
        (3, b"", "I6"),
    ],
)
def test_a_target_needs_an_intent_and_a_result_needs_its_target(
    count: int, content: bytes | None, invariant: str | None
) -> None:
    history = history_of(RUN)
    if invariant is None:
        history.check_files(count, {"out/t.txt": content}.get)
        return
    with pytest.raises(Wrong) as caught:
        history.check_files(count, {"out/t.txt": content}.get)
    assert caught.value.invariant == invariant


def history_of(run: Sequence[tuple[str, int]]) -> History:
    """Return a history of one run whose events have these types; their hashes are right."""
    events, previous, frontier = [], NO_HASH, Frontier()
    for kind, position in run:
        texts = b"".join(map(prefixed, ("run:r", kind, "a", "")))
        event_id, salt = position.to_bytes(16), bytes(16)
        leaf = seal(b"L" * 16, position, position, 0, 1, event_id, NO_ID, salt, b"{}", previous, texts)
        events.append((position, 1, position, position, 1, 1, 0, event_id, None, None, 0, "{}", salt, leaf))
        frontier.extend([leaf])
        previous = leaf
    names = [[(1, "run:r")], [(position, kind) for kind, position in run], [(1, "a")]]
    rows = Rows(events, names, [(len(run), frontier.to_bytes())], [(b"L" * 16,)])
    return History(rows, Trace(Start(), []), [Effect("r", "t.txt", "text")])


@pytest.mark.parametrize(
    "run",
    [
        (("action_executed", 1), ("resume_started", 2)),
        (("resume_started", 1), ("action_executed", 2), ("action_recovered", 3)),
    ],
)
def test_a_run_whose_result_has_no_intent_or_comes_twice_is_found(run: Sequence[tuple[str, int]]) -> None:
    with pytest.raises(Wrong) as caught:
        history_of(run)
    assert caught.value.invariant == "I5"


def test_all_and_every_sector_are_the_same_choice() -> None:
    disk = disk_after(*NAMED, Wrote(FILE, 0, b"a" * 700))
    assert Cut(disk, Kept({FILE: (0b11,)})).content(FILE) == Cut(disk, Kept({FILE: (ALL,)})).content(FILE)
    assert {mask for kept in draws(disk, random.Random(7), 100) for mask in kept.writes.get(FILE, ())} <= {ALL, 0, 1, 2}


# ── lost tails ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("said", "left", "signed", "invariant"),
    [
        ({"head": 5}, 5, 5, None),
        ({"head": 6}, 6, 5, None),
        ({"refused": "store_rolled_back"}, 4, 5, None),
        ({"refused": "store_corrupt"}, None, 5, None),
        ({"head": 4}, 4, 5, "I10"),
        ({"head": 4}, None, 5, "I10"),
        ({"refused": "store_busy"}, 4, 5, "I10"),
        ({"refused": "store_rolled_back"}, 5, 5, "I8"),
        ({"head": 4}, 5, 3, "I8"),
    ],
)
def test_a_log_is_refused_exactly_if_it_has_less_than_was_signed(
    said: dict[str, object], left: int | None, signed: int, invariant: str | None
) -> None:
    if invariant is None:
        check_refusal(said, left, signed)
        return
    with pytest.raises(Wrong) as caught:
        check_refusal(said, left, signed)
    assert caught.value.invariant == invariant


def test_a_tail_is_lost_in_each_way_and_nothing_else_changes() -> None:
    wal = bytes(range(256))
    start = Start({DATABASE: b"d", WAL: wal}, {ROOT: {LOG: DATABASE, f"{LOG}-wal": WAL}})
    found = set()
    for seed in range(30):
        lost = lose_tail(start, random.Random(seed))
        assert lost is not None
        left = lost[1]
        assert left.files[DATABASE] == b"d" and left.directories[ROOT][LOG] == DATABASE
        assert WAL not in left.directories[ROOT].values() or left.files[WAL] != wal
        found.add(lost[0].split()[1])
    assert found == {"removed", "cut", "another"}
    assert lose_tail(Start({DATABASE: b"d"}, {ROOT: {LOG: DATABASE}}), random.Random(1)) is None

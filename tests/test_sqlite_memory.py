"""When SQLite runs out of memory: a coded answer, nothing half written, and the log goes on.

SQLite has a limit of its own for what it allocates (`PRAGMA hard_heap_limit`); behind it a statement fails with
SQLITE_NOMEM, for which Python's driver raises MemoryError, which is none of its own errors.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tests import memory_scenarios
from tools.campaigns.processes import child
from tools.campaigns.storage.log_files import assert_whole, open_file


@pytest.mark.processes
async def test_append_without_memory_enough_is_told_so_and_is_stored_whole_or_not_at_all(tmp_path: Path) -> None:
    done = child.run(memory_scenarios.append_with_less_and_less, tmp_path / "log.db")
    assert (done.returncode, done.stderr) == (0, "")
    told = Counter(each["told"] for each in done.result)
    assert set(told) <= {"stored", "store_out_of_memory", "commit_outcome_unknown"}
    assert told["stored"] > 10 and told["store_out_of_memory"] > 10
    answers = [each["told"] for each in done.result]
    assert ("store_out_of_memory", "stored") in pairwise(answers), "it did not go on"
    async with open_file(tmp_path / "log.db") as log:
        lengths = Counter([event.stream async for event in log.read_all()])
        for each in done.result:
            stored = lengths[each["stream"]]
            match each["told"]:
                case "stored":
                    assert stored == each["count"]
                case "store_out_of_memory":
                    assert stored == 0
                case _:
                    assert stored in (0, each["count"])
        await assert_whole(log)

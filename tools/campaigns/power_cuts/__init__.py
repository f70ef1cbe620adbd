"""Power cuts: the engine works on a recording file system, and what a cut may have left is looked at, image by image.

A trace is recorded of the unmodified engine at work: appends, runs with their effects on files, WAL checkpoints, the
log closed and opened again (F12, F04). At every operation of it the power is cut, many times: un-synced writes are
lost, reordered and torn (F13). Every image is read by plain SQLite, which makes no use of what was in `-shm` (F29).
In every third trace a process is killed in an effect, and another one goes on before any power is cut. From a sample of
images the engine itself recovers, and some of these recoveries are recorded and cut in turn (F14). Of logs whose heads
are signed the write-ahead log is also removed, cut short or damaged (F28, F30).

Cases: `t3@512` is operation 512 of trace 3, `t3+1` its recovery number 1, recorded, `t3+1@40` operation 40 of that,
`t3~5` its recovery number 5 that was not recorded, and `t3-2` its lost tail number 2. What is drawn at an operation is
the same for the same seed; the traces are alike, but threads of the engine and the writing of several tasks at once are
the system's to order.
"""

from __future__ import annotations

from tools.campaigns.frame.campaign import Break, Campaign, Control, Goal
from tools.campaigns.power_cuts.campaign import run
from tools.campaigns.power_cuts.recorder import lacks

__all__ = ["CAMPAIGN"]

CAMPAIGN = Campaign(
    name="power_cuts",
    title="the power is cut at every operation of engine and effects, and again during recovery",
    promise="what was acknowledged is there, nothing is half there, a result means a durable effect",
    faults=("F04", "F12", "F13", "F14", "F28", "F29", "F30"),
    invariants=("I1", "I2", "I5", "I6", "I8", "I9", "I10"),
    run=run,
    cases=r"t[0-9]+([+~-][0-9]+)?(@[0-9]+)?",
    goals={
        "images": Goal(fast=40_000, long=1_000_000, control=240_000),
        "compound": Goal(fast=1_000, long=100_000, control=1),
        "recoveries": Goal(fast=25, long=1_000, control=1),
        "tails": Goal(fast=20, long=300, control=100),
        "killed in an effect": Goal(fast=1, long=20, control=8),
    },
    controls=(
        Control(
            "synchronous_normal",
            "commits are not flushed",
            (
                Break(
                    "eventlog/stores/sqlite/connection.py",
                    '("synchronous", settings.durability.upper(), {"full": "2", "normal": "1"}[settings.durability]),',
                    '("synchronous", "NORMAL", "1"),',
                ),
            ),
            shows="^I1 .* are left",
        ),
        Control(
            "no_flush_of_the_name",
            "the directory is not flushed after the link",
            (
                Break(
                    "eventlog/runtime/actions/write_file.py",
                    "            flush(effect.directory)\n            _remove_temp(effect, call.attempt)",
                    "            _remove_temp(effect, call.attempt)",
                ),
            ),
            shows="^I6 .* is not there",
        ),
        Control(
            "no_flush_of_the_content",
            "the temporary file is not flushed before the link",
            (
                Break(
                    "eventlog/runtime/actions/write_file.py",
                    "            rest = rest[os.write(fd, rest) :]\n        flush(fd)\n",
                    "            rest = rest[os.write(fd, rest) :]\n",
                ),
            ),
            shows="^I6 .* nobody approved",
        ),
        Control(
            "found_file_not_flushed",
            "a file that another process has left is taken for durable as it is",
            (
                Break(
                    "eventlog/runtime/actions/write_file.py",
                    "        flush(fd)\n        flush(effect.directory)\n        _sweep(effect)\n",
                    "        _sweep(effect)\n",
                ),
            ),
            shows="^I6 .* is not there",
        ),
        Control(
            "effect_before_head",
            "an effect begins though no head over its intent was signed",
            (
                Break(
                    "eventlog/runtime/attempts.py",
                    "        await self._begin(claims, deadline_us)\n        await self._sign_head()\n",
                    "        await self._begin(claims, deadline_us)\n",
                ),
            ),
            shows="^I5 .* under no signed head",
        ),
        Control(
            "torn_heads",
            "a torn line in the file of heads is taken for a whole one",
            (
                Break(
                    "eventlog/audit/heads/head_file.py",
                    "    return start if _NUL in _read(descriptor, start, end) else end\n",
                    "    return end\n",
                ),
            ),
            shows="^I1 .* the signer cannot go on",
        ),
        Control(
            "no_flush_of_the_key_folder",
            "the folder of the subjects' keys is made and its name not flushed",
            (Break("eventlog/stores/subject_keys.py", "        _sync_names_above(self._folder)\n", ""),),
            shows="^I1 .* has lost private/keys",
        ),
        Control(
            "heads_not_compared",
            "a log is opened without a look at the last head that was signed",
            (
                Break(
                    "eventlog/stores/head_keeper.py",
                    "            await self._require_growth(last, size)\n",
                    "            pass\n",
                ),
            ),
            shows="^I10 .* it was opened",
        ),
    ),
    limit_s=Goal(fast=300, long=2400, control=300),
    lacks=lacks,
)

"""One drive of a workflow run: its code is run from the top, what it finished before comes from the log, and new things
happen until it ends, or until nothing of it can go on by itself.

    replay     an operation that the log knows is answered from there
    go on      one that the log does not know is done, but not before everything that the log knows has been asked for:
               code that asks for something else than it did is found out before it acts
    pause      when no operation is at work and some wait for a person, a signal, a time or another run, one checkpoint
               says so, and the code is unwound by `Suspended`; no process is needed until something comes

    drive        the life of a drive, from the first line of the code to the last, and what operations ask of it
    branches     under which key the code asks for something
    askers       which tasks of the code ask, and which failures each goes on behind
    replay       whether all that the log holds has been asked for
    pauses       what is at work, what waits, and when that makes a pause
    checkpoints  what commits, gives free and takes snapshots
    suspension   whether the code is let on
    watch        the claim is renewed, and the log looked at
"""

from eventlog.runtime.drive.askers import GROUP, STEP, Asked
from eventlog.runtime.drive.branches import BRANCH, Branch
from eventlog.runtime.drive.drive import Drive
from eventlog.runtime.drive.suspension import Suspended

__all__ = ["BRANCH", "GROUP", "STEP", "Asked", "Branch", "Drive", "Suspended"]

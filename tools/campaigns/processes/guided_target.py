"""The process in which one target of the campaign `fuzz` is fuzzed by `atheris`. It ends as the fuzzer ends.

    python3 -m tools.campaigns.processes.guided_target TARGET RUNS SEED FOUND

It is no part of the package `fuzz`, because all that the targets are about has to be imported here, while imports are
instrumented. The first input with which something is wrong is written to the file FOUND: what that is, and the bytes.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

__all__ = ["main"]

_INSTRUMENTED: Final = (
    "eventlog.codec", "eventlog.plain", "eventlog.proposal", "eventlog.values", "eventlog.entry", "eventlog.times",
    "eventlog.text", "eventlog.scanning", "eventlog.signing", "eventlog.stores.refused_secrets", "rfc8785",
)  # fmt: skip
_LONGEST: Final = 1024


def main(name: str, runs: int, seed: int, found: Path) -> None:
    """Fuzz the target; does not return."""
    import atheris  # before anything of what it has to see

    with atheris.instrument_imports(include=list(_INSTRUMENTED)):
        guided = import_module("tools.campaigns.fuzz.guided")
        targets = import_module(f"tools.campaigns.fuzz.{guided.GUIDED[name]}").TARGETS
    target = next(each for each in targets if each.name == name)

    def one(data: bytes) -> None:
        wrong = guided.run_bytes(target, data)
        if wrong is not None:
            found.write_text(f"{wrong}\nbytes {data.hex()}")
            os._exit(1)

    atheris.Setup([sys.argv[0], f"-runs={runs}", f"-seed={seed % 2**31 or 1}", f"-max_len={_LONGEST}"], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))

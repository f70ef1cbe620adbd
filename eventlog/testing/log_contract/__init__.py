"""What every log has to do: a suite of tests that the tests of a store inherit.

    class TestMyLog(LogContract):
        @pytest.fixture
        def new_log(self, tmp_path: Path) -> NewLog:
            names = itertools.count()
            return lambda **options: MyLog(tmp_path / f"{next(names)}.log", **options)

`new_log` is all that a store gives: each call makes another log, empty and not opened yet, from the keyword options
`actor`, `registry`, `limits` and `clock`, any of which may be absent. Whatever the suite opened is checked by
`check_page` when it is closed, so that each test is also one of the integrity of the log. Runs under pytest-asyncio in
auto mode.

The classes have one subject each, in files by what a caller does with a log; `LogContract` is all of them.
"""

from __future__ import annotations

from eventlog.errors import Misuse

try:
    from eventlog.testing.log_contract.appending import (
        AppendContract,
        AppendManyContract,
        ConcurrencyContract,
        ExpectContract,
        RetryContract,
    )
    from eventlog.testing.log_contract.beside import ArtifactsContract, SnapshotsContract
    from eventlog.testing.log_contract.contents import ContentContract, ReservedContract, TypesContract
    from eventlog.testing.log_contract.life import LifeContract
    from eventlog.testing.log_contract.proving import ProvingContract, assert_tree
    from eventlog.testing.log_contract.reading import LookUpContract, ReadContract
    from eventlog.testing.log_contract.schemas import SchemaContract
    from eventlog.testing.log_contract.subject import NewLog, OpenableLog, OpenLog, assert_sound
    from eventlog.testing.log_contract.subscribing import SubscribeContract
except ModuleNotFoundError as error:
    if error.name != "pytest":
        raise
    raise Misuse("missing_extra", "the contract suite runs under pytest: install `eventlog-engine[dev]`") from error

__all__ = [
    "AppendContract",
    "AppendManyContract",
    "ArtifactsContract",
    "ConcurrencyContract",
    "ContentContract",
    "ExpectContract",
    "LifeContract",
    "LogContract",
    "LookUpContract",
    "NewLog",
    "OpenLog",
    "OpenableLog",
    "ProvingContract",
    "ReadContract",
    "ReservedContract",
    "RetryContract",
    "SchemaContract",
    "SnapshotsContract",
    "SubscribeContract",
    "TypesContract",
    "assert_sound",
    "assert_tree",
]


class LogContract(
    ExpectContract,
    AppendContract,
    AppendManyContract,
    RetryContract,
    ConcurrencyContract,
    ContentContract,
    TypesContract,
    SchemaContract,
    ReservedContract,
    ArtifactsContract,
    SnapshotsContract,
    ReadContract,
    LookUpContract,
    SubscribeContract,
    ProvingContract,
    LifeContract,
):
    """All of it. Inherit this, and give the fixture `new_log`."""

"""`eventlog verify --pack`: the verdicts on an evidence pack, by the verifier that is in every pack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from eventlog.audit.pack.verifier import read_kept, text_of, trust_of, verify_pack, with_key_of_file
from eventlog.cli.failures import CannotVerify
from eventlog.cli.options import Options
from eventlog.cli.output import write_document, write_text
from eventlog.errors import StoreUnavailable

__all__ = ["check_pack"]


def check_pack(
    options: Options,
    path: str,
    *,
    log_keys: Sequence[str],
    approvers: Sequence[str],
    heads: Sequence[str],
    min_level: int,
    run_id: str | None,
) -> int:
    """Show the verdicts on the pack at `path`, and return the exit status: 0 all of it holds, 3 not, 4 not known.

    Raises click.UsageError for a key that is none, CannotVerify where a file cannot be read.
    """
    try:
        trust = trust_of(
            log_keys=log_keys,
            approvers=[with_key_of_file(each) for each in approvers],
            heads=list(_read(heads)),
            min_level=min_level,
            run=run_id,
        )
    except ValueError as error:
        raise click.UsageError(f"{error}.") from error
    try:
        report = verify_pack(path, trust)
    except (OSError, ImportError) as error:
        raise _unreadable(path, error) from error
    if options.is_json:
        write_document(report.to_json())
    else:
        write_text(text_of(report))
    return report.exit_status


def _read(paths: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        try:
            yield path, read_kept(path)
        except OSError as error:
            raise _unreadable(path, error) from error


def _unreadable(path: str, error: Exception) -> CannotVerify:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return CannotVerify(StoreUnavailable("store_cannot_open", f"{path!r} cannot be read: {why}", path=path))

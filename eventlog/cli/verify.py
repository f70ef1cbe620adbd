"""`eventlog verify`: whether the log is what was appended, and the views what the log says."""

from __future__ import annotations

from functools import partial
from typing import Final

import click

from eventlog.audit.snapshots import check_snapshots
from eventlog.audit.verify import Finding, Trust, Verdicts, damage
from eventlog.audit.verify import verify as verify_log
from eventlog.cli.advice import spelled
from eventlog.cli.failures import CannotVerify
from eventlog.cli.options import Options
from eventlog.cli.output import counted, note, progress, show_lines, write_document
from eventlog.cli.pack_check import check_pack
from eventlog.cli.projections.command import ViewCommand
from eventlog.cli.projections.known import Known, known_views
from eventlog.cli.trust_options import read_trust
from eventlog.cli.verdict_lines import as_document, human_lines, plain_lines
from eventlog.cli.views_check import check_view_of_run, check_views
from eventlog.cli.wiring import Opened, complete, open_log
from eventlog.decide import check_run_id
from eventlog.errors import InvalidInput, LogCorrupt, Misuse, StoreBusy, StoreUnavailable

__all__ = ["verify"]

_HIGHEST_LEVEL: Final = 3
_CANNOT_VERIFY: Final = frozenset({"missing_extra", "no_trusted_head"})


@click.command("verify", cls=ViewCommand)
@click.option("--run", "run_id", metavar="RUN", help="Only this run.")
@click.option("--head", "heads", metavar="FILE", multiple=True, help="A head kept outside: a note, or a file of heads.")
@click.option("--log-key", "log_keys", metavar="VKEY", multiple=True, help="The key that signs the heads of this log.")
@click.option(
    "--min-level", type=click.IntRange(0, _HIGHEST_LEVEL), default=0, help="The least that each approval has to be."
)
@click.option("--since-head", is_flag=True, help="Only what is newer than the last head that is trusted.")
@click.option("--pack", metavar="FILE", help="An evidence pack instead of a log.")
@click.option(
    "--approver",
    "approvers",
    metavar="ID=KEY",
    multiple=True,
    help="Who holds which key, as text or a file.",
)
@click.pass_obj
def verify(
    options: Options,
    run_id: str | None,
    heads: tuple[str, ...],
    log_keys: tuple[str, ...],
    min_level: int,
    since_head: bool,
    pack: str | None,
    approvers: tuple[str, ...],
) -> int:
    """Check the log against its hashes, its tree, its signed heads, its approvals, its erasures and its views.

    Whoever can write the database can also cut it, put an older copy in its place, or compute all of it again: that is
    found by heads that were kept outside of it (--head, --signer) under a key that you know (--log-key). Without them
    the heads are `unanchored`. He can also enrol a key for an approver: pin those that you know (--approver), or the
    keys of the approvals are `self_declared`.

    Views that this program does not know are named, and not checked. --projections names your own, and is imported with
    its event types; what --app names is not run.

    Appends nothing and changes no data; the side files of SQLite and of the lock may appear beside the log.

    Exit status 0: clean. 3: damage found. 4: cannot verify.
    """
    if run_id is not None:
        check_run_id(run_id)
    if since_head and (run_id is not None or pack is not None):
        raise click.UsageError("--since-head is about a whole log, and goes with neither --run nor --pack.")
    if pack is not None:
        return check_pack(
            options, pack, log_keys=log_keys, approvers=approvers, heads=heads, min_level=min_level, run_id=run_id
        )
    trust = read_trust(
        log_keys=log_keys,
        heads=heads,
        approvers=approvers,
        signer=options.signer,
        min_level=min_level,
        since_head=since_head,
    )
    verdicts = complete(options, _verify(options, run_id, trust))
    _show(options, verdicts)
    return 3 if verdicts.is_damaged else 0 if verdicts.is_known else 4


async def _verify(options: Options, run_id: str | None, trust: Trust) -> Verdicts:
    known = known_views(options)
    try:
        async with open_log(options, is_read_only=True) as opened:
            with progress(options, "verifying") as bar:
                return await verify_log(
                    opened.log,
                    run=run_id,
                    files=opened.log.check_file if run_id is None else None,
                    artifacts=opened.log.artifacts,
                    snapshots=lambda: check_snapshots(opened.log, run_id),
                    views=lambda: _check_views(options, opened, known, run_id),
                    progress=bar,
                    trust=trust,
                )
    except LogCorrupt as error:
        return _cannot_even_open(error)
    except StoreBusy:
        raise
    except StoreUnavailable as error:
        raise CannotVerify(error) from error
    except (InvalidInput, Misuse) as error:
        if error.code not in _CANNOT_VERIFY:
            raise
        raise CannotVerify(error) from error


async def _check_views(options: Options, opened: Opened, known: Known, run_id: str | None) -> Finding:
    spell = partial(spelled, options)
    if run_id is not None:
        return await check_view_of_run(opened.log, opened.view, run_id, spell=spell)
    return await check_views(opened.log, known, spell=spell)


def _cannot_even_open(error: LogCorrupt) -> Verdicts:
    found = Finding(verdict="damaged", problems=(damage(error),), count=1)
    unknown = Finding(verdict="unknown")
    return Verdicts(
        integrity=found,
        order=unknown,
        tree=unknown,
        heads=unknown,
        approvals=unknown,
        erasures=unknown,
        artifacts=unknown,
        snapshots=unknown,
        views=unknown,
        events=0,
        head=0,
    )


def _show(options: Options, verdicts: Verdicts) -> None:
    if options.is_json:
        documents = {name: as_document(finding) for name, finding in verdicts.findings.items()}
        write_document({**documents, "events": verdicts.events, "head": verdicts.head, "after": verdicts.after})
        return
    is_plain = options.format == "plain"
    spell = plain_lines if is_plain else human_lines
    show_lines([line for name, found in verdicts.findings.items() for line in spell(name, found)], tabs=is_plain)
    not_looked_at = f"; the first {verdicts.after} were not looked at" if verdicts.after else ""
    note(
        options, f"checked {counted(verdicts.events, 'event')}; the log ends at position {verdicts.head}{not_looked_at}"
    )

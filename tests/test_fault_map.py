"""Every fault of the list, F01 to F95, and what tests it: tests by their names, campaigns, or why there is neither.

The list is that of the reliability notes of the project; a line here says the fault in a few words. A test that is
renamed or a campaign that is dropped is noticed.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.command_line import ROOT
from tools.campaigns import catalogue

CONTRACT: Final = "eventlog/testing/log_contract/"


class Check(NamedTuple):
    """What a fault is called, and tests of it beside the campaigns that say that they cause it.

    A test is `test_module::name`, or begins with a path from the root.
    """

    fault: str
    tests: tuple[str, ...] = ()
    why_not: str = ""


FAULTS: Final[Mapping[str, Check]] = {
    # process death
    "F01": Check("kill before the intent's commit"),
    "F02": Check("kill between intent and effect"),
    "F03": Check(
        "kill inside the effect",
        ("test_write_file::test_killed_at_any_step_the_target_is_whole_or_absent_and_the_next_attempt_is_right",),
    ),
    "F04": Check("kill between link and flush of the directory"),
    "F05": Check("kill between effect and record"),
    "F06": Check("kill inside COMMIT"),
    "F07": Check("kill between commit and answer"),
    "F08": Check("kill during recovery"),
    "F09": Check("kill at a random time"),
    "F10": Check(
        "out of memory in a batch",
        ("test_sqlite_memory::test_append_without_memory_enough_is_told_so_and_is_stored_whole_or_not_at_all",),
    ),
    "F11": Check(
        "SIGTERM, SIGINT in a commit, twice",
        ("test_sqlite_lifecycle::test_signal_in_the_middle_of_appends_ends_the_program_at_once",),
    ),
    # storage
    "F12": Check("power loss at any operation"),
    "F13": Check("torn sectors, reordered writes"),
    "F14": Check("power loss during recovery"),
    "F15": Check(
        "disk full on append",
        (
            "test_sqlite_failures::test_full_disk_is_definite_reads_go_on_and_it_works_again_after_space_is_freed",
            "test_sqlite_failures::test_file_size_limit_is_definite_and_the_log_works_once_it_is_lifted",
        ),
    ),
    "F16": Check("disk full when the log's files are made"),
    "F17": Check(
        "EIO on the flush of a commit",
        (
            "test_sqlite_failures::"
            "test_failed_sync_of_a_commit_is_never_told_as_a_failure_and_the_event_is_stored_once",
            "test_sqlite_failures::test_sync_that_keeps_failing_ends_in_unknown_and_the_retry_settles_it",
            "test_sqlite_failures::test_after_an_unknown_first_try_no_failure_of_the_second_is_told_as_definite",
        ),
    ),
    "F18": Check(
        "EIO on a write of a commit",
        ("test_sqlite_failures::test_failed_write_of_a_commit_is_definite_and_the_log_goes_on",),
    ),
    "F19": Check(
        "EIO in a WAL checkpoint",
        ("test_sqlite_failures::test_failed_wal_checkpoints_are_reported_and_appends_go_on",),
    ),
    "F20": Check("EIO on read", ("test_sqlite_failures::test_failed_read_is_a_coded_error_and_nothing_partial",)),
    "F21": Check(
        "read-only directory or file",
        (
            "test_sqlite_failures::test_folder_that_cannot_be_written_gives_a_coded_error_and_can_be_read",
            "test_sqlite_failures::test_database_file_that_cannot_be_written_gives_a_coded_error",
            "test_cli::TestALogThatCannotBeWritten::test_a_file_that_cannot_be_written_can_be_read",
        ),
    ),
    "F22": Check(
        "lock held by another writer",
        (
            "test_sqlite_failures::test_file_lock_held_elsewhere_ends_in_store_busy_in_time_and_nothing_is_written",
            "test_sqlite_failures::test_sqlite_lock_held_without_the_file_lock_ends_in_store_busy_in_time",
        ),
    ),
    "F23": Check(
        "lock during a read that is decided on",
        (
            "test_broken_drives::TestReads::test_a_result_whose_run_has_moved_survives_a_busy_read",
            "test_subscriptions::test_a_page_that_cannot_be_read_for_a_moment_costs_nobody_anything",
        ),
    ),
    "F24": Check(
        "a reading transaction that wants to write",
        ("test_sqlite_prerequisites::TestEveryTransaction::test_that_writes_asks_for_the_lock_first",),
    ),
    "F25": Check(
        "two processes on one database",
        (
            "test_sqlite_processes::test_appends_of_several_processes_are_all_there_once_and_without_a_gap",
            "test_sqlite_processes::test_compare_and_append_between_processes_lets_exactly_one_win_each_version",
        ),
    ),
    "F26": Check(
        "WAL checkpoint starved by a reader",
        (
            "test_sqlite_processes::"
            "test_wal_stays_bounded_under_20_000_appends_while_another_process_pauses_in_reading",
            "test_sqlite_processes::test_control_a_foreign_snapshot_lets_the_wal_grow_and_it_is_cut_afterwards",
        ),
    ),
    "F27": Check(
        "-wal deleted under a living log",
        ("test_sqlite_failures::test_file_that_changes_under_an_open_log_is_noticed_at_the_next_commit",),
    ),
    "F28": Check("-wal deleted while stopped"),
    "F29": Check("-shm deleted"),
    "F30": Check("truncated WAL, flipped bit in it"),
    "F31": Check("two executors insert the same row"),
    "F32": Check(
        "bytes altered in a page",
        ("test_sqlite_tamper::test_edited_cell_is_found_with_its_position_and_other_streams_stay_readable",),
    ),
    "F33": Check(
        "garbage in pages or header, truncated database",
        (
            "test_sqlite_failures::test_garbage_in_the_pages_is_log_corrupt",
            "test_verify::TestFiles::test_any_cut_file_is_damage_or_unverifiable_and_never_a_traceback",
        ),
    ),
    "F34": Check("database replaced by an older copy while stopped", ("test_attacks",)),
    "F35": Check(
        "database renamed or replaced while open",
        (
            "test_sqlite_failures::test_file_that_changes_under_an_open_log_is_noticed_at_the_next_commit",
            "test_sqlite_identity::test_a_log_whose_database_was_replaced_leaves_the_new_one_alone",
        ),
    ),
    "F36": Check("another log's -wal beside the database"),
    "F37": Check(
        "hard link or symbolic link to the database",
        ("test_sqlite_failures::test_hard_link_is_refused_and_a_symbolic_link_is_followed_to_the_real_name",),
    ),
    "F38": Check(
        "the database opened by plain open() in the process",
        ("test_sqlite_failures::test_file_that_changes_under_an_open_log_is_noticed_at_the_next_commit",),
    ),
    "F39": Check(
        "schema of a future version",
        ("test_sqlite_failures::test_foreign_file_is_refused_and_stays_byte_for_byte",),
    ),
    "F40": Check(
        "kill during migration",
        ("test_migration::test_process_that_is_killed_in_a_migration_leaves_the_old_format_or_the_new_one",),
    ),
    "F41": Check(
        "SQLite below the floor",
        ("test_sqlite_prerequisites::test_sqlite_without_strict_tables_is_refused_and_nothing_is_made",),
    ),
    "F42": Check(
        "a file system without shared memory",
        ("test_sqlite_prerequisites::test_file_system_on_which_no_memory_can_be_shared_is_refused",),
    ),
    # concurrency and asyncio
    "F43": Check(
        "caller cancelled during an append",
        (
            "test_sqlite_cancellation::"
            "test_append_that_is_cancelled_at_any_of_its_awaits_converges_when_it_is_repeated",
            "test_sqlite_cancellation::test_control_in_bare_aiosqlite_a_cancelled_begin_locks_everybody_out",
        ),
    ),
    "F44": Check(
        "timeout around an append",
        ("test_sqlite_cancellation::test_timeout_around_an_append_converges_when_it_is_repeated",),
    ),
    "F45": Check("writer cancelled by the end of asyncio.run"),
    "F46": Check(
        "event loop closed with the log open",
        ("test_sqlite_lifecycle::test_loop_that_is_closed_under_an_append_keeps_no_process_alive",),
    ),
    "F47": Check(
        "used from another loop or thread",
        ("test_sqlite_lifecycle::test_use_from_another_loop_is_refused_at_once",),
    ),
    "F48": Check(
        "fork after open",
        ("test_sqlite_lifecycle::test_fork_is_detected_in_the_child_and_does_not_harm_the_parent",),
    ),
    "F49": Check("two resumers of one run"),
    "F50": Check("resumer stopped past its lease"),
    "F51": Check("thousands of runs at once"),
    "F52": Check(
        "slow or dead subscriber",
        ("test_subscriptions::test_what_waits_for_one_who_does_not_look_is_bounded",),
    ),
    "F53": Check(
        "iterator left in the middle",
        ("test_sqlite_processes::test_wal_is_cut_though_an_iterator_was_left_in_the_middle",),
    ),
    "F54": Check(
        "one bad append in a batch",
        (f"{CONTRACT}appending.py::RetryContract::test_a_refused_repeat_leaves_its_neighbours_alone",),
    ),
    "F55": Check(
        "threads or descriptors leak",
        ("test_sqlite_lifecycle::test_threads_and_files_stay_the_same_over_200_openings",),
    ),
    # input
    "F56": Check("SQL in ids"),
    "F57": Check(
        "empty, blank, long, look-alike ids",
        ("test_plain::test_an_id_that_people_cannot_see_or_compare_is_refused",),
    ),
    "F58": Check(
        "invalid UTF-8, lone surrogates",
        ("test_plain::test_text_is_returned_unless_utf_8_cannot_hold_it",),
    ),
    "F59": Check(
        "NaN, Infinity, -0.0, 1e400",
        (
            "test_plain::test_a_json_text_is_refused",
            "test_proposal::test_what_has_no_exact_canonical_form_is_refused",
        ),
    ),
    "F60": Check("duplicate keys, keys that are no text", ("test_plain::test_a_json_text_is_refused",)),
    "F61": Check(
        "nesting, huge integers",
        (
            "test_plain::test_a_hundred_thousand_levels_are_refused_without_following_them",
            "test_plain::test_integers_are_let_through_up_to_the_bound",
        ),
    ),
    "F62": Check(
        "huge payload, huge batch",
        (
            "test_plain::test_a_text_of_a_gigabyte_is_refused_before_it_is_copied",
            f"{CONTRACT}contents.py::ContentContract::test_the_number_of_events_in_a_call_is_limited",
        ),
    ),
    "F63": Check(
        "collision by canonicalisation",
        ("test_proposal::test_two_values_have_the_same_bytes_only_if_they_are_the_same_json",),
    ),
    "F64": Check(
        "forged or spliced events",
        (
            "test_sqlite_tamper::test_every_column_is_edited_below",
            "test_sqlite_tamper::test_row_that_is_pushed_in_between_is_found",
        ),
    ),
    "F65": Check(
        "event of a newer version",
        ("test_runner::test_an_event_of_a_later_program_makes_the_run_read_only",),
    ),
    # file effect
    "F66": Check(
        "path traversal, symbolic links on the way",
        (
            "test_write_file::test_no_path_whatever_escapes_the_root",
            "test_write_file::test_control_without_a_root_the_same_link_leads_outside",
        ),
    ),
    "F67": Check(
        "target is a link, folder, fifo, device",
        ("test_write_file::test_a_target_that_is_no_regular_file_is_refused_and_never_followed_or_awaited",),
    ),
    "F68": Check(
        "target is a hard link",
        ("test_write_file::test_the_same_content_is_recovered_and_the_file_stays_as_it_is",),
    ),
    "F69": Check(
        "half a file of somebody else at the target",
        ("test_write_file::test_other_content_is_a_conflict_with_both_hashes_and_the_file_stays_as_it_is",),
    ),
    "F70": Check(
        "the same content is there",
        ("test_write_file::test_the_same_content_is_recovered_and_the_file_stays_as_it_is",),
    ),
    "F71": Check(
        "no links",
        (
            "test_write_file::test_a_real_file_system_without_links",
            "test_write_file::test_where_nothing_creates_exclusively_it_is_refused_and_nothing_is_left",
        ),
    ),
    "F72": Check(
        "temporary file on another file system",
        ("test_write_file::test_a_full_disk_is_a_definite_failure_and_the_temp_is_removed",),
    ),
    "F73": Check(
        "disk full or EIO in the temporary file",
        ("test_write_file::test_whichever_call_fails_a_failure_means_no_target_and_the_next_attempt_is_right",),
    ),
    "F74": Check(
        "EIO in the flush of the directory",
        ("test_write_file::test_a_directory_that_cannot_be_flushed_after_the_link_is_unknown_and_then_recovered",),
    ),
    "F75": Check(
        "parent removed or swapped meanwhile",
        (
            "test_write_file::test_a_parent_swapped_for_a_link_meanwhile_leads_nowhere_else",
            "test_write_file::test_a_parent_that_is_swapped_all_the_time_never_leads_outside",
        ),
    ),
    # approval and time
    "F76": Check(
        "kill while what is not needed is removed",
        ("test_erasure::TestRepeats::test_whatever_kills_it_the_next_call_ends_it",),
    ),
    "F77": Check(
        "the same decision twice",
        ("test_public_cases::test_when_one_process_approves_what_another_rejects_the_first_in_the_log_stands",),
    ),
    "F78": Check(
        "approve against reject, approve behind expiry",
        ("test_approval_clocks::test_a_request_that_ends_between_check_and_commit_has_expired",),
    ),
    "F79": Check("late approval of a superseded proposal"),
    "F80": Check(
        "clock jumps back",
        ("test_effects::test_a_clock_that_jumps_back_brings_no_key_back_to_life",),
    ),
    "F81": Check(
        "clock jumps forward",
        ("test_effects::test_a_clock_that_jumps_forward_costs_an_attempt_and_never_an_effect",),
    ),
    "F82": Check(
        "the machine is suspended",
        ("test_take_overs::test_a_holder_whose_lease_is_half_over_by_either_clock_begins_no_effect",),
    ),
    # effects over the network, other stores
    "F83": Check(
        "refused before any byte",
        (
            "test_http_request::test_a_refused_connection_is_a_definite_failure",
            "test_http_request::test_a_name_that_does_not_resolve_is_a_definite_failure",
        ),
    ),
    "F84": Check(
        "time-out or reset behind the request",
        (
            "test_http_request::test_a_lost_answer_is_unknown_and_the_next_attempt_finds_the_one_effect",
            "test_http_request::test_a_receiver_that_never_answers_is_unknown",
        ),
    ),
    "F85": Check(
        "409, 422, 5xx",
        (
            "test_http_request::test_a_request_in_flight_is_asked_after_until_it_is_done",
            "test_http_request::test_a_later_422_is_a_key_that_belongs_to_another_payload",
            "test_http_request::test_an_answer_that_proves_nothing_is_unknown",
        ),
    ),
    "F86": Check(
        "the key's life is over",
        ("test_http_request::test_after_the_keys_lifetime_nothing_is_sent_until_a_person_has_settled_it",),
    ),
    "F87": Check(
        "receiver that lost its memory",
        (
            "test_http_request::test_a_receiver_that_forgets_before_its_time_acts_twice",
            "test_reconcile::test_executed_completes_the_run_with_the_result_that_was_found",
        ),
    ),
    "F88": Check(
        "row effect: commit sent, connection lost",
        ("test_row_actions::test_an_inserted_row_is_found_again_after_a_crash_with_its_first_result",),
    ),
    **{
        f"F{number}": Check("other stores", why_not="this project has no PostgreSQL or JetStream store")
        for number in range(89, 96)
    },
}


CAUSED_BY: Final = {
    fault: [name for name in catalogue.NAMES if fault in catalogue.find(name).faults]
    for fault in {fault for name in catalogue.NAMES for fault in catalogue.find(name).faults}
}


@cache
def named_in(path: Path) -> frozenset[str]:
    """Return the tests in a module: `name`, or `Class::name`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{name}" for name in _functions(node.body)}
    return frozenset(found | _functions(ast.parse(path.read_text(encoding="utf-8")).body))


def _functions(body: list[ast.stmt]) -> set[str]:
    functions = (node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {node.name for node in functions if node.name.startswith("test_")}


def missing(name: str) -> str | None:
    """Return what is not there of a test that the map names, or None."""
    module, _, test = name.partition("::")
    path = ROOT / (module if "/" in module else f"tests/{module}.py")
    if not path.is_file():
        return f"no module {module}"
    known = named_in(path)
    if test and test not in known:
        return f"no test {test} in {module}"
    return None if known else f"no tests in {module}"


def test_every_fault_of_the_list_is_in_the_map() -> None:
    assert list(FAULTS) == [f"F{number:02}" for number in range(1, 96)]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_a_test_that_is_there_or_a_campaign_or_a_reason_why_not(fault: str) -> None:
    check = FAULTS[fault]
    assert bool(check.tests or CAUSED_BY.get(fault)) != bool(check.why_not)
    assert [missing(name) for name in check.tests] == [None] * len(check.tests)


def test_campaigns_cause_no_fault_that_is_not_in_the_map() -> None:
    assert set(CAUSED_BY) <= set(FAULTS)


def test_control_a_test_that_is_not_there_is_noticed() -> None:
    assert missing("test_fault_map::test_of_a_dream") == "no test test_of_a_dream in test_fault_map"
    assert missing("test_of_a_dream") == "no module test_of_a_dream"
    assert missing("command_line") == "no tests in command_line"
    assert missing("test_fault_map::test_every_fault_of_the_list_is_in_the_map") is None

"""What honest people do to a log raises no alarm: erasing, restoring, handing over a key, crashing, and writing on."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eventlog.audit.heads import LocalSigner
from eventlog.audit.heads.key_file import make_key_file, read_key_file
from eventlog.audit.verify import Finding, Trust, Verdicts, verify
from eventlog.events import LOG_STREAM, LogKeyRevoked
from eventlog.log import Append, Expect, NewEvent
from eventlog.signing.log_keys import rotate
from eventlog.stores.subject_keys import SubjectKeys
from tests.attacker import attacking
from tests.command_line import environment
from tests.proven_log import ProvenLog, build, check, take_notes
from tools.campaigns.storage.log_files import open_file

NOTE, PROPOSAL, APPROVAL = 5, 9, 11


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> ProvenLog:
    return asyncio.run(build(tmp_path_factory.mktemp("original")))


@pytest.fixture
def world(original: ProvenLog, tmp_path: Path) -> ProvenLog:
    return original.copy_to(tmp_path / "copy")


def trust_in(world: ProvenLog) -> Trust:
    return Trust(log_keys=[world.log_key], heads=world.outside_heads())


def assert_clean(verdicts: Verdicts) -> None:
    assert {name: list(finding.problems) for name, finding in verdicts.findings.items() if finding.problems} == {}
    assert (verdicts.is_damaged, verdicts.is_known, verdicts.heads.verdict) == (False, True, "ok")


class TestErasure:
    async def test_a_lawful_erasure_is_no_damage_and_every_earlier_head_still_holds(self, world: ProvenLog) -> None:
        async with world.opened() as log:
            await log.erase([NOTE, 6], legal_basis="GDPR art. 17")
        verdicts = await check(world.path, trust_in(world))
        assert_clean(verdicts)
        assert verdicts.erasures.details["erased"] == 2
        assert verdicts.erasures.details["first_erased"] == [NOTE, 6]

    @pytest.mark.parametrize("position", [PROPOSAL, APPROVAL])
    async def test_an_approval_that_is_erased_is_unreadable_and_not_forged(
        self, world: ProvenLog, position: int
    ) -> None:
        async with world.opened() as log:
            await log.erase([position], legal_basis="GDPR art. 17")
        verdicts = await check(world.path, trust_in(world))
        assert_clean(verdicts)
        assert verdicts.approvals.details["states"] == {"unreadable": 1, "unsigned": 1}

    async def test_a_body_that_was_erased_and_is_there_again_is_found(self, world: ProvenLog) -> None:
        async with world.opened() as log:
            await log.erase([NOTE], legal_basis="GDPR art. 17")
        with attacking(world.path) as attacker:
            attacker.run("UPDATE events SET body = '{\"n\":2}', salt = randomblob(16) WHERE position = ?", NOTE)
        verdicts = await check(world.path, trust_in(world))
        assert [each.reason for each in verdicts.erasures.problems] == ["not_erased"]
        assert verdicts.integrity.verdict == "damaged"

    async def test_the_erasure_of_one_run_is_checked_with_the_run_alone(self, world: ProvenLog) -> None:
        async with world.opened() as log:
            await log.erase([PROPOSAL], legal_basis="GDPR art. 17")
        verdicts = await check(world.path, trust_in(world), run="r1")
        assert_clean(verdicts)
        assert verdicts.erasures.details["erased"] == 1


class TestSubjects:
    async def written(self, folder: Path) -> Path:
        """A log with two events about a customer, encrypted, and one in clear."""
        async with open_file(folder / "a.db", subject_keys=self.keys(folder)) as log:
            notes = [NewEvent("noted", {"n": number}) for number in range(2)]
            await log.append("customer-1", notes, expect=Expect.any(), subject="customer-1")
            await take_notes(log, 1)
        return folder / "a.db"

    def keys(self, folder: Path) -> SubjectKeys:
        return SubjectKeys(folder / "keys", wrapping_key=bytes(range(32)))

    async def test_what_is_encrypted_is_verified_without_its_key(self, tmp_path: Path) -> None:
        verdicts = await check(await self.written(tmp_path))
        assert (verdicts.is_damaged, verdicts.is_known) == (False, True)
        assert verdicts.erasures.details["key_missing"] == 2

    async def test_a_subject_that_was_erased_is_no_damage(self, tmp_path: Path) -> None:
        path = await self.written(tmp_path)
        async with open_file(path, subject_keys=self.keys(tmp_path)) as log:
            await log.erase_subject("customer-1", legal_basis="GDPR art. 17")
        verdicts = await check(path)
        assert (verdicts.is_damaged, verdicts.is_known) == (False, True)
        details = verdicts.erasures.details
        assert (details["subject_keys_destroyed"], details["subject_erased"], details["key_missing"]) == (1, 2, 0)

    async def test_an_encrypted_body_that_was_changed_is_damage(self, tmp_path: Path) -> None:
        path = await self.written(tmp_path)
        with attacking(path) as attacker:
            body = attacker.value("SELECT body FROM events WHERE position = 1")
            attacker.run("UPDATE events SET body = ? WHERE position = 1", body[:-1] + bytes([body[-1] ^ 1]))
        verdicts = await check(path)
        assert [each.reason for each in verdicts.integrity.problems] == ["leaf_mismatch"]


class TestRestore:
    async def restored(self, world: ProvenLog, *, size: int = 11) -> None:
        """Put back what the log was at a size, declare it, and write on."""
        with attacking(world.path) as attacker:
            attacker.truncate(size)
            attacker.replant()
            attacker.drop_heads(beyond=size)
        async with world.opened(restored="the disk was lost") as log:
            await take_notes(log, 3)

    async def test_a_declared_restore_is_no_rollback_and_is_named(self, world: ProvenLog) -> None:
        await self.restored(world)
        verdicts = await check(world.path, trust_in(world))
        assert_clean(verdicts)
        (restore,) = verdicts.heads.details["restores"]
        assert (restore["position"], restore["lost_to"], restore["reason"]) == (12, 18, "the disk was lost")
        assert verdicts.heads.details["anchored_to"] == 15

    async def test_a_restore_is_clean_also_for_who_has_pinned_no_key(self, world: ProvenLog) -> None:
        await self.restored(world)
        verdicts = await check(world.path, Trust(heads=world.outside_heads()))
        assert_clean(verdicts)
        assert verdicts.heads.details["keys"] == "self_declared"

    async def test_a_restore_of_a_restore_is_no_alarm_either(self, world: ProvenLog) -> None:
        older = world.folder / "older.db"
        shutil.copy(world.path, older)
        await self.restored(world)
        shutil.copy(older, world.path)
        async with world.opened(restored="again") as log:
            await take_notes(log, 1)
        assert_clean(await check(world.path, trust_in(world)))

    async def test_a_head_that_was_signed_later_than_the_restore_says_is_a_rollback(self, world: ProvenLog) -> None:
        """The control: somebody declares less as lost than was signed."""
        heads = world.outside_heads()
        with attacking(world.path) as attacker:
            attacker.truncate(11)
            attacker.replant()
            attacker.drop_heads(beyond=11)
        async with open_file(world.path, restored="nothing to see here") as log:
            await take_notes(log, 3)
        verdicts = await check(world.path, Trust(log_keys=[world.log_key], heads=heads))
        assert {each.reason for each in verdicts.heads.problems} == {"store_rolled_back"}

    async def test_a_restore_that_somebody_invents_is_no_damage_and_stays_in_the_verdict(
        self, world: ProvenLog
    ) -> None:
        """Whoever may write the log may declare what he likes: what is lost then is named, for as long as it exists."""
        await self.restored(world, size=16)
        verdicts = await check(world.path, trust_in(world))
        assert_clean(verdicts)
        assert [each["lost_to"] for each in verdicts.heads.details["restores"]] == [18]

    async def test_the_same_without_a_declaration_is_a_rollback(self, world: ProvenLog) -> None:
        with attacking(world.path) as attacker:
            attacker.truncate(11)
            attacker.replant()
            attacker.drop_heads(beyond=11)
        verdicts = await check(world.path, trust_in(world))
        assert {each.reason for each in verdicts.heads.problems} == {"store_rolled_back"}
        assert "ends at position 11" in verdicts.heads.problems[0].message
        assert "size 16" in verdicts.heads.problems[0].message


class TestRotation:
    async def rotated(self, world: ProvenLog) -> Path:
        """Hand over to a new key, and sign one more head with it. Returns its file."""
        new = world.folder / "new.key"
        make_key_file(new)
        old_key, new_key = read_key_file(world.key_path), read_key_file(new)
        event = rotate(old_key, new_key.public, world.log_key.name)
        signer = LocalSigner(new, also=[world.key_path], heads_path=f"{world.key_path}.heads")
        async with open_file(world.path, signer=signer, head_every_s=3600.0) as log:
            await log.append_reserved([Append(LOG_STREAM, [event], Expect.any())])
        return new

    async def test_who_has_pinned_the_old_key_follows_it_to_the_new_one(self, world: ProvenLog) -> None:
        await self.rotated(world)
        verdicts = await check(world.path, trust_in(world))
        assert_clean(verdicts)
        assert verdicts.heads.details["anchored_to"] == 19

    async def test_who_has_pinned_the_new_key_takes_the_older_heads_as_the_log_declares_them(
        self, world: ProvenLog
    ) -> None:
        new = await self.rotated(world)
        async with open_file(world.path, is_read_only=True) as log:
            log_id = (await log.log_ids())[0][1]
        verifier = LocalSigner(new, heads_path=f"{world.key_path}.heads").verifier_key(log_id)
        assert_clean(await check(world.path, Trust(log_keys=[verifier], heads=world.outside_heads())))

    async def test_a_rotation_that_the_old_key_has_not_signed_leads_nowhere(self, world: ProvenLog) -> None:
        new = world.folder / "new.key"
        make_key_file(new)
        forged = rotate(read_key_file(new), read_key_file(world.key_path).public, world.log_key.name)
        swapped = type(forged)(verifier_key=forged.replaces, replaces=forged.verifier_key, signature=forged.signature)
        async with open_file(world.path) as log:
            await log.append_reserved([Append(LOG_STREAM, [swapped], Expect.any())])
        with attacking(world.path) as attacker:
            attacker.resign(read_key_file(new))
        verdicts = await check(world.path, Trust(log_keys=[world.log_key]))
        assert {each.reason for each in verdicts.heads.problems} == {"head_unsigned"}
        assert verdicts.heads.details["key_problems"]

    async def test_a_revoked_key_signs_nothing_beyond_its_size(self, world: ProvenLog) -> None:
        async with world.opened() as log:
            revoked = LogKeyRevoked(verifier_key=world.log_key.to_text(), from_size=16, reason="stolen")
            await log.append_reserved([Append(LOG_STREAM, [revoked], Expect.any())])
        verdicts = await check(world.path, trust_in(world))
        assert {each.reason for each in verdicts.heads.problems} == {"head_unsigned"}
        assert {each.message.split(" (")[0] for each in verdicts.heads.problems} == {
            "the head of size 18",
            "the head of size 19",
        }


class TestWritingOn:
    async def test_what_was_committed_and_not_signed_any_more_is_unprotected_and_no_damage(
        self, world: ProvenLog
    ) -> None:
        async with open_file(world.path) as log:  # a crash between commit and sign leaves just this
            await take_notes(log, 2)
        verdicts = await check(world.path, trust_in(world))
        assert_clean(verdicts)
        assert (verdicts.heads.details["anchored_to"], verdicts.heads.details["unprotected"]) == (18, 2)

    @pytest.mark.processes
    def test_a_process_that_is_killed_between_commit_and_sign_leaves_a_clean_log(self, world: ProvenLog) -> None:
        program = [sys.executable, "-c", _DIES_UNSIGNED, str(world.path), str(world.key_path)]
        ended = subprocess.run(program, env=environment(), capture_output=True, timeout=60, check=False)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        verdicts = asyncio.run(check(world.path, trust_in(world)))
        assert_clean(verdicts)
        assert verdicts.heads.details["unprotected"] == 3

    async def test_a_log_that_grows_while_it_is_checked_is_clean(self, tmp_path: Path) -> None:
        path = tmp_path / "a.db"
        async with open_file(path) as writer:
            await take_notes(writer, 3000)

            async def write() -> None:
                for _ in range(40):
                    await take_notes(writer, 25)
                    await asyncio.sleep(0)

            async def look() -> Verdicts:
                async with open_file(path, is_read_only=True) as log:
                    return await verify(log, views=no_views)

            async with asyncio.TaskGroup() as group:
                group.create_task(write())
                looks = [group.create_task(look()) for _ in range(3)]
        for task in looks:
            assert not task.result().is_damaged, task.result()


async def no_views() -> Finding:
    return Finding(verdict="ok")


_DIES_UNSIGNED = """
import asyncio, os, signal, sys
from eventlog.audit.heads import LocalSigner
from tools.campaigns.storage.log_files import open_file
from tests.proven_log import take_notes

async def main():
    async with open_file(sys.argv[1], signer=LocalSigner(sys.argv[2]), head_every_s=3600.0) as log:
        await take_notes(log, 3)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""

"""The damages of the campaign `bit_flips`, and that its judge sees what it has to see."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tools.campaigns.bit_flips.damages import all_cells, all_cuts, all_flips, forge, some_flips, spoil
from tools.campaigns.bit_flips.judging import Judge
from tools.campaigns.bit_flips.scene import FILES, Scene, make_scene

SMALL = {"log.db": bytes(range(256)) * 6, "log.db-wal": b"w" * 700}
OTHERS = {"log.db": b"o" * 1000, "log.db-wal": b"p" * 10}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return make_scene(tmp_path_factory.mktemp("scene") / "log", "1", page_bytes=1024)


def test_every_damage_of_bytes_changes_a_file_and_is_the_same_each_time() -> None:
    chance = random.Random(1)
    damages = [*some_flips(SMALL, 50, chance), *all_flips(SMALL, chance), *all_cuts(SMALL)]
    for damage in damages:
        spoiled = spoil(damage, SMALL, OTHERS)
        assert spoiled != SMALL, damage
        assert spoiled == spoil(damage, SMALL, OTHERS)
        if damage.startswith("flip:"):
            changed = [name for name in SMALL if spoiled[name] != SMALL[name]]
            assert changed == [damage.split(":")[1]]


def test_every_byte_is_flipped_once_and_every_sector_is_cut_and_zeroed() -> None:
    flipped = [damage.split(":")[1:3] for damage in all_flips(SMALL, random.Random(1))]
    assert flipped == [[name, str(at)] for name, data in SMALL.items() for at in range(len(data))]
    kinds = [damage.split(":")[0] for damage in all_cuts(SMALL)]
    assert [kinds.count(kind) for kind in ("cut", "zero")] == [7, 5]


def test_the_scene_is_the_same_in_each_making_up_to_the_salts_of_the_write_ahead_log(
    scene: Scene, tmp_path: Path
) -> None:
    again = make_scene(tmp_path / "again", "1", page_bytes=1024)
    assert again.data["log.db"] == scene.data["log.db"]
    assert len(again.data["log.db-wal"]) == len(scene.data["log.db-wal"])
    assert make_scene(tmp_path / "other", "2", page_bytes=1024).data["log.db"] != scene.data["log.db"]


def test_the_judge_passes_a_whole_log_and_reports_one_whose_events_were_made_anew(scene: Scene, tmp_path: Path) -> None:
    files = {name: scene.data[name] for name in FILES}
    judge = Judge(scene)
    asyncio.run(judge.learn(scene.lay_out(files, signer=True)))
    assert judge.judge(lambda: scene.lay_out(files, signer=True), thoroughly=True) == []
    other = make_scene(tmp_path / "other", "2", page_bytes=1024)
    others = {name: other.data[name] for name in FILES}
    (invariant, what), *_ = judge.judge(lambda: scene.lay_out(others, signer=True), thoroughly=True)
    assert invariant == "I10" and "never appended" in what
    assert judge.judge(lambda: scene.lay_out(others, signer=True), thoroughly=True, may_be_another=True) == []


def test_a_forger_changes_the_cell_that_the_damage_names(scene: Scene) -> None:
    files = {name: scene.data[name] for name in FILES}
    changed = 0
    cells = [*all_cells(20, random.Random(1))]
    for damage in cells[::40]:
        changed += forge(scene.lay_out(files, signer=True), damage)
    assert changed > len(cells[::40]) // 2

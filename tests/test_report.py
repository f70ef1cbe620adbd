"""The report of a run: one file that runs nothing, tells the whole story, and in which no data is markup."""

from __future__ import annotations

import ast
import asyncio
import html
import json
import re
from collections.abc import Sequence
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings

import eventlog
import eventlog.audit.report.safe as safe
from eventlog.audit.report import Subject, run_report
from eventlog.audit.report.effects import effects_of
from eventlog.audit.report.safe import POLICY, Safe, joined, tag
from eventlog.audit.report.style import STYLE
from eventlog.audit.verify import Finding, Verdicts
from eventlog.cli.text import visible
from eventlog.log import Head, Problem, RecordedEvent
from eventlog.sentences import sentence
from tests.audit_runs import EXPERIMENTS, HOSTILE, approve, catalogue, run_of_one_action, start
from tests.command_line import ROOT, CommandLine, HereCommandLine, edit
from tests.strategies import texts
from tests.workflow_runs import Calls, effect

FOLDER = ROOT / "eventlog" / "audit" / "report"
VOID = frozenset({"meta"})


@pytest.fixture
def here(tmp_path: Path) -> HereCommandLine:
    return HereCommandLine(tmp_path, "--db", "a.db")


# ── reading a page ───────────────────────────────────────────────────────────────────────────────────────────────────


class Page(HTMLParser):
    """A page as a browser takes it apart: its elements with their attributes in order, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.outline: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.comments = 0
        self._open: list[str] = []
        self._hidden = False
        self.feed(text)
        self.close()
        assert self._open == [], f"never closed: {self._open}"

    @property
    def text(self) -> str:
        return "".join(self.words)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._hidden = attrs == [("class", "hidden")]
        if not self._hidden:  # it stands for one character of data, and is where that is
            self.outline.append(" ".join((tag, *(name for name, _ in attrs))))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def handle_comment(self, data: str) -> None:
        self.comments += 1

    def handle_pi(self, data: str) -> None:
        self.comments += 1


def subject_of(text: str, events: Sequence[RecordedEvent]) -> Subject:
    """Return a subject in which every text that somebody chose is this one."""
    run, _ = run_of_one_action("run-1", "action", "argument", "output", "reason")
    run = msgspec.structs.replace(run, run_id=text, request_id=text, folder=text, proposed_by=text)
    problem = Problem(reason="view_differs", message=text, position=7, stream=text)
    return Subject(
        run=run,
        events=events,
        verdicts=verdicts(Finding(verdict="differs", problems=(problem,), count=30)),
        path=text,
        log_id=text,
        store_id=text,
        head=Head(9, bytes(32)),
        made_at_us=1,
        program=text,
    )


def verdicts(finding: Finding) -> Verdicts:
    findings = {name: finding for name in Verdicts.__struct_fields__ if name not in ("events", "head", "after")}
    return Verdicts(**findings, events=3, head=9, after=0)


@cache
def page_of(text: str) -> Page:
    return Page(run_report(subject_of(text, catalogue(text))))


def report_of(cli: CommandLine, run_id: str = "run-1") -> Page:
    return Page(cli("report", run_id, "--to", "-", status=0).text)


def differences_from_plain(text: str) -> list[str]:
    """Return what the structure of a page has to do with the text in it: nothing, if no data is markup.

    The same events with a harmless word for every text have the same elements, attributes, links and classes.
    """
    plain, hostile = page_of("word"), page_of.__wrapped__(text)
    found = []
    if plain.outline != hostile.outline:
        found.append("elements or attributes")
    values = [[value for value in page.attributes if value != ("span", "class", "hidden")] for page in (plain, hostile)]
    if values[0] != values[1]:
        found.append("values of attributes")
    if hostile.comments:
        found.append("comments")
    return found


# ── no data is markup ────────────────────────────────────────────────────────────────────────────────────────────────


class TestEscaping:
    def test_hostile_texts_in_every_field_of_every_event_change_no_element_and_no_attribute(self) -> None:
        assert differences_from_plain(HOSTILE) == []

    @settings(deadline=None)  # a busy machine is no failure
    @given(texts)
    def test_no_text_is_more_than_the_text_of_its_element_and_the_value_of_its_attribute(self, text: str) -> None:
        page = Page(tag("p", text, tag("code", text), class_=text))
        assert page.outline == ["p class", "code"]
        assert page.attributes[0] == ("p", "class", visible(text))
        assert page.text == 2 * visible(text)

    def test_a_page_that_did_not_escape_would_be_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(safe, "_character", lambda character: character)
        with pytest.raises(AssertionError):
            assert differences_from_plain(HOSTILE) == []

    def test_a_text_that_was_taken_for_markup_would_be_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("eventlog.audit.report.page.sentence", lambda event: Safe(sentence(event)))
        with pytest.raises(AssertionError):
            assert differences_from_plain(HOSTILE) == []

    def test_hidden_characters_are_visible_and_marked(self) -> None:
        page = page_of(HOSTILE)
        assert not re.search("[\u202a-\u202e\u200b\x00-\x09\x0b-\x1f]", page.text)
        assert visible("\u202egnp.exe\u202c \u200b\x00\x1b[31m") in page.text
        assert ("span", "class", "hidden") in page.attributes

    def test_the_title_is_text_and_visible(self) -> None:
        title = re.search(r"<title>(.*?)</title>", run_report(subject_of(HOSTILE, catalogue(HOSTILE))))
        assert title is not None
        assert html.unescape(title[1]) == f"Run {visible(HOSTILE)}: WAITING_FOR_USER"

    def test_a_text_is_escaped_wherever_it_is_put_and_markup_is_not_escaped_twice(self) -> None:
        assert tag("p", "<b>", tag("code", "&"), class_='"x"') == (
            '<p class="&quot;x&quot;">&lt;b&gt;<code>&amp;</code></p>'
        )
        assert joined("<", None, Safe("<b></b>")) == "&lt;<b></b>"

    def test_markup_that_was_put_together_by_hand_is_data_again(self) -> None:
        assert tag("p", "<" + tag("code", "x")) == "<p>&lt;&lt;code&gt;x&lt;/code&gt;</p>"

    def test_elements_attributes_and_links_come_from_a_list(self) -> None:
        with pytest.raises(AssertionError, match="no element"):
            tag("script", "x")
        with pytest.raises(AssertionError, match="no attribute"):
            tag("p", onclick="x")
        for elsewhere in ("javascript:alert(1)", "https://example.org/", "r.html"):
            with pytest.raises(AssertionError, match="nothing but itself"):
                tag("a", href=elsewhere)

    def test_only_one_module_makes_markup(self) -> None:
        assert {path.name for path in sorted(FOLDER.glob("*.py")) if makes_markup(path.read_text())} == {"safe.py"}

    @pytest.mark.parametrize(
        "text", ["Safe(x)", "safe.Safe('<b>')", "f = Safe", "cast(Safe, x)", "str.__new__(Safe, x)"]
    )
    def test_another_module_that_made_some_would_be_found(self, text: str) -> None:
        assert makes_markup(text)


def makes_markup(text: str) -> bool:
    """Say whether a module uses the type `Safe` otherwise than to annotate something."""
    tree = ast.parse(text)
    notes = [node.returns for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    notes += [node.annotation for node in ast.walk(tree) if isinstance(node, ast.arg | ast.AnnAssign)]
    allowed = {id(each) for note in notes if note is not None for each in ast.walk(note)}
    used = [node for node in ast.walk(tree) if getattr(node, "id", getattr(node, "attr", None)) == "Safe"]
    return any(id(node) not in allowed for node in used)


# ── one file, for ever ───────────────────────────────────────────────────────────────────────────────────────────────


class TestOneFile:
    def test_it_runs_nothing_and_asks_for_nothing(self) -> None:
        page = page_of(HOSTILE)
        elements = {each.partition(" ")[0] for each in page.outline}
        assert elements.isdisjoint({"script", "link", "img", "iframe", "object", "form", "base", "svg"})
        assert page.outline.count("style") == 1
        names = {name for _, name, _ in page.attributes}
        assert names <= {"charset", "class", "content", "href", "http-equiv", "id", "lang", "name"}
        assert not re.search(r"url\(|@import|expression", STYLE)

    def test_its_policy_forbids_all_but_its_own_style(self) -> None:
        assert POLICY == "default-src 'none'; style-src 'unsafe-inline'"
        metas = [value for element, name, value in page_of("word").attributes if (element, name) == ("meta", "content")]
        assert metas[0] == POLICY

    def test_every_link_leads_to_a_place_in_it(self) -> None:
        page = page_of("word")
        places = [value for _, name, value in page.attributes if name == "id"]
        links = {value for _, name, value in page.attributes if name == "href"}
        assert len(places) == len(set(places))
        assert links <= {f"#{place}" for place in places}

    def test_it_has_every_event_with_its_sentence_and_its_hash_whole(self) -> None:
        events = catalogue()
        page = Page(run_report(subject_of("word", events)))
        for event in events:
            assert sentence(event) in page.text
            assert event.leaf.hex() in page.text
            assert event.body.decode() in page.text


# ── the story ────────────────────────────────────────────────────────────────────────────────────────────────────────


class TestTheStory:
    @pytest.mark.parametrize("name", EXPERIMENTS)
    def test_the_report_of_each_experiment_of_the_article_names_the_refusal_and_the_reason(
        self, name: str, here: HereCommandLine
    ) -> None:
        facts = EXPERIMENTS[name](here)
        text = report_of(here).text
        assert [fact for fact in facts if fact not in text] == []
        assert "read and agreed" in text

    def test_a_view_that_was_edited_is_told_in_the_verdict(self, here: HereCommandLine) -> None:
        EXPERIMENTS["another request"](here)
        ended = here("report", "run-1", "--to", "r.html", "--json", status=0)
        assert ended.json["verified"]["views"] == "differs"
        assert ended.json["verified"]["integrity"] == "ok"
        assert "the check found damage" in ended.error
        page = Page((here.folder / "r.html").read_text(encoding="utf-8"))
        assert "differs from its log in request_id" in page.text

    def test_what_was_approved_is_there_whole(self, here: HereCommandLine) -> None:
        long = {"content": "x" * 5000, "nested": {"n": [1, None, "é"]}}
        words = ("--action", "write_draft", "--args", json.dumps(long), "--output", "draft.txt")
        digest = here("start", "run-1", *words, status=0).json["proposal_hash"]
        here("approve", "run-1", "--proposal-hash", digest, "--reason", "seen", status=0)
        text = report_of(here).text
        for whole in ("x" * 5000, digest, "draft.txt", "approval:run-1", "seen", str(here.folder)):
            assert whole in text

    def test_attempts_at_an_effect_stand_together_under_its_op_key(self, here: HereCommandLine) -> None:
        EXPERIMENTS["crashed in between"](here)
        run = here("runs", "show", "run-1", "--json", status=0).json
        done = report_of(here).text.partition("What was done")[2].partition("Other runs")[0]
        assert done.count(run["op_key"]) >= 1
        assert "1: 20" in done and "2: 20" in done
        assert "action_recovered" in done

    def test_an_intent_without_a_result_is_open(self) -> None:
        events = [event for event in catalogue() if event.type == "resume_started"]
        (effect,) = effects_of(events)
        assert effect.is_open and effect.outcome == "open"
        assert "it has begun, and has no result yet" in Page(run_report(subject_of("word", events))).text

    def test_a_family_of_runs_is_linked_by_its_ids(self, here: HereCommandLine) -> None:
        publish = effect(Calls(), "publish")

        @eventlog.workflow
        async def inner(run: eventlog.RunContext) -> str:
            return str(await run.act("publish", {"text": "t"}, output="web:/page"))

        @eventlog.workflow
        async def outer(run: eventlog.RunContext) -> str:
            return str(await run.child(inner, run_id="the-child"))

        async def begin() -> None:
            async with eventlog.open(here.folder / "a.db") as log:
                runner = eventlog.Runner(log, workflows=[outer, inner], actions=[publish])
                await runner.start(outer, "the-parent")

        asyncio.run(begin())
        parent = report_of(here, "the-parent").text
        assert "step inner started the run the-child of workflow inner" in parent
        child = report_of(here, "the-child").text
        related = child.partition("Other runs")[2].partition("What happened")[0]
        assert "child of step inner of the run the-parent" in related
        assert "publish" in child and "web:/page" in child and "WAITING_FOR_USER" in child

    def test_it_says_how_to_verify_it_again(self, here: HereCommandLine) -> None:
        start(here)
        assert "eventlog --db a.db verify --run run-1" in report_of(here).text


# ── the file ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class TestTheFile:
    def test_what_is_there_is_refused_and_replaced_only_with_force(self, here: HereCommandLine) -> None:
        start(here)
        target = here.folder / "r.html"
        target.write_text("mine", encoding="utf-8")
        assert here("report", "run-1", "--to", "r.html", "--json", status=2).json["error"] == "target_exists"
        assert target.read_text(encoding="utf-8") == "mine"
        here("report", "run-1", "--to", "r.html", "--force", status=0)
        assert target.read_text(encoding="utf-8").startswith("<!doctype html>")
        assert sorted(path.name for path in here.folder.glob("*html*")) == ["r.html"]

    def test_the_log_itself_is_never_replaced(self, here: HereCommandLine) -> None:
        start(here)
        before = (here.folder / "a.db").read_bytes()
        here("report", "run-1", "--to", "a.db", "--force", status=2)
        assert (here.folder / "a.db").read_bytes() == before

    def test_the_file_and_standard_output_get_the_same_page(self, here: HereCommandLine) -> None:
        approve(here)
        card = here("report", "run-1", "--to", "r.html", "--json", status=0).json
        written = (here.folder / "r.html").read_bytes()
        assert card["size_bytes"] == len(written)
        printed = here("report", "run-1", "--to", "-", status=0).out
        made = re.compile(rb"Made [0-9TZ:.-]+ by")
        assert made.sub(b"", printed) == made.sub(b"", written)

    def test_a_run_that_is_not_there_leaves_no_file(self, here: HereCommandLine) -> None:
        start(here)
        assert here("report", "nope", "--to", "r.html", "--json", status=2).json["error"] == "unknown_run:nope"
        assert not (here.folder / "r.html").exists()

    def test_a_run_whose_events_are_damaged_has_no_report(self, here: HereCommandLine) -> None:
        approve(here)
        edit(here.folder / "a.db", "DROP TRIGGER events_update")
        assert edit(here.folder / "a.db", "UPDATE events SET body = '{}' WHERE position = 2") == 1
        here("report", "run-1", "--to", "r.html", status=3)
        assert not (here.folder / "r.html").exists()

    def test_a_folder_that_is_not_there_is_refused_with_its_name(self, here: HereCommandLine) -> None:
        start(here)
        assert "nowhere" in here("report", "run-1", "--to", "nowhere/r.html", status=2).error


def test_it_says_of_which_log_it_is(here: HereCommandLine) -> None:
    start(here)
    assert here("db", "info", "--json", status=0).json["log_id"] in report_of(here).text

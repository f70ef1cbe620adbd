"""A run as a picture: what Mermaid and Graphviz read is what the events say, whatever their texts hold."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from eventlog.audit.diagrams import Moment, Part, dot_diagram, mermaid_diagram, moments_of
from eventlog.cli.text import visible
from tests.audit_runs import EXPERIMENTS, HOSTILE, catalogue, recorded
from tests.command_line import HereCommandLine
from tests.needs import need_command
from tests.strategies import texts

# ── checks that read the text as the two programs do, and know the grammar that we write ─────────────────────────────

MERMAID_LABEL = re.compile(r"(?:[^\W\d_ﬂß]|[\d_ .,/-]|#\d+;|<br/>)*")
MERMAID_HEAD = re.compile(r"    (?:actor|participant) (P\d+) as (.*)")
MERMAID_LINE = re.compile(r"    (P\d+)(?:->>|-->>|-x|--x)(P\d+): (.*)")
DOT_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
DOT_STATEMENT = re.compile(
    r"    (?:label=S;|labelloc=t;|node \[fontname=S\];|[exr]\d+ \[label=S(?:, [a-z]+=(?:[a-z0-9]+|S))+\];"
    r"|[exr]\d+ -> [exr]\d+(?: \[style=dashed\])?;)"
)


class NotOurs(AssertionError):
    """A line that could only have come from data."""


def read_mermaid(text: str) -> tuple[dict[str, str], list[tuple[str, str, list[str]]]]:
    """Return the participants by id and the messages, labels decoded. Raises NotOurs for any other statement."""
    first, *lines = text.removesuffix("\n").split("\n")
    assert first == "sequenceDiagram"
    heads, messages = {}, []
    for line in lines:
        if head := MERMAID_HEAD.fullmatch(line):
            heads[head[1]] = decoded(head[2])[0]
        elif message := MERMAID_LINE.fullmatch(line):
            messages.append((message[1], message[2], decoded(message[3])))
        else:
            raise NotOurs(line)
    return heads, messages


def decoded(label: str) -> list[str]:
    if not MERMAID_LABEL.fullmatch(label):
        raise NotOurs(label)
    return [re.sub(r"#(\d+);", lambda code: chr(int(code[1])), line) for line in label.split("<br/>")]


def read_dot(text: str) -> list[str]:
    """Return the statements with the strings taken out. Raises NotOurs for one that we never write."""
    first, *lines, last = DOT_STRING.sub("S", text).removesuffix("\n").split("\n")
    assert (first, last) == ("digraph run {", "}")
    for line in lines:
        if not DOT_STATEMENT.fullmatch(line):
            raise NotOurs(line)
    return lines


def dot_labels(text: str) -> dict[str, list[str]]:
    """Return the lines of the label of each node."""
    found = re.findall(r'^    ([exr]\d+) \[label=("(?:[^"\\\n]|\\.)*")', text, re.MULTILINE)
    return {name: lines(label) for name, label in found}


def lines(label: str) -> list[str]:
    """Return the lines of a quoted label as they are drawn."""
    drawn = re.sub(r"\\(.)", lambda escape: "\n" if escape[1] == "n" else escape[1], label[1:-1])
    return html.unescape(drawn).split("\n")


def hostile_moments() -> list[Moment]:
    return list(moments_of(HOSTILE, catalogue(HOSTILE)))


# ── what is in the picture ───────────────────────────────────────────────────────────────────────────────────────────


def test_every_event_of_the_catalogue_is_a_moment_of_its_own() -> None:
    events = catalogue()
    moments = list(moments_of("run-1", events))
    assert [moment.version for moment in moments] == [event.version for event in events]
    assert all(moment.lines and all(moment.lines) for moment in moments)
    assert not [moment for moment in moments if "does not know" in " ".join(moment.lines)]


def test_an_event_of_a_newer_program_is_in_the_picture_by_its_name() -> None:
    (moment,) = moments_of("run-1", [recorded({"n": 1}, "run_paused", is_known=False)])
    assert moment.lines[0] == "run_paused"
    assert "does not know" in moment.lines[1]


def test_a_refusal_is_drawn_as_one_in_both_languages() -> None:
    events = [
        event for event in catalogue() if event.type in ("proposal_rejected", "action_conflict", "resume_rejected")
    ]
    moments = list(moments_of("run-1", events))
    assert {moment.kind for moment in moments} == {"refusal"}
    assert mermaid_diagram(moments).count("-xP") == len(events)
    assert dot_diagram("run-1", moments).count("shape=octagon") == len(events)


def test_an_effect_is_named_by_the_action_of_its_request() -> None:
    events = [event for event in catalogue() if event.type in ("proposal_recorded", "resume_started")]
    intents = [moment for moment in moments_of("run-1", events) if moment.kind == "effect"]
    assert {moment.target for moment in intents} == {Part("effect", "a")}


def test_other_runs_have_a_place_of_their_own() -> None:
    events = [event for event in catalogue() if event.type in ("child_started", "child_finished")]
    moments = list(moments_of("run-1", events))
    heads, messages = read_mermaid(mermaid_diagram(moments))
    assert set(heads.values()) == {"run run-1", "run r/c"}
    assert len(messages) == len(events)
    assert "shape=folder" in dot_diagram("run-1", moments)


def test_a_long_text_is_cut_with_a_mark_and_a_hash_is_whole(tmp_path: Path) -> None:
    cli = HereCommandLine(tmp_path, "--db", "a.db")
    digest = cli("start", "run-1", "--output", "o" * 300, status=0).json["proposal_hash"]
    for language in ("mermaid", "dot"):
        text = cli("diagram", "run-1", "--as", language, status=0).text
        assert digest in text
        assert "220 more characters" in text


# ── nothing breaks out ───────────────────────────────────────────────────────────────────────────────────────────────


def test_hostile_texts_are_labels_and_nothing_else_in_mermaid() -> None:
    moments = hostile_moments()
    heads, messages = read_mermaid(mermaid_diagram(moments))
    assert [words for _, _, words in messages] == [shown(moment) for moment in moments]
    assert set(heads.values()) <= {visible(f"{before}{HOSTILE}") for before in ("", "run ", "effect ")} | {"a rule"}
    assert {end for message in messages for end in message[:2]} == heads.keys()


def test_hostile_texts_are_labels_and_nothing_else_in_dot() -> None:
    moments = hostile_moments()
    text = dot_diagram(HOSTILE, moments)
    read_dot(text)
    labels = dot_labels(text)
    for moment in moments:
        assert labels[f"e{moment.version}"][: len(moment.lines)] == shown(moment)


@settings(max_examples=25, deadline=None)
@given(texts)
def test_no_text_breaks_out(text: str) -> None:
    moments = list(moments_of(text, catalogue(text)))
    assert len(read_mermaid(mermaid_diagram(moments))[1]) == len(moments)
    assert len(read_dot(dot_diagram(text, moments))) >= 2 * len(moments)


@pytest.mark.parametrize("language", ["mermaid", "dot"])
def test_a_label_that_is_not_escaped_is_found(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if language == "mermaid":
        monkeypatch.setattr("eventlog.audit.diagrams.mermaid._character", lambda character: character)
        with pytest.raises(NotOurs):
            read_mermaid(mermaid_diagram(hostile_moments()))
    else:
        monkeypatch.setattr("eventlog.audit.diagrams.dot._escaped", lambda text: text)
        with pytest.raises(NotOurs):
            read_dot(dot_diagram(HOSTILE, hostile_moments()))


def shown(moment: Moment) -> list[str]:
    first, *others = moment.lines
    return [visible(f"{moment.version}. {first}"), *map(visible, others)]


# ── Graphviz itself ──────────────────────────────────────────────────────────────────────────────────────────────────


def drawn(text: str, language: str = "json0") -> bytes:
    """Return what Graphviz makes of the text. It reads nothing else, and warns of nothing."""
    ended = subprocess.run(
        [need_command("dot"), f"-T{language}"], input=text.encode(), capture_output=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    return ended.stdout


def nodes(graph: Any) -> dict[str, list[str]]:
    return {each["name"]: lines(f'"{each["label"]}"') for each in graph["objects"]}


def test_graphviz_reads_the_same_nodes_and_labels_whatever_they_hold() -> None:
    moments = hostile_moments()
    text = dot_diagram(HOSTILE, moments)
    found = nodes(json.loads(drawn(text)))
    assert found == dot_labels(text)
    assert len([name for name in found if name.startswith("e")]) == len(moments)


def test_graphviz_draws_no_element_that_a_text_names() -> None:
    picture = drawn(dot_diagram(HOSTILE, hostile_moments()), "svg").decode()
    assert set(re.findall(r"<([a-zA-Z]+)", picture)) <= {"svg", "g", "title", "path", "polygon", "text", "ellipse"} | {
        "polyline"
    }


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["another request", "another output", "resumed again", "another content"])
def test_the_experiments_of_the_article_are_drawn_with_their_refusals(name: str, tmp_path: Path) -> None:
    cli = HereCommandLine(tmp_path, "--db", "a.db")
    reason = EXPERIMENTS[name](cli)[0]
    _, messages = read_mermaid(cli("diagram", "run-1", status=0).text)
    assert any(reason in " ".join(words) for _, _, words in messages)
    assert reason in cli("diagram", "run-1", "--as", "dot", status=0).text


def test_json_has_the_text_in_one_document(tmp_path: Path) -> None:
    cli = HereCommandLine(tmp_path, "--db", "a.db")
    cli("start", "run-1", "--output", "o.txt", status=0)
    document = cli("diagram", "run-1", "--as", "dot", "--json", status=0).json
    assert document.keys() == {"run_id", "as", "version", "text"}
    assert document["text"] == cli("diagram", "run-1", "--as", "dot", status=0).text


def test_a_run_that_is_not_there_is_refused(tmp_path: Path) -> None:
    cli = HereCommandLine(tmp_path, "--db", "a.db")
    cli("start", "run-1", "--output", "o.txt", status=0)
    assert cli("diagram", "nope", "--json", status=2).json["error"] == "unknown_run:nope"

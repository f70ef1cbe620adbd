"""Changes of event schemas: what may be declared, what upcasters get and give, narrow readings, and every way to read.

What every store has to do with old events is in the contract (`eventlog.testing.log_contract.schemas`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eventlog
from eventlog import RunContext, Runner, snapshots
from eventlog.audit.snapshots import check_snapshots
from eventlog.codec import REGISTRY, Reading, Registry, event, retire, split
from eventlog.codec.upcasting import is_same_function
from eventlog.errors import InvalidInput
from eventlog.events import run_stream
from eventlog.log import Expect, NewEvent, Retired, RunLog, Snapshot
from eventlog.plain import Limits
from eventlog.progress import fold_stream
from eventlog.runtime.failpoints import pass_by
from eventlog.runtime.run_streams import RunStreams
from eventlog.snapshots import encode_snapshot, has_own_shape, shape_of
from eventlog.testing.log_contract.schemas import read_on_every_way
from tests.command_line import HereCommandLine
from tests.strategies import identical, texts

ANY = Expect.any()


class Placed(msgspec.Struct, frozen=True):
    sku: str
    count: int
    note: str = ""


class Moved(msgspec.Struct, frozen=True):
    to: str


class Priced(msgspec.Struct, frozen=True):
    cents: int


class Listed(msgspec.Struct, frozen=True, array_like=True):
    sku: str


def _same(old: dict[str, Any]) -> dict[str, Any]:
    return old


def _counted(old: dict[str, Any]) -> dict[str, Any]:
    return {"sku": old["sku"], "count": old.pop("amount")}


def _decide(old: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return ("moved", {"to": old["to"]}) if "to" in old else ("priced", {"price": old["price"]})


def _in_cents(old: dict[str, Any]) -> dict[str, Any]:
    return {"cents": old["price"] * 100}


def declare(registry: Registry) -> None:
    """Declare one of each: a renamed type, a split one and a retired one."""
    registry.register(Placed, "placed", schema_version=2, upcast={1: _counted}, renamed_from=("made", "put"))
    registry.register(Moved, "moved")
    registry.register(Priced, "priced", schema_version=2, upcast={1: _in_cents})
    registry.split(_decide, "changed", into=("moved", "priced"), renamed_from=("altered",))
    registry.retire("flagged")


def known() -> Registry:
    """Return a registry that knows one of each."""
    registry = Registry()
    declare(registry)
    return registry


# ── declarations that contradict one another ─────────────────────────────────────────────────────────────────────────


def _split_in_a_circle(registry: Registry) -> None:
    registry.split(_decide, "x", into=("y",))
    registry.split(_decide, "z", into=("x",), renamed_from=("y",))


def _split_ahead(registry: Registry) -> None:
    registry.split(_decide, "ahead", into={"listed": 2})
    registry.register(Listed, "listed")


CONTRADICTIONS: dict[str, Callable[[Registry], object]] = {
    "renamed from itself": lambda it: it.register(Listed, "x", renamed_from=("x",)),
    "renamed from the same twice": lambda it: it.register(Listed, "x", renamed_from=("y", "y")),
    "renamed from a live type": lambda it: it.register(Listed, "x", renamed_from=("moved",)),
    "renamed from one of the engine's": lambda it: it.register(Listed, "x", renamed_from=("run_completed",)),
    "renamed from another's former name": lambda it: it.register(Listed, "x", renamed_from=("made",)),
    "renamed from a split type": lambda it: it.register(Listed, "x", renamed_from=("changed",)),
    "renamed from a retired type": lambda it: it.register(Listed, "x", renamed_from=("flagged",)),
    "renamed in a circle": lambda it: it.register(Listed, "made", renamed_from=("placed",)),
    "a former name as a type": lambda it: it.register(Listed, "made"),
    "a split type as a type": lambda it: it.register(Listed, "changed"),
    "a retired type as a type": lambda it: it.register(Listed, "flagged"),
    "another class": lambda it: it.register(Listed, "moved"),
    "another version": lambda it: it.register(Placed, "placed", renamed_from=("made", "put")),
    "another chain": lambda it: it.register(
        Placed, "placed", schema_version=2, upcast={1: _same}, renamed_from=("made", "put")
    ),
    "other former names": lambda it: it.register(Placed, "placed", schema_version=2, upcast={1: _counted}),
    "another split": lambda it: it.split(lambda old: ("moved", old), "changed", into=("moved", "priced")),
    "a live type split": lambda it: it.split(_decide, "placed", into=("moved",)),
    "split into itself": lambda it: it.split(_decide, "x", into=("x",)),
    "split into its own former name": lambda it: it.split(_decide, "x", into=("y",), renamed_from=("y",)),
    "split in a circle": _split_in_a_circle,
    "split into a version that is not there yet": lambda it: it.split(_decide, "x", into={"priced": 3}),
    "a target whose version is too low": _split_ahead,
    "a live type retired": lambda it: it.retire("moved"),
    "a former name retired": lambda it: it.retire("put"),
    "a split type retired": lambda it: it.retire("changed"),
    "one of the engine's retired": lambda it: it.retire("run_completed"),
}
BAD: dict[str, Callable[[Registry], object]] = {
    "former names as one text": lambda it: it.register(Listed, "x", renamed_from="made"),
    "targets as one text": lambda it: it.split(_decide, "x", into="moved"),
    "no target": lambda it: it.split(_decide, "x", into=()),
    "a hole in the chain of a split type": lambda it: it.split(_decide, "x", into=("moved",), schema_version=2),
    "a target version that is none": lambda it: it.split(_decide, "x", into={"moved": 0}),
    "upcasters of a list": lambda it: it.register(Listed, "x", schema_version=2, upcast={1: _same}),
}


@pytest.mark.parametrize("contradict", CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_declarations_that_contradict_one_another_are_refused_at_once(contradict: Callable[[Registry], object]) -> None:
    with pytest.raises(InvalidInput) as caught:
        contradict(known())
    assert caught.value.code == "event_type_conflict"


@pytest.mark.parametrize("contradict", BAD.values(), ids=BAD.keys())
def test_a_declaration_that_says_nothing_sensible_is_refused_at_once(contradict: Callable[[Registry], object]) -> None:
    with pytest.raises(InvalidInput) as caught:
        contradict(known())
    assert caught.value.code == "invalid_argument"


@pytest.mark.parametrize("name", ["", "a\nb", 7])
def test_former_names_targets_and_retired_types_are_names(name: Any) -> None:
    declarations: list[Callable[[Registry], object]] = [
        lambda it: it.register(Listed, "x", renamed_from=(name,)),
        lambda it: it.split(_decide, "x", into=(name,)),
        lambda it: it.retire(name),
    ]
    for each in declarations:
        with pytest.raises(InvalidInput) as caught:
            each(known())
        assert caught.value.code == "invalid_id"


def test_what_was_refused_changes_nothing() -> None:
    registry = known()
    for contradict in CONTRADICTIONS.values():
        with pytest.raises(InvalidInput):
            contradict(registry)
    assert registry.read("made", 1, b'{"sku":"a","amount":2}').data == Placed("a", 2)
    assert registry.stored_names(["placed"]) == {"placed", "made", "put"}


def test_a_module_that_is_loaded_again_declares_the_same_again() -> None:
    registry = Registry()
    module = """
@event("placed_anew", schema_version=2, upcast={1: lambda old: {**old, "note": "a"}}, renamed_from=("made",),
       registry=registry)
class Loaded(msgspec.Struct):
    note: str
@split("changed_anew", into={"placed_anew": 2}, registry=registry)
def decide(old):
    return "placed_anew", old
retire("flagged_anew", registry=registry)
"""
    for text in (module, module, "\n\n" + module):
        exec(text, {"event": event, "split": split, "retire": retire, "msgspec": msgspec, "registry": registry})
    assert registry.read("changed_anew", 1, b'{"note":"b"}').data.note == "b"
    with pytest.raises(InvalidInput, match="belongs to"):
        exec(module.replace('"a"', '"z"'), {"event": event, "msgspec": msgspec, "registry": registry})


# ── what upcasters get and give ──────────────────────────────────────────────────────────────────────────────────────


def _holding(held: Any, default: Any = None) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def upcast(old: dict[str, Any], given: Any = default) -> dict[str, Any]:
        return {**old, "held": held, "given": given}

    return upcast


def _one_way(old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "way": 1}


def _another_way(old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "way": 2}


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (_holding(1), _holding(1), True),
        (_holding(1), _holding(2), False),
        (_holding(1, default="a"), _holding(1, default="b"), False),
        (_holding(1, default="a"), _holding(1, default="a"), True),
        (_holding(_one_way), _holding(_one_way), True),
        (_holding(_one_way), _holding(_another_way), False),
        (_holding(_one_way), _holding(1), False),
        (_one_way, _another_way, False),
        (_one_way, dict, False),
        (dict, dict, True),
        (operator.itemgetter("a"), operator.itemgetter("b"), False),
        (functools.partial(_one_way), functools.partial(_one_way), False),
        (7, 7.0, False),
        ("text", "".join(["te", "xt"]), True),
    ],
)
def test_functions_are_the_same_if_they_do_the_same_with_the_same(one: Any, other: Any, is_same: bool) -> None:
    assert is_same_function(one, other) is is_same


def test_an_upcaster_may_change_what_it_gets_and_keep_what_it_gave() -> None:
    shared: dict[str, Any] = {"items": [1], "more": {}}

    def first(old: dict[str, Any]) -> dict[str, Any]:
        old.clear()
        return shared

    def second(old: dict[str, Any]) -> dict[str, Any]:
        assert old == {"items": [1], "more": {}}, "nobody has changed it since the first event"
        old["items"].append(2)
        old["more"]["x"] = 1
        return {"sku": "a", "count": len(old["items"])}

    registry = Registry()
    registry.register(Placed, "placed", schema_version=3, upcast={1: first, 2: second})
    for _ in range(3):
        assert registry.decode("placed", 1, b'{"any":1}') == Placed("a", 2)
    assert shared == {"items": [1], "more": {}}


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (None, "gave a NoneType, not a dict"),
        ([], "gave a list"),
        (Placed("a", 1), "gave a Placed"),
        ({1: 2}, "non_string_key|not a str"),
        ({"sku": ("a",)}, "tuple"),
        ({"sku": float("nan")}, "nan is not a JSON number"),
        ({"sku": "\ud800"}, "lone surrogate"),
        ({"sku": {"deep": [object()]}}, r"\$\.sku\.deep\[0\]"),
        ({"sku": Moved("x")}, "Moved"),
    ],
    ids=lambda each: "" if isinstance(each, str) else type(each).__name__,
)
def test_what_an_upcaster_gives_is_a_mapping_of_plain_data(made: Any, said: str) -> None:
    registry = Registry()
    registry.register(Placed, "placed", schema_version=3, upcast={1: _same, 2: lambda old: made})
    with pytest.raises(InvalidInput, match=said) as caught:
        registry.decode("placed", 1, b'{"sku":"a"}')
    assert caught.value.code == "invalid_event"
    assert caught.value.details["step"] == "the upcaster of 'placed' from schema version 2 to 3"
    assert (caught.value.details["type"], caught.value.details["schema_version"]) == ("placed", 1)


def test_a_mapping_that_holds_itself_is_no_plain_data() -> None:
    circle: dict[str, Any] = {}
    circle["self"] = circle
    registry = Registry()
    registry.register(Placed, "placed", schema_version=2, upcast={1: lambda old: circle})
    with pytest.raises(InvalidInput, match="no plain data"):
        registry.decode("placed", 1, b"{}")


@pytest.mark.parametrize(
    ("decide", "said"),
    [
        (lambda old: old["nothing"], "the split of 'changed' raised KeyError"),
        (lambda old: "moved", "not a type and a mapping"),
        (lambda old: (Moved, {}), "not a type and a mapping"),
        (lambda old: ("placed", {}), "not one of moved, priced"),
        (lambda old: ("moved", None), "gave a NoneType"),
        (lambda old: ("priced", {"price": "a"}), "Expected `int`|from schema version 1 to 2"),
        (lambda old: ("moved", {}), "missing required field"),
    ],
)
def test_what_a_split_gives_is_one_of_its_types_and_a_mapping(decide: Any, said: str) -> None:
    registry = Registry()
    registry.register(Moved, "moved")
    registry.register(Priced, "priced", schema_version=2, upcast={1: _in_cents})
    registry.split(decide, "changed", into=("moved", "priced"))
    with pytest.raises(InvalidInput, match=said) as caught:
        registry.read("changed", 1, b'{"price":2}')
    assert caught.value.code == "invalid_event" and "'changed' of schema version 1" in str(caught.value)


def test_a_type_that_an_event_became_has_to_be_registered() -> None:
    registry = Registry()
    registry.split(_decide, "changed", into=("moved", "priced"))
    with pytest.raises(InvalidInput, match="'priced', which is not registered"):
        registry.read("changed", 1, b'{"price":2}')


def test_what_a_type_was_split_into_may_be_renamed_split_or_retired_since() -> None:
    registry = Registry()
    registry.split(_decide, "changed", into=("moved", "priced"))
    registry.register(Moved, "carried", renamed_from=("moved",))
    registry.split(lambda old: ("dear" if old["price"] > 9 else "cheap", old), "priced", into=("dear", "cheap"))
    registry.register(Priced, "dear", schema_version=2, upcast={1: _in_cents})
    registry.retire("cheap")
    read = [registry.read("changed", 1, body) for body in (b'{"to":"x"}', b'{"price":10}', b'{"price":1}')]
    assert [(each.type, each.stored_type, each.data) for each in read] == [
        ("carried", "changed", Moved("x")),
        ("dear", "changed", Priced(1000)),
        ("cheap", "changed", Retired({"price": 1})),
    ]
    assert registry.stored_names(["dear"]) == {"dear", "priced", "changed"}
    assert registry.stored_names(["moved"]) == {"carried", "moved", "changed"}
    assert registry.stored_names(["changed"]) == {"carried", "moved", "dear", "cheap", "priced", "changed"}


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("types", "stored"),
    [
        ([], set()),
        (["unknown"], {"unknown"}),
        (["placed"], {"placed", "made", "put"}),
        (["put"], {"placed", "made", "put"}),
        (["moved"], {"moved", "changed", "altered"}),
        (["altered"], {"moved", "priced", "changed", "altered"}),
        (["flagged"], {"flagged"}),
        (["run_completed", "placed"], {"run_completed", "placed", "made", "put"}),
    ],
)
def test_stored_names_are_all_under_which_such_events_may_be_stored(types: list[str], stored: set[str]) -> None:
    assert known().stored_names(types) == stored


def test_a_name_is_known_if_anybody_declared_it() -> None:
    names = ["placed", "made", "changed", "altered", "flagged", "run_completed"]
    assert all(map(known().is_known, names)) and not known().is_known("unknown")
    assert [known().known_version(name) for name in (*names, "unknown")] == [2, 2, 1, 1, None, 1, None]
    assert Registry(knows_engine=False).is_known("run_completed") is False


async def test_a_single_event_says_in_which_shape_of_today_it_can_be_given_on() -> None:
    registry = Registry()
    async with eventlog.open("memory:", registry=registry) as log:
        old = [("made", 1, {"sku": "a", "amount": 1}), ("changed", 1, {"price": 2}), ("flagged", 4, [1])]
        old += [("placed", 2, {"sku": "é", "count": 10**30}), ("placed", 9, {"x": 1}), ("unknown", 3, None)]
        old += [("changed", 1, {"to": "x", "by": "nobody"})]
        await log.append("a", [NewEvent(*each[::2], schema_version=each[1]) for each in old], expect=ANY)
        declare(registry)
        found = [registry.in_current_shape(each) async for each in log.read("a")]
    assert found == [
        (2, {"sku": "a", "count": 1, "note": ""}),
        (2, {"cents": 200}),
        (4, [1]),
        (2, {"sku": "é", "count": 10**30}),
        (9, {"x": 1}),
        (3, None),
        (1, {"to": "x"}),
    ]


# ── narrow readings ──────────────────────────────────────────────────────────────────────────────────────────────────


class JustSku(msgspec.Struct, frozen=True):
    sku: str


class Cents(msgspec.Struct, frozen=True, rename={"amount": "cents"}):
    amount: float


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    sku: str


def read(reading: Reading, body: bytes) -> tuple[str | None, Any]:
    data = reading.decode(body)
    return (reading.type, data) if reading.type is not None else data


SHAPES: dict[str, type[msgspec.Struct]] = {"placed": JustSku, "priced": Cents}


@pytest.mark.parametrize(
    ("stored_type", "version", "body", "found", "is_known", "is_retired"),
    [
        ("placed", 2, b'{"sku":"a","count":1,"note":"x"}', ("placed", JustSku("a")), True, False),
        ("placed", 2, b'{"sku":"a"}', ("placed", JustSku("a")), True, False),
        ("placed", 1, b'{"sku":"a","amount":1}', ("placed", JustSku("a")), True, False),
        ("made", 2, b'{"sku":"a","count":1}', ("placed", JustSku("a")), True, False),
        ("made", 1, b'{"sku":"a","amount":1}', ("placed", JustSku("a")), True, False),
        ("placed", 3, b'{"sku":"a"}', ("placed", {"sku": "a"}), False, False),
        ("changed", 1, b'{"price":2}', ("priced", Cents(200)), True, False),
        ("changed", 1, b'{"to":"x"}', ("moved", Moved("x")), True, False),
        ("altered", 2, b'{"to":"x"}', ("changed", {"to": "x"}), False, False),
        ("moved", 1, b'{"to":"x"}', ("moved", Moved("x")), True, False),
        ("flagged", 5, b"[1]", ("flagged", Retired([1])), True, True),
        ("unknown", 1, b'{"sku":"a"}', ("unknown", {"sku": "a"}), False, False),
    ],
)
def test_a_narrow_reading_gives_the_asked_for_fields_whatever_the_event_was_stored_as(
    stored_type: str, version: int, body: bytes, found: Any, is_known: bool, is_retired: bool
) -> None:
    reading = known().reading(stored_type, version, SHAPES)
    assert read(reading, body) == found
    assert (reading.is_known, reading.is_retired) == (is_known, is_retired)


def test_a_former_name_in_the_shapes_means_its_current_type() -> None:
    assert read(known().reading("placed", 2, {"put": JustSku}), b'{"sku":"a"}') == ("placed", JustSku("a"))


@pytest.mark.parametrize("stored_type", ["placed", "made"])
def test_events_of_todays_shape_are_decoded_by_one_call_of_the_decoder_itself(stored_type: str) -> None:
    for shapes in (None, SHAPES):
        decode: Any = known().reading(stored_type, 2, shapes).decode
        assert isinstance(decode.__self__, msgspec.json.Decoder)


def test_a_narrow_struct_has_to_be_able_to_leave_fields_out() -> None:
    with pytest.raises(InvalidInput, match="Strict has to allow"):
        known().reading("placed", 2, {"placed": Strict})


def test_a_reading_without_shapes_is_made_once() -> None:
    registry = known()
    assert registry.reading("made", 1) is registry.reading("made", 1)
    before = registry.reading("later", 1)
    registry.register(Listed, "later")
    assert (before.is_known, registry.reading("later", 1).is_known) == (False, True)


# ── random histories of a schema ─────────────────────────────────────────────────────────────────────────────────────

Change = tuple[str, str, str]
"""What changed: `add` a field, `remove` one, `rename` one to another, or the `type` to another name."""

_FIELDS = [f"f{number}" for number in range(6)]
_changes = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "rename", "type"]), st.sampled_from(_FIELDS), st.sampled_from(_FIELDS)),
    max_size=8,
)
_lists = st.lists(st.integers(), max_size=2) | st.dictionaries(texts, texts, max_size=2)
_values = st.none() | st.integers() | texts | _lists


class History:
    """The life of one event type as the model has it: at each moment its name, its version and its fields."""

    def __init__(self, changes: list[Change]) -> None:
        self.moments: list[tuple[str, int, tuple[str, ...]]] = [("thing", 1, ("kind", "f0"))]
        self.names = ["thing"]
        self.steps: list[Change] = []
        for change in changes:
            self._make(change)
        self.version = self.moments[-1][1]
        self.fields = self.moments[-1][2]

    def _make(self, change: Change) -> None:
        name, version, fields = self.moments[-1]
        what, one, other = change
        match what:
            case "type":
                name = f"thing_{len(self.names)}"
                self.names.append(name)
            case "add" if one not in fields:
                fields = (*fields, one)
            case "remove" if one in fields:
                fields = tuple(each for each in fields if each != one)
            case "rename" if one in fields and other not in fields:
                fields = tuple(other if each == one else each for each in fields)
            case _:
                return
        if what != "type":
            version += 1
            self.steps.append(change)
        self.moments.append((name, version, fields))

    def today(self, version: int, data: dict[str, Any]) -> dict[str, Any]:
        """Return what the model says an event of this version is today."""
        data = dict(data)
        for what, one, other in self.steps[version - 1 :]:
            if what == "add":
                data[one] = f"no {one}"
            elif what == "remove":
                del data[one]
            else:
                data[other] = data.pop(one)
        return data

    def upcasters(self) -> dict[int, Any]:
        return {version: _upcaster(*change) for version, change in enumerate(self.steps, 1)}

    def declare(self, registry: Registry, is_split: bool) -> None:
        """Declare the type as it is today: a live one, or split by the truth of `kind`."""
        struct = msgspec.defstruct("Today", [(name, Any) for name in self.fields], frozen=True)
        facts: dict[str, Any] = {"schema_version": self.version, "upcast": self.upcasters()}
        facts["renamed_from"] = self.names[:-1]
        if not is_split:
            registry.register(struct, self.names[-1], **facts)
            return
        registry.split(_by_kind, self.names[-1], into=("left", "right"), **facts)
        registry.register(struct, "left")
        more = msgspec.defstruct("More", [*((name, Any) for name in self.fields), ("z", int)], frozen=True)
        registry.register(more, "right", schema_version=2, upcast={1: lambda old: {**old, "z": 7}})


def _upcaster(what: str, one: str, other: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def upcast(old: dict[str, Any]) -> dict[str, Any]:
        if what == "add":
            return {**old, one: f"no {one}"}
        value = old.pop(one)
        return old if what == "remove" else {**old, other: value}

    return upcast


def _by_kind(old: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return ("left" if old["kind"] else "right"), old


@given(changes=_changes, is_split=st.booleans(), is_file=st.sampled_from([False, False, True]), data=st.data())
@settings(max_examples=40, deadline=None)
async def test_events_of_any_day_are_read_alike_on_every_way_and_as_the_model_says(
    tmp_path_factory: pytest.TempPathFactory, changes: list[Change], is_split: bool, is_file: bool, data: st.DataObject
) -> None:
    history = History(changes)
    moments = data.draw(st.lists(st.sampled_from(history.moments), min_size=1, max_size=6))
    written = []
    for name, version, fields in moments:
        drawn = {field: data.draw(st.booleans() if field == "kind" else _values) for field in fields}
        written.append((name, version, drawn))
    registry = Registry()
    where: Any = tmp_path_factory.mktemp("log") / "log.db" if is_file else "memory:"
    async with eventlog.open(where, registry=registry) as log:
        new = [NewEvent(name, drawn, schema_version=version) for name, version, drawn in written]
        await log.append("a", new, expect=ANY)
        stored = [event.body async for event in log.read("a")]
        history.declare(registry, is_split)
        for events in await read_on_every_way(log, "a"):
            assert len(events) == len(written)
            for found, (name, version, drawn) in zip(events, written, strict=True):
                expected = history.today(version, drawn)
                type_name = history.names[-1]
                if is_split:
                    type_name = "left" if drawn["kind"] else "right"
                    expected |= {} if drawn["kind"] else {"z": 7}
                assert (found.type, found.stored_type or found.type, found.is_known) == (type_name, name, True)
                assert identical(msgspec.structs.asdict(found.data), expected, in_order=False)
        assert stored == [registry.encode(drawn, Limits()) for *_, drawn in written]
        assert stored == [event.body async for event in log.read("a")]
        for wanted in ("left", "right") if is_split else (history.names[-1],):
            given_out = [event.position async for event in log.read_all(types=[wanted])]
            assert given_out == [event.position async for event in log.read_all() if event.type == wanted]


# ── snapshots of runs ────────────────────────────────────────────────────────────────────────────────────────────────


class State(msgspec.Struct, omit_defaults=True):
    at: int
    name: str = ""
    parts: dict[str, Moved] = {}


CHANGED: dict[str, Any] = {
    "removed": [("name", str, ""), ("parts", dict[str, Moved], {})],
    "renamed": [("since", int), ("name", str, ""), ("parts", dict[str, Moved], {})],
    "added and required": [("at", int), ("by", str), ("name", str, ""), ("parts", dict[str, Moved], {})],
    "added with a default": [("at", int), ("name", str, ""), ("parts", dict[str, Moved], {}), ("more", int, 0)],
    "another default": [("at", int), ("name", str, "x"), ("parts", dict[str, Moved], {})],
    "another type": [("at", float), ("name", str, ""), ("parts", dict[str, Moved], {})],
    "another type inside": [("at", int), ("name", str, ""), ("parts", dict[str, Priced], {})],
    "another order": [("at", int), ("parts", dict[str, Moved], {}), ("name", str, "")],
}


@pytest.mark.parametrize("fields", CHANGED.values(), ids=CHANGED.keys())
def test_a_state_whose_fields_changed_has_another_shape(fields: Any) -> None:
    """Some of these would still be decoded, and be another state than the events add up to."""
    assert shape_of(msgspec.defstruct("State", fields, omit_defaults=True)) != shape_of(State)


def test_a_state_whose_fields_are_the_same_has_the_same_shape() -> None:
    same = msgspec.defstruct("State", [("at", int), ("name", str, ""), ("parts", dict[str, Moved], {})])
    assert shape_of(same) == shape_of(State)


@eventlog.workflow
async def many_steps(run: RunContext) -> Any:
    for number in range(60):
        await run.step("work", str, number, key=str(number))
    return await run.wait_for_signal("go")


@pytest.fixture
def other_shape(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Have this program write and use snapshots as a version does whose state has other fields, or no longer."""
    own = snapshots._own_shape

    def pretend(is_other: bool) -> None:
        monkeypatch.setattr(snapshots, "_own_shape", (lambda: "f" * 32) if is_other else own)

    return pretend


async def test_a_snapshot_of_another_shape_is_discarded_and_the_run_is_folded_from_its_events(
    log: RunLog, other_shape: Callable[[bool], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "eventlog")
    runner = Runner(log, workflows=[many_steps])
    other_shape(True)
    assert (await runner.start(many_steps, "run-1")).status == "WAITING"
    snapshot = await log.load_snapshot(run_stream("run-1"))
    assert isinstance(snapshot, Snapshot) and has_own_shape(snapshot.state)
    other_shape(False)
    assert not has_own_shape(snapshot.state)
    assert (await check_snapshots(log)).verdict == "ok", "it is not this version's to judge"
    whole = fold_stream("run-1", (await log.read_stream(run_stream("run-1"))).events)
    run = await RunStreams(log, pass_by).load("run-1")
    assert encode_snapshot(run) == encode_snapshot(whole)
    assert [record.getMessage() for record in caplog.records if "snapshot_discarded" in record.getMessage()]
    await runner.signal("run-1", "go", 3)
    outcome = await runner.resume("run-1")
    assert (outcome.status, outcome.value) == ("COMPLETED", 3)


# ── the command line ─────────────────────────────────────────────────────────────────────────────────────────────────


class UpcastingPlaced(msgspec.Struct, frozen=True):
    sku: str
    count: int


REGISTRY.register(
    UpcastingPlaced, "upcasting_placed", schema_version=2, upcast={1: _counted}, renamed_from=("upcasting_made",)
)


@pytest.fixture
def cli(tmp_path: Path) -> HereCommandLine:
    """The command line on a log that a program wrote for which the type had another name and shape at first."""

    async def write() -> None:
        async with eventlog.open(tmp_path / "old.db", registry=Registry()) as log:
            made = NewEvent("upcasting_made", {"sku": "a", "amount": 2})
            placed = NewEvent("upcasting_placed", {"sku": "b", "count": 3}, schema_version=2)
            await log.append("orders", [made, placed, NewEvent("noted", None)], expect=ANY)

    asyncio.run(write())
    return HereCommandLine(tmp_path, "--db", "old.db")


def test_the_command_line_shows_old_events_in_todays_shape_and_says_how_they_are_stored(cli: HereCommandLine) -> None:
    shown = cli("events", "show", "1", "--json", status=0).json
    assert (shown["type"], shown["schema_version"], shown["data"]) == ("upcasting_placed", 2, {"sku": "a", "count": 2})
    assert (shown["stored_type"], shown["stored_schema_version"]) == ("upcasting_made", 1)
    shown = cli("events", "show", "2", "--json", status=0).json
    assert (shown["type"], shown["schema_version"], shown["data"]) == ("upcasting_placed", 2, {"sku": "b", "count": 3})
    assert not {"stored_type", "stored_schema_version"} & shown.keys()


def test_raw_shows_the_stored_bytes_and_the_stored_type(cli: HereCommandLine) -> None:
    raw = cli("events", "show", "1", "--raw", status=0)
    assert (raw.out, raw.err) == (b'{"sku":"a","amount":2}', b"Stored as upcasting_made, schema version 1.\n")


@pytest.mark.parametrize(
    ("pattern", "positions"), [("upcasting_placed", [1, 2]), ("*_made", [1]), ("upcasting_*", [1, 2]), ("noted", [3])]
)
def test_tail_finds_events_by_todays_name_and_by_the_stored_one(
    cli: HereCommandLine, pattern: str, positions: list[int]
) -> None:
    found = cli("tail", "--type", pattern, "--json", status=0).json["events"]
    assert [each["position"] for each in found] == positions


def test_the_command_line_writes_no_old_shape(cli: HereCommandLine) -> None:
    for line, code in (
        (b'{"type": "upcasting_made", "data": {}}', "event_type_former"),
        (b'{"type": "upcasting_placed", "data": {}}', "schema_version_old"),
    ):
        refused = cli("events", "append", "orders", "--expect", "any", "--from", "-", "--json", stdin=line)
        assert refused.status != 0 and refused.json["error"] == code


# ── what programs are told ───────────────────────────────────────────────────────────────────────────────────────────


def facts_of(error: InvalidInput) -> dict[str, Any]:
    """Return what an error tells beside its path, which is that of the whole."""
    assert error.path == "$"
    return {name: value for name, value in error.details.items() if name != "path"}


@pytest.mark.parametrize(
    ("name", "facts", "message"),
    [
        ("made", {"type": "made", "now": ["placed"]}, "the event type 'made' was renamed placed"),
        (
            "changed",
            {"type": "changed", "now": ["moved", "priced"]},
            "the event type 'changed' was split into moved, priced",
        ),
        ("flagged", {"type": "flagged", "now": []}, "the event type 'flagged' was retired"),
    ],
)
def test_who_writes_a_former_type_is_told_what_became_of_it(name: str, facts: dict[str, Any], message: str) -> None:
    for ask in (known().current_version, lambda each: known().check_writable(each, 1)):
        with pytest.raises(InvalidInput) as caught:
            ask(name)
        assert (caught.value.code, str(caught.value)) == ("event_type_former", message)
        assert facts_of(caught.value) == facts


def test_plain_data_is_written_in_todays_shape_or_a_newer_one_and_in_no_older() -> None:
    registry = known()
    registry.check_writable("placed", 2)
    registry.check_writable("placed", 3)
    registry.check_writable("unknown", 1)
    with pytest.raises(InvalidInput) as caught:
        registry.check_writable("placed", 1)
    assert caught.value.code == "schema_version_old"
    assert facts_of(caught.value) == {"type": "placed", "found": 1, "known": 2}
    assert [registry.current_version(name) for name in ("placed", "moved")] == [2, 1]
    with pytest.raises(InvalidInput) as caught:
        registry.current_version("unknown")
    assert caught.value.code == "unsupported_type"


def test_a_conflict_names_the_type_that_was_declared() -> None:
    for contradict in (CONTRADICTIONS["another class"], CONTRADICTIONS["a live type retired"]):
        with pytest.raises(InvalidInput, match="'moved' belongs to Moved of schema version 1") as caught:
            contradict(known())
        assert facts_of(caught.value) == {"type": "moved"}
    for name, declared in (
        ("renamed from a live type", "moved"),
        ("renamed in a circle", "made"),
        ("split into itself", "x"),
        ("split into a version that is not there yet", "x"),
        ("a target whose version is too low", "ahead"),
    ):
        with pytest.raises(InvalidInput) as caught:
            CONTRADICTIONS[name](known())
        assert facts_of(caught.value) == {"type": declared}, name


def test_where_an_unreadable_event_stands_is_said_where_it_is_known() -> None:
    with pytest.raises(InvalidInput) as caught:
        known().read("placed", 2, b"[]")
    assert facts_of(caught.value) == {"type": "placed", "schema_version": 2}
    with pytest.raises(InvalidInput, match=r"^position 7 of stream 'a': a stored 'changed' of schema") as caught:
        known().read("changed", 1, b'{"price":"no"}', position=7, stream="a")
    assert facts_of(caught.value) == {
        "type": "changed",
        "schema_version": 1,
        "position": 7,
        "stream": "a",
    }
    with pytest.raises(InvalidInput) as caught:
        known().read("changed", 1, b"{}", position=7, stream="a")
    assert caught.value.details["step"] == "the split of 'changed'"


def test_the_step_that_went_wrong_is_named() -> None:
    registry = Registry()
    registry.split(lambda old: (old["to"], old), "changed", into=("moved",))
    for body in (b'{"to":"elsewhere"}', b'{"to":"moved"}', b'{"to":7}'):
        with pytest.raises(InvalidInput) as caught:
            registry.read("changed", 1, body)
        assert caught.value.details["step"] == "the split of 'changed'", body
    with pytest.raises(InvalidInput, match="it holds a list, and an upcaster takes a mapping"):
        known().read("placed", 1, b"[]")


def test_a_schema_version_is_a_whole_number_from_1_to_65535() -> None:
    registry = Registry()
    registry.split(_decide, "changed", into={"moved": 65_535})
    wrong: list[Any] = [0, -1, 65_536, True, 1.0, "1", None]
    for version in wrong:
        with pytest.raises(InvalidInput) as caught:
            registry.split(_decide, "other", into={"moved": version})
        assert caught.value.code == "invalid_argument"
        with pytest.raises(InvalidInput) as caught:
            registry.register(Listed, "other", schema_version=version)
        assert caught.value.code == "invalid_argument"


def test_a_type_is_known_by_its_struct_with_the_version_that_it_is_written_in() -> None:
    registry = known()
    assert [registry.type_of(cls) for cls in (Placed, Moved)] == [("placed", 2), ("moved", 1)]
    assert {Placed, Moved, Priced} <= registry.classes()
    with pytest.raises(InvalidInput, match="Listed is not registered") as caught:
        registry.type_of(Listed)
    assert caught.value.code == "unsupported_type"
    assert registry.knows("placed", 1) and registry.knows("flagged", 9) and registry.knows("altered", 1)
    assert not registry.knows("placed", 3) and not registry.knows("unknown", 1)


def test_a_decorator_declares_in_the_registry_that_it_is_given() -> None:
    registry = Registry()
    options: dict[str, Any] = {"schema_version": 2, "upcast": {1: _same}, "registry": registry}
    assert event("listed", renamed_from=("noted",), **(options | {"upcast": {1: _counted}}))(Placed) is Placed
    assert registry.read("noted", 1, b'{"sku":"a","amount":1}') == ("listed", "noted", Placed("a", 1), True)
    assert split("changed", into=("listed",), renamed_from=("altered",), **options)(_decide) is _decide
    assert registry.known_version("altered") == 2
    retire("flagged", "marked", registry=registry)
    assert registry.reading("flagged", 1).is_retired and registry.reading("marked", 1).is_retired
    assert not REGISTRY.is_known("listed") and not REGISTRY.is_known("flagged")

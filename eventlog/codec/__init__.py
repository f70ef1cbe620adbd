"""Events to bytes and back; the one place where old shapes and old names become today's.

An event is encoded once, as JSON; those bytes are stored, hashed and verified, and never made again. Reading takes the
registered Struct of the type, or plain data where the type (or a newer schema version of it) is not known here.

Old events are brought up to date whenever they are read, on every path, by pure functions on plain data:

* `@event(…, schema_version=3, upcast={1: one_to_two, 2: two_to_three})`: one function for each earlier version;
* `@event(…, renamed_from=("old_name",))`: the type had another name once; its versions are one series across that;
* `split("old_name", into=…)`: what was one type is several now, and each event's content says which it is;
* `retire("old_name")`: the type means nothing any more; its events are read as `eventlog.log.Retired`.

The other way does not exist: what is written has a current name and the current schema version.
"""

from eventlog.codec.declarations import REGISTRY, event, retire, split
from eventlog.codec.names import MAX_SCHEMA_VERSION, MAX_TYPE_BYTES
from eventlog.codec.readings import UNREADABLE, Decoded, Reading, unreadable
from eventlog.codec.registry import Registry
from eventlog.codec.unknown import unknown_type
from eventlog.codec.upcasting import Split, Upcast

__all__ = [
    "MAX_SCHEMA_VERSION",
    "MAX_TYPE_BYTES",
    "REGISTRY",
    "UNREADABLE",
    "Decoded",
    "Reading",
    "Registry",
    "Split",
    "Upcast",
    "event",
    "retire",
    "split",
    "unknown_type",
    "unreadable",
]

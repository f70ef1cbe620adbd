"""Events of a log as other programs read them: what is given out, and how each format spells it.

`selection` says which events, `exported_event` what is told of one, and a file a format how it is spelled; its opening
docstring is the specification of the format. Nothing here opens a file: a spelling takes events and gives bytes.
"""

from eventlog.audit.export.exported_event import ExportedEvent, exported
from eventlog.audit.export.selection import Selection, selected
from eventlog.audit.export.spelling import BINARY, SPELLINGS, Spelling, spelling

__all__ = ["BINARY", "SPELLINGS", "ExportedEvent", "Selection", "Spelling", "exported", "selected", "spelling"]

"""A run as a picture, spelled as text that Mermaid or Graphviz draws. Pure.

    moments    what each event shows: who did something to whom, in a few words
    mermaid    a sequence diagram
    dot        a flow of events, with the runs that hang on this one

Whatever an id, a name or a text of the log holds is a part of a label: it begins no statement, ends no string, and is
no markup.
"""

from eventlog.audit.diagrams.dot import dot_diagram
from eventlog.audit.diagrams.mermaid import mermaid_diagram
from eventlog.audit.diagrams.moments import Moment, Part, moments_of

__all__ = ["Moment", "Part", "dot_diagram", "mermaid_diagram", "moments_of"]

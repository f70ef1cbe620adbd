"""Subscriptions: events from a position on, then new ones, for ever; thousands of them share one reader of the end.

Whoever subscribes reads pages by a cursor of his own until one is not full (`follow`); then he is at the end, and joins
the log's one `Tail`, which reads each new page once and hands its events to those who want them. What links the two is
a position, exclusive: whatever happens, a subscriber goes on reading behind the last position that he was given. A
wake-up says that there may be something, never what.

    tail          the one reader, and when it reads
    routes        who wants an event: a look-up, not a question to each
    subscriber    the bounded window between the tail and one subscriber
    progress      when those are told of the cursor who get no events
    pages         what is read at once, and what a store has to offer
"""

from __future__ import annotations

from eventlog.stores.subscription.follow import follow
from eventlog.stores.subscription.pages import Page, Source, TailPage, Unreadable
from eventlog.stores.subscription.tail import Tail

__all__ = ["Page", "Source", "Tail", "TailPage", "Unreadable", "follow"]

"""The story of a run as one HTML file that can be read offline, for ever: no script, nothing from outside. Pure.

page        the page and its sections
decisions   what was asked for, who decided, what was refused
effects     what was done
parts       cards, facts, links to events
safe        the one way to make markup: a text is data, and is escaped
style       light and dark, narrow and wide, on paper
subject     what a report is made of
"""

from eventlog.audit.report.page import run_report
from eventlog.audit.report.subject import Subject

__all__ = ["Subject", "run_report"]

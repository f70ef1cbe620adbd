"""Proving the log: that what it holds is what was appended."""

from eventlog.audit.verify import Finding, Verdicts, ViewsCheck, verify

__all__ = ["Finding", "Verdicts", "ViewsCheck", "verify"]

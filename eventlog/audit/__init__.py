"""Proving the log: that what it holds is what was appended."""

from eventlog.audit.verify import Finding, OutsideHead, Trust, Verdicts, ViewsCheck, verify

__all__ = ["Finding", "OutsideHead", "Trust", "Verdicts", "ViewsCheck", "verify"]

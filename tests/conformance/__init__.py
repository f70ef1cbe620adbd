"""Suites that other projects wrote for their own event stores, run against this log through thin adapters.

`suites.py` says which, `not_applicable.py` which of their cases cannot apply and why, `summary.py` prints what passed.
"""

"""The tests: sentences about behaviour, on real files and real processes."""

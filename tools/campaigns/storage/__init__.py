"""Storage that fails: calls that the system refuses, small disks, and programs that run on them and are audited."""

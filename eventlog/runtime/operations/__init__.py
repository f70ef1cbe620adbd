"""What a workflow can ask its run for: a step, an effect, a signal, a time, another run.

Each is a coroutine that answers from the log what the log knows, does what it does not know, and records what that
came to before anyone sees it.
"""

__all__: list[str] = []

"""The actions that ship with the engine, one a file."""

__all__: list[str] = []

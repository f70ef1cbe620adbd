"""What drives runs: the runner, the claims of resumers, effects and their actions, and the failpoints between them."""

__all__: list[str] = []

"""What drives runs: the runner, drives of workflows and their claims, effects and actions, the failpoints between."""

__all__: list[str] = []

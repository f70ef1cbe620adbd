"""The action that sends one HTTP request: `action` sends it, `answer` says what comes of it, `urls` where it may go."""

from eventlog.runtime.actions.http_request.action import HttpRequest

__all__ = ["HttpRequest"]

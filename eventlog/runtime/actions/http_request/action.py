"""The action that sends one HTTP request to a receiver which does nothing twice for one `Idempotency-Key`.

    1  everything that can be refused is refused before any byte is sent: arguments, URL, secrets, size
    2  connect; until here every error is `ActionFailed`, unless an earlier attempt may have sent the request
    3  send the request, with the op_key as `Idempotency-Key`                                            <- the effect
    4  read the answer; its status decides (`answer`), whatever becomes of its body

From step 3 on, no answer means: it may have happened. The next attempt sends the same bytes with the same key, and the
receiver answers what it answered first. It may do so for `key_lifetime_s` seconds after the first intent. What could
arrive later than that is not sent by itself any more, and a person reconciles.

One request is one connection: no reuse, no automatic repetition, no cookies, no proxy and no password from the
environment. Needs the extra `http` (httpx).
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import ssl
import zlib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast
from urllib.parse import urljoin

from eventlog.errors import ActionFailed, InvalidInput, Misuse
from eventlog.plain import Limits, check_id, is_utf8
from eventlog.proposal import canonical_bytes
from eventlog.runtime.actions.http_request.answer import Answer, Lost, Unproved, reported
from eventlog.runtime.actions.http_request.urls import Url, is_allowed, parse_url
from eventlog.runtime.actions.secrets import Revealed, Secrets
from eventlog.runtime.effects import Call, Promise, Report
from eventlog.runtime.failpoints import EFFECT_INSIDE, Reach

if TYPE_CHECKING:
    import httpx

__all__ = ["HttpRequest"]

_MIB: Final = 1024 * 1024
_METHODS: Final = ("POST", "PUT", "PATCH", "DELETE")
_ARGUMENTS: Final = frozenset({"method", "headers", "json", "text"})
_MAX_REDIRECTS: Final = 5
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 5.0


class HttpRequest:
    """Send one request to the URL that is the output, and store the answer.

    The arguments are `{"method": "POST", "headers": {name: text}, "json": …}`, all of them optional; `"text"` instead
    of `"json"` sends text as it is. The method is POST, PUT, PATCH or DELETE. JSON is sent as its RFC 8785 bytes. A
    header's value, and any value in the JSON, may be a `secret_ref`. The result is

        {"status", "headers", "body", "body_sha256", "body_bytes", "is_cut"}

    with a few of the headers, the body as text (null if it is none), and the digest and size of the body as it is kept:
    decoded, without secrets, and cut at `max_response_bytes`.

    `key_lifetime_s` is how long the receiver remembers a key, `timeout_s` is for one exchange, answer included. A call
    lasts `timeout_s` + `in_flight_wait_s` at most; that is to be shorter than half of the runner's lease, and none is
    made again when no more than that is left of the key. A key that does not outlast one call is refused.
    `in_flight_wait_s` is for how long a request that the receiver is still working at (409) is asked after.

    `allows` are the origins, or URLs, at or below which a target must lie; None is any. `secrets` are the values that
    references may name, by a mapping or a function; they need `allows`, so that no proposal can send them elsewhere.
    The value of a secret appears in no event, error or log line. One that stands in the JSON must not change between
    two attempts: the receiver would see another payload.

    `follows_redirects` follows 307 and 308, with the same method and body, to the same origin or, where there is a
    list, to what `allows` names; a request with a secret never goes to another origin. `compensation` is the name of
    the action that undoes this one. `ssl_context` is for receivers with a certificate of their own.

    Raises InvalidInput(`invalid_argument`), and Misuse(`missing_extra`) without the extra `http`.
    """

    promise: Final = Promise.KEYED

    def __init__(
        self,
        *,
        key_lifetime_s: float,
        allows: Sequence[str] | None,
        name: str = "http_request",
        secrets: Secrets | None = None,
        timeout_s: float = 30.0,
        in_flight_wait_s: float = 30.0,
        max_request_bytes: int = _MIB,
        max_response_bytes: int = _MIB,
        follows_redirects: bool = False,
        compensation: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        if secrets is not None and allows is None:
            message = "secrets are sent only to what `allows` names; without it a proposal could send them anywhere"
            raise InvalidInput("invalid_argument", message)
        self.name: Final = check_id(name, "action", max_bytes=128)
        self.key_lifetime_s: Final = _number("key_lifetime_s", key_lifetime_s)
        self.compensation: Final = compensation
        self._allows: Final = None if allows is None else _allowed_urls(allows)
        self._secrets: Final = secrets
        self._timeout_s: Final = _number("timeout_s", timeout_s)
        self._in_flight_wait_s: Final = _number("in_flight_wait_s", in_flight_wait_s, may_be_zero=True)
        self.request_life_s: Final = self._timeout_s + self._in_flight_wait_s
        if self.key_lifetime_s <= self.request_life_s:
            message = (
                f"the receiver forgets a key after {key_lifetime_s:g} s, and a call may last {self.request_life_s:g} s "
                "(timeout_s + in_flight_wait_s): none could ever be made again. Give it shorter time-outs"
            )
            raise InvalidInput("invalid_argument", message)
        self._max_request_bytes: Final = _number("max_request_bytes", max_request_bytes, may_be_zero=True)
        self._max_response_bytes: Final = int(_number("max_response_bytes", max_response_bytes, may_be_zero=True))
        self._follows_redirects: Final = follows_redirects
        _require_httpx()
        self._ssl_context = ssl_context

    @property
    def definition(self) -> dict[str, Any]:
        """Where it may send to."""
        allows = None if self._allows is None else [url.text for url in self._allows]
        return {"allows": allows, "follows_redirects": self._follows_redirects}

    def check(self, call: Call) -> None:
        """Refuse what must not be sent, or could not be: arguments, a URL that is not allowed, an unknown secret."""
        self._prepared(call)

    async def execute(self, call: Call) -> Report:
        """Send the request, or find that it was received before.

        If cancelled, the connection is closed and CancelledError goes on: the effect may have happened.
        """
        # The secrets live in frames that have ended when this raises: its traceback does not hold them.
        return reported(call, await self._converse(call))

    # ── the conversation: one request, asked again while it is in flight, and followed where that is allowed ─────────

    async def _converse(self, call: Call) -> Answer | Lost:
        request = self._prepared_again(call)
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + self._in_flight_wait_s
        deadline_s = until_s + self._timeout_s
        pause_s, redirects, was_in_flight = _FIRST_PAUSE_S, 0, False
        while True:
            within_s = min(self._timeout_s, deadline_s - now_s())
            end = replace(await self._exchange(request, within_s, call.reach), was_in_flight=was_in_flight)
            if isinstance(end, Lost):
                return end
            if end.status == 409:
                was_in_flight = True
                # A receiver that wants more time than there is left is not asked sooner than it said.
                wait_s = max(end.retry_after_s or 0.0, pause_s)
                if now_s() + wait_s > until_s:
                    return end
                await asyncio.sleep(wait_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            url = self._redirected(request, end)
            if url is None or redirects == _MAX_REDIRECTS:
                return end
            request, redirects = replace(request, url=url), redirects + 1

    def _prepared_again(self, call: Call) -> _Request:
        """A refusal of a later attempt says nothing of an earlier one, which may have known the secret."""
        try:
            return self._prepared(call)
        except ActionFailed as error:
            if call.is_alone:
                raise
            why = str(error)
        raise Unproved(why)

    def _redirected(self, request: _Request, answer: Answer) -> Url | None:
        """Return where the request is to be made instead, if it may go there."""
        if not self._follows_redirects or answer.status not in (307, 308) or answer.location is None:
            return None
        try:
            url = parse_url(urljoin(request.url.text, answer.location))
            _require_same_reading(url)
        except ValueError:
            return None
        is_elsewhere = url.origin != request.url.origin
        if is_elsewhere and (self._allows is None or request.is_confidential):
            return None
        return url if self._allows is None or is_allowed(url, self._allows) else None

    # ── one exchange ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _exchange(self, request: _Request, within_s: float, reach: Reach) -> Answer | Lost:
        """Send the request once, and return what came back. Only cancellation goes on from here."""
        progress = _Progress(reach)
        try:
            with _no_debug_log():
                async with asyncio.timeout(within_s):
                    await self._send_and_read(request, progress)
        except TimeoutError:
            why = f"no {'answer' if progress.was_sent else 'connection'} in {within_s:.3g} s"
        except Exception as error:
            why = request.revealed.take_out_of_text(f"{type(error).__name__}: {error}")
        else:
            progress.is_whole = True
            why = "the receiver closed the connection"
        if progress.response is None:
            return Lost(why=why, was_sent=progress.was_sent)
        return _answer(request.revealed, progress, progress.response)

    def _tls(self, url: Url) -> ssl.SSLContext:
        """Return the TLS settings of a request. Reading the authorities' certificates takes long: only when needed."""
        if self._ssl_context is None:
            import httpx

            if url.scheme != "https":
                return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # it trusts nobody, and is not asked
            self._ssl_context = httpx.create_ssl_context(trust_env=False)
        return self._ssl_context

    async def _send_and_read(self, request: _Request, progress: _Progress) -> None:
        import httpx

        message = httpx.Request(
            request.method,
            request.url.text,
            headers=list(request.headers),
            content=request.body,
            extensions={"timeout": httpx.Timeout(None).as_dict(), "trace": progress.trace},
        )
        # A transport and no client: it knows no cookies, no redirects, no environment, and sends the request once.
        async with httpx.AsyncHTTPTransport(
            verify=self._tls(request.url), trust_env=False, http2=False, retries=0
        ) as http:
            response = await http.handle_async_request(message)
            try:
                progress.response = response
                await self._read(response, progress)
            finally:
                await response.aclose()

    async def _read(self, response: httpx.Response, progress: _Progress) -> None:
        """Read the body up to the limit, decoded; no compression can make it larger than that in memory."""
        limit, received = self._max_response_bytes, 0
        inflate = _decoder(response.headers.get("content-encoding", ""))
        async with aclosing(cast(AsyncGenerator[bytes, None], response.aiter_raw())) as chunks:
            async for chunk in chunks:
                received += len(chunk)
                room = limit - len(progress.body)
                progress.body += chunk if inflate is None else inflate.decompress(chunk, room + 1)
                if len(progress.body) > limit or received > limit:
                    break
        if len(progress.body) > limit or received > limit or (inflate is not None and received and not inflate.eof):
            progress.is_cut = True
            del progress.body[limit:]

    # ── what is sent ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _prepared(self, call: Call) -> _Request:
        """Return the request of this call. Raises ActionFailed."""
        args = call.args
        if not isinstance(args, dict) or not args.keys() <= _ARGUMENTS or {"json", "text"} <= args.keys():
            _refuse(f"{call.action} takes method, headers, and json or text")
        method = args.get("method", "POST")
        if method not in _METHODS:
            _refuse(f"the method is one of {', '.join(_METHODS)}, not {method!r:.40}")
        url = self._url(call.output)
        revealed = Revealed(self._secrets)
        body, content_type = self._body(args, revealed)
        headers = _headers(args.get("headers", {}), revealed)
        names = {name for name, _ in headers}
        if content_type is not None and "content-type" not in names:
            headers.append(("content-type", content_type))
        if "user-agent" not in names:
            headers.append(("user-agent", "eventlog-engine"))
        headers += [
            ("idempotency-key", call.op_key),
            ("accept-encoding", "identity"),
            ("connection", "close"),
            ("content-length", str(len(body))),
        ]
        return _Request(
            method=method,
            url=url,
            headers=tuple((name.encode(), value.encode()) for name, value in headers),
            body=body,
            revealed=revealed,
            is_confidential=not revealed.is_empty or not names.isdisjoint(_CREDENTIALS),
        )

    def _url(self, text: str) -> Url:
        try:
            url = parse_url(text)
            _require_same_reading(url)
        except ValueError as error:
            raise ActionFailed("url_not_allowed", f"{text!r:.200} is not allowed: {error}", url=text) from error
        if self._allows is not None and not is_allowed(url, self._allows):
            raise ActionFailed("url_not_allowed", f"{text!r:.200} lies below no URL that is allowed", url=text)
        return url

    def _body(self, args: dict[str, Any], revealed: Revealed) -> tuple[bytes, str | None]:
        """Return the body and its type; None if there is no body."""
        if "json" in args:
            body, content_type = _json_bytes(revealed.put_in(args["json"])), "application/json"
        elif "text" in args:
            text = args["text"]
            if not isinstance(text, str) or not is_utf8(text):
                _refuse("the text is no text that UTF-8 can hold")
            body, content_type = text.encode(), "text/plain; charset=utf-8"
        else:
            return b"", None
        if len(body) > self._max_request_bytes:
            _refuse(f"the body has {len(body)} bytes, {self._max_request_bytes} are allowed")
        return body, content_type


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Request:
    """What is sent, the same at every attempt. `is_confidential`: it must not go to another origin."""

    method: str
    url: Url
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    revealed: Revealed
    is_confidential: bool


class _Progress:
    """How far an exchange has come."""

    def __init__(self, reach: Reach) -> None:
        self._reach: Final = reach
        self._last = ""
        self.response: httpx.Response | None = None
        self.body = bytearray()
        self.is_cut = False
        self.is_whole = False

    @property
    def was_sent(self) -> bool:
        """Whether some of the request may have left. Only what is still connecting is certain to have sent nothing."""
        return not self._last.startswith("connection.")

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Hear from the library what it does next."""
        self._last = event
        if event == "http11.send_request_body.complete":
            self._reach(EFFECT_INSIDE)


def _answer(revealed: Revealed, progress: _Progress, response: httpx.Response) -> Answer:
    """Return the answer without secrets. A body that broke off is cut: the status has said what was done."""
    is_cut = progress.is_cut or not progress.is_whole
    raw = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers.raw}
    headers = {name: revealed.take_out_of_text(raw[name])[:_MAX_HEADER] for name in _KEPT_HEADERS if name in raw}
    location = raw.get("location")
    is_encoded = raw.get("content-encoding", "identity").strip().lower() not in ("identity", "", *_ZLIB)
    return Answer(
        status=response.status_code,
        headers=headers,
        body=revealed.take_out(bytes(progress.body), is_cut=is_cut),
        charset=None if is_encoded else response.charset_encoding or "utf-8",
        is_cut=is_cut,
        is_replay=any(raw.get(name, "").strip().lower() == "true" for name in _REPLAY_HEADERS),
        # One that holds a secret leads nowhere: it would be sent in a URL.
        location=location if location == headers.get("location") else None,
        retry_after_s=_retry_after_s(raw.get("retry-after", ""), raw.get("date", "")),
    )


_KEPT_HEADERS: Final[tuple[str, ...]] = (
    "content-type",
    "etag",
    "idempotency-replayed",
    "idempotent-replayed",
    "last-modified",
    "location",
    "request-id",
    "retry-after",
    "x-request-id",
)
_REPLAY_HEADERS: Final[tuple[str, ...]] = ("idempotency-replayed", "idempotent-replayed")
_MAX_HEADER: Final = 1024
_ZLIB: Final = ("gzip", "x-gzip", "deflate")


def _decoder(encoding: str) -> zlib._Decompress | None:
    """Return what inflates an encoding that was not asked for, None for one that is kept as it is."""
    return zlib.decompressobj(32 + zlib.MAX_WBITS) if encoding.strip().lower() in _ZLIB else None


def _retry_after_s(value: str, date: str) -> float | None:
    """Return the seconds that the receiver asks to wait. Its date is compared with its own clock, not with ours."""
    if re.fullmatch(r"[0-9]{1,9}", value.strip()):
        return float(value)
    try:
        return (parsedate_to_datetime(value) - parsedate_to_datetime(date)).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return None


# ── headers, body and URL ─────────────────────────────────────────────────────────────────────────────────────────────

_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_VALUE: Final = re.compile(r"(?:[!-~](?:[ \t!-~]*[!-~])?)?")
_CREDENTIALS: Final = frozenset({"authorization", "cookie"})
_OURS: Final = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "idempotency-key",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that belong to the connection, to its host or to the op_key."""


def _headers(given: object, revealed: Revealed) -> list[tuple[str, str]]:
    """Return the headers with small names, in the order of their names."""
    if not isinstance(given, dict):
        _refuse("the headers are names and their values")
    headers: dict[str, str] = {}
    for name, value in given.items():
        small = name.lower()
        if not _TOKEN.fullmatch(name):
            _refuse(f"{name!r:.80} is no name of a header")
        if small in _OURS or small in headers:
            _refuse(f"the header {name!r} is not given by hand, or is given twice")
        text = revealed.put_in(value)
        if not isinstance(text, str) or not _VALUE.fullmatch(text):
            # Not shown: it may be a secret, with a newline at its end for example.
            _refuse(f"the value of the header {name!r} is no visible ASCII text")
        headers[small] = text
    return sorted(headers.items())


def _json_bytes(value: Any) -> bytes:
    try:
        return canonical_bytes(value, limits=Limits())
    except InvalidInput as error:
        why = error.code
    _refuse(f"the json has no exact canonical form ({why})")


def _require_same_reading(url: Url) -> None:
    """Raise ValueError if the client would connect to something else than what was compared with the list."""
    import httpx

    try:
        read = httpx.URL(url.text)
        host, port = read.raw_host.decode("ascii").strip("[]").lower(), read.port  # addresses it leaves as they are
    except (httpx.InvalidURL, UnicodeDecodeError) as error:
        raise ValueError("the HTTP client does not take it") from error
    if (read.scheme, host, port or url.port) != (url.scheme, url.host.strip("[]"), url.port):
        raise ValueError("the HTTP client reads it in another way")


def _allowed_urls(allows: Sequence[str]) -> tuple[Url, ...]:
    if isinstance(allows, str):
        raise InvalidInput("invalid_argument", "`allows` is a list of URLs, not one text")
    return tuple(map(_allowed_url, allows))


def _allowed_url(text: str) -> Url:
    try:
        url = parse_url(text)
    except ValueError as error:
        raise InvalidInput("invalid_argument", f"{text!r:.200} in `allows` is no origin or URL: {error}") from error
    if "?" in text:
        raise InvalidInput("invalid_argument", f"{text!r:.200} in `allows` holds a query")
    return url


def _number(name: str, value: Any, *, may_be_zero: bool = False) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 <= value < math.inf and (value > 0 or may_be_zero):
        number: float = value
        return number
    raise InvalidInput("invalid_argument", f"{name} is a positive number, not {value!r:.40}")


def _refuse(why: str) -> NoReturn:
    raise ActionFailed("invalid_arguments", why)


# ── the library ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _require_httpx() -> None:
    """Say at once if the library is not installed, and keep it from printing what is sent and answered."""
    try:
        import httpx  # noqa: F401
    except ImportError as error:
        message = "HttpRequest needs the extra `http`: install `eventlog-engine[http]`"
        raise Misuse("missing_extra", message) from error
    for name in ("httpcore.connection", "httpcore.http11"):
        logging.getLogger(name).addFilter(_keep_quiet)  # the same function again changes nothing


_IS_OURS: Final = ContextVar("_IS_OURS", default=False)


def _keep_quiet(record: logging.LogRecord) -> bool:
    """Drop the library's debug lines about our own requests: they show the headers that a receiver sends back."""
    return not _IS_OURS.get()


@contextmanager
def _no_debug_log() -> Iterator[None]:
    token = _IS_OURS.set(True)
    try:
        yield
    finally:
        _IS_OURS.reset(token)

"""Who may read the pages that this process serves: what a request has goes in, a verdict comes out.

Every user of this host can connect to a port of it, and a page of any site can make a browser on it send requests: with
a name of that site that resolves to this host, the browser even lets the page read the answers.
"""

import enum
import hashlib
import hmac
import ipaddress
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass

# The name of the token in an address.
QUERY = "token"

_LOCAL = ("localhost", "ip6-localhost")


class Verdict(enum.Enum):
    """What becomes of a request."""

    ALLOWED = "allowed"
    ENTERS = "allowed, and the token in its address is to be kept in a cookie"
    UNKNOWN_HOST = "it names a host that this is not"
    OTHER_SITE = "it comes from a page of another site"
    NO_TOKEN = "it has no token"


@dataclass(frozen=True)
class Request:
    """What a request has that decides about it; empty where it has nothing."""

    host: str = ""
    origin: str = ""
    token: str = ""  # in its address
    cookies: Mapping[str, str] | None = None
    authorization: str = ""
    is_navigation: bool = False  # a user opened the address in a browser


@dataclass(frozen=True)
class Access:
    """Who may read the pages: anyone with the token; if there is none, anyone who can reach them by a known name."""

    token: str = ""  # empty: none is needed
    names: frozenset[str] = frozenset()  # of this host; its addresses need not be known
    is_local: bool = True  # only this host can reach the pages

    @property
    def cookie(self) -> str:
        """Returns the name of the cookie: a browser sends the cookies of a host to all of its ports."""
        return f"guild-dask-{hashlib.sha256(self.token.encode()).hexdigest()[:12]}"

    def link(self, address: str) -> str:
        """Returns the address with the token."""
        if not self.token:
            return address
        before, hash_sign, after = address.partition("#")
        return f"{before}{'&' if '?' in before else '?'}{QUERY}={self.token}{hash_sign}{after}"

    def verdict(self, request: Request) -> Verdict:
        """Returns what becomes of a request."""
        is_entitled = not self.token or self._has_token(request)
        # Names in front of a host that others can reach are not known here; those who know the token know the host.
        is_named = self._is_named(request.host) or (is_entitled and bool(self.token) and not self.is_local)
        if not is_named:
            return Verdict.UNKNOWN_HOST
        if request.origin and not self._is_same_site(request):
            return Verdict.OTHER_SITE
        if not is_entitled:
            return Verdict.NO_TOKEN
        enters = self.token and request.is_navigation and _is_same(request.token, self.token)
        return Verdict.ENTERS if enters else Verdict.ALLOWED

    def _has_token(self, request: Request) -> bool:
        kind, _, authorization = request.authorization.partition(" ")
        given = (
            request.token,
            (request.cookies or {}).get(self.cookie, ""),
            authorization.strip() if kind.lower() in ("token", "bearer") else "",
        )
        return any(_is_same(each, self.token) for each in given)

    def _is_named(self, host: str) -> bool:
        name = _name_in(f"//{host}")
        return _is_address(name) or name in _LOCAL or name.endswith(".localhost") or name in self.names

    def _is_same_site(self, request: Request) -> bool:
        netloc = request.origin.partition("://")[2].lower()
        return netloc == request.host.lower() or _name_in(request.origin) in self.names


def _is_same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def _name_in(url: str) -> str:
    try:
        return (urllib.parse.urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

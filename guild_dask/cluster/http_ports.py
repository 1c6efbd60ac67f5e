"""Dask servers and workers that open no HTTP port but a dashboard's, and only for those who may read it."""

import urllib.parse
from typing import Any

from tornado import httputil, web
from tornado.httpserver import HTTPServer

from guild_dask.host import http_connections
from guild_dask.host.http_access import QUERY, Access, Request, Verdict

_TEXTS = {
    Verdict.UNKNOWN_HOST: "This page is served under the names of its own host only.",
    Verdict.OTHER_SITE: "This page answers no other site.",
    Verdict.NO_TOKEN: "This page needs the token in the address that the log of the scheduler prints (Page of runs). "
    "'guild-dask status' prints it, too.",
}


class NoPortWithoutDashboard:
    """A Dask server that opens an HTTP port only for a dashboard. Dask's own open one in any case."""

    http_application: Any
    http_server: Any

    def __init__(self, *args: Any, access: Access | None = None, **kwargs: Any) -> None:
        self._access = access  # who may read the dashboard; None: anyone who can reach it
        super().__init__(*args, **kwargs)

    def start_http_server(self, routes: Any, dashboard_address: Any, **kwargs: Any) -> None:
        if dashboard_address is not None:
            super().start_http_server(routes, dashboard_address, **kwargs)  # type: ignore[misc]
            http_connections.limit(self.http_server)
            if self._access:
                guard(self.http_application, self._access)  # before the event loop can see a request
            return
        from distributed.http.routing import RoutingApplication

        self.http_application = RoutingApplication(routes)
        self.http_server = HTTPServer(self.http_application)


def guard(application: web.Application, access: Access) -> None:
    """Lets an application answer only those who may read it, whatever handlers it has."""
    find = application.find_handler

    def find_if_allowed(request: httputil.HTTPServerRequest, **kwargs: Any) -> Any:
        verdict = access.verdict(_request(request))
        if verdict is Verdict.ALLOWED:
            return find(request, **kwargs)
        if verdict is Verdict.ENTERS:
            return application.get_handler_delegate(request, _Entrance, {"access": access})
        return application.get_handler_delegate(request, _Refusal, {"text": _TEXTS[verdict]})

    application.find_handler = find_if_allowed  # type: ignore[method-assign]


def _request(request: httputil.HTTPServerRequest) -> Request:
    headers = request.headers
    tokens = request.query_arguments.get(QUERY, [b""])
    return Request(
        host=headers.get("Host", ""),
        origin=headers.get("Origin", ""),
        token=tokens[-1].decode("utf-8", "replace"),
        cookies={name: each.value for name, each in request.cookies.items()},
        authorization=headers.get("Authorization", ""),
        is_navigation=request.method == "GET" and "text/html" in headers.get("Accept", ""),
    )


class _Plain(web.RequestHandler):
    def set_default_headers(self) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cache-Control", "no-store")
        self.clear_header("Server")


class _Refusal(_Plain):
    def initialize(self, text: str) -> None:
        self._text = text

    def prepare(self) -> None:  # whatever the method
        self.set_status(403)
        self.finish(f"{self._text}\n")


class _Entrance(_Plain):
    """Keeps the token in a cookie, and shows the page under an address without it."""

    def initialize(self, access: Access) -> None:
        self._access = access

    def get(self, *_: str) -> None:
        self.set_cookie(self._access.cookie, self._access.token, httponly=True, samesite="Lax")
        kept = [(name, value) for name, values in self.request.query_arguments.items() for value in values]
        query = urllib.parse.urlencode([(name, value) for name, value in kept if name != QUERY])
        # A path that begins with two slashes would lead to another site.
        path = "/" + self.request.path.lstrip("/")
        self.redirect(f"{path}?{query}" if query else path)

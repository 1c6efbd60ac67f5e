"""Dask servers and workers that open no HTTP port but a dashboard's."""

from typing import Any

from tornado.httpserver import HTTPServer


class NoPortWithoutDashboard:
    """A Dask server that opens an HTTP port only for a dashboard. Dask's own open one in any case."""

    def start_http_server(self, routes: Any, dashboard_address: Any, **kwargs: Any) -> None:
        if dashboard_address is not None:
            super().start_http_server(routes, dashboard_address, **kwargs)  # type: ignore[misc]
            return
        from distributed.http.routing import RoutingApplication

        self.http_application = RoutingApplication(routes)
        self.http_server = HTTPServer(self.http_application)

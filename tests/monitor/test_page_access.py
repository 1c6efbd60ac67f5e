"""Who can read the dashboard of a scheduler, ours and Dask's pages alike: its user, and nobody else."""

import contextlib
import http.client
import json
import os
import socket
import urllib.parse
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from guild_dask.cluster.dashboard import access_for
from guild_dask.cluster.http_ports import guard
from guild_dask.cluster.local import LocalCluster
from guild_dask.host.http_access import Access
from guild_dask.host.http_connections import MOST
from guild_dask.monitor.page.rows import Rows
from guild_dask.monitor.page.search_cells import SearchCells
from guild_dask.monitor.page.server import show
from guild_dask.scheduler.search.evaluation import evaluation_command
from guild_dask.settings.settings import BadSetting, DashboardAddress, settings_for
from tests.support.other_user import run_as_other_user
from tests.support.sandbox import Guild, Sandbox, wait_until
from tests.support.scheduling import a_project, stage

HERE = DashboardAddress("127.0.0.1", 0)

# Our pages, and Dask's: HTML, data, metrics, files and the connection of its plots.
PAGES = (
    "/guild",
    "/guild/data",
    "/status",
    "/info/main/workers.html",
    "/metrics",
    "/json/counts.json",
)
IMPORTS = "import encodings.idna, http.client, urllib.error, urllib.request"
SOCKETS = ("/status/ws", "/eventstream")


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    text: str


def ask(link: str, path: str, **headers: str) -> Answer:
    """Returns the answer to a request for a path of the server of a link."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(link).netloc, timeout=30)
    try:
        connection.putrequest("GET", path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read().decode())
    finally:
        connection.close()


@pytest.fixture
def access() -> Access:
    return access_for(HERE, has_token=True)


@pytest.fixture(params=["dashboard", "own port"])
def link(request: pytest.FixtureRequest, user: Sandbox, access: Access) -> Iterator[str]:
    """The link to the page of runs: on Dask's dashboard, or on a port of its own."""
    cluster = LocalCluster(1, {}, HERE, print, access=access) if request.param == "dashboard" else None
    rows = Rows(str(user.root), lambda: None)
    found, close = show(
        rows,
        SearchCells(rows.home, evaluation_command),
        cluster.add_pages if cluster else lambda _routes, _first: None,
        lambda: ("127.0.0.1", 0),
        lambda application: guard(application, access),
    )
    yield found
    close()
    if cluster:
        cluster.close()


def test_pages_are_for_those_who_have_the_token(link: str, access: Access, request: pytest.FixtureRequest) -> None:
    is_dask = request.node.callspec.params["link"] == "dashboard"
    pages = PAGES if is_dask else PAGES[:2]
    cookie = f"{access.cookie}={access.token}"
    for path in (*pages, *SOCKETS):
        refused = ask(link, path)
        assert (refused.status, refused.text[:26]) == (403, "This page needs the token "), path
        assert ask(link, path, Cookie=f"{access.cookie}=x").status == 403, path
        for headers in ({"Host": "evil.example:8787"}, {"Origin": "http://evil.example"}):
            assert ask(link, path, Cookie=cookie, **headers).status == 403, (path, headers)
    for path in pages:
        assert ask(link, path, Cookie=cookie).status == 200, path
        assert ask(link, f"{path}?token={access.token}").status == 200, path
    entered = ask(link, f"//guild?token={access.token}&since=1", Accept="text/html,*/*")
    assert (entered.status, entered.headers["Location"]) == (302, "/guild?since=1")
    assert entered.headers["Set-Cookie"].startswith(cookie)
    assert "HttpOnly" in entered.headers["Set-Cookie"]
    assert "SameSite=Lax" in entered.headers["Set-Cookie"]


def test_connections_take_no_more_than_some_descriptors(link: str, access: Access) -> None:
    # Whoever can reach the port can connect; with too many open files, the scheduler could start no run.
    address = urllib.parse.urlsplit(link)
    before = len(os.listdir("/proc/self/fd"))
    with contextlib.ExitStack() as closing:
        for _ in range(2 * MOST):
            closing.enter_context(socket.create_connection((address.hostname, address.port or 0)))
        wait_until(lambda: len(os.listdir("/proc/self/fd")) - before - 2 * MOST <= MOST)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) - before < 10)
    assert ask(link, f"/guild?token={access.token}").status == 200


def test_another_user_cannot_read_flags_through_the_dashboard(user: Sandbox, guild: Guild) -> None:
    a_project(user, "quick: {exec: echo quick, flags: {password: none}}")
    stage(guild, "quick password=s3cret", "aaa", options="--tag dask:gpu=1")
    code = """
for path in ("guild/data", "info/main/workers.html"):
    try:
        print(urllib.request.urlopen(f"{sys.argv[1]}/{path}").read())
    except urllib.error.HTTPError as e:
        print(e.code)
"""
    with guild.started("run dask:scheduler dashboard-address=0 poll-interval=0.5 -y") as scheduler:
        scheduler.wait_for_output("Page of runs: ")
        printed = scheduler.output.partition("Page of runs: ")[2].split()[0]
        assert "s3cret" in json.dumps(json.loads(ask(printed, f"/guild/data?{printed.partition('?')[2]}").text))
        assert run_as_other_user(code, printed.partition("/guild")[0], imports=IMPORTS) == "403\n403"
        state = next((user.guild_home / "dask" / "schedulers").glob("*.state")).read_text()
        assert json.loads(state)["page"] == printed


def test_dashboard_without_a_token_is_on_this_machine_only() -> None:
    assert settings_for({"dashboard-token": "no"}, {}).dashboard_token is False
    for address in ("0.0.0.0:8787", ":8787", f"{socket.gethostname()}:0", "10.0.0.1:0"):
        assert settings_for({"dashboard-address": address}, {}).dashboard_token
        with pytest.raises(BadSetting, match="needs dashboard-token=yes"):
            settings_for({"dashboard-address": address, "dashboard-token": "no"}, {})
    for address in ("127.0.0.1:0", "localhost:8787", "no", "8787"):
        settings_for({"dashboard-address": address, "dashboard-token": "no"}, {})
    assert not access_for(HERE, has_token=False).token
    assert access_for(HERE, has_token=True).token != access_for(HERE, has_token=True).token

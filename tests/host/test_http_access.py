"""Which requests may read the pages of a scheduler."""

import pytest

from guild_dask.host.http_access import Access, Request, Verdict

TOKEN = "s3cret"
LOCAL = Access(TOKEN, frozenset(("login1",)))
OPEN = Access(TOKEN, frozenset(("login1",)), is_local=False)
WITHOUT = Access("", frozenset(("login1",)))
COOKIE = {LOCAL.cookie: TOKEN}
HERE = "127.0.0.1:8787"

# The access, the request, and what becomes of it.
CASES: dict[str, tuple[Access, Request, Verdict]] = {
    "another user of the host": (LOCAL, Request(HERE), Verdict.NO_TOKEN),
    "a wrong token": (LOCAL, Request(HERE, token="s3cre"), Verdict.NO_TOKEN),
    "a wrong cookie": (LOCAL, Request(HERE, cookies={LOCAL.cookie: "x"}), Verdict.NO_TOKEN),
    "a token in no known form": (LOCAL, Request(HERE, authorization=f"Basic {TOKEN}"), Verdict.NO_TOKEN),
    "a token that is no text": (LOCAL, Request(HERE, token="\udcff"), Verdict.NO_TOKEN),
    "the token, by a program": (LOCAL, Request(HERE, token=TOKEN), Verdict.ALLOWED),
    "the token, in a browser": (LOCAL, Request(HERE, token=TOKEN, is_navigation=True), Verdict.ENTERS),
    "the cookie": (LOCAL, Request(HERE, cookies=COOKIE), Verdict.ALLOWED),
    "the header": (LOCAL, Request(HERE, authorization=f"token {TOKEN}"), Verdict.ALLOWED),
    "the bearer's header": (LOCAL, Request(HERE, authorization=f"Bearer {TOKEN}"), Verdict.ALLOWED),
    "a name of another site": (LOCAL, Request("evil.example:8787", token=TOKEN), Verdict.UNKNOWN_HOST),
    "a name that begins as ours": (LOCAL, Request("127.0.0.1.evil.example", cookies=COOKIE), Verdict.UNKNOWN_HOST),
    "no name": (LOCAL, Request("", cookies=COOKIE), Verdict.UNKNOWN_HOST),
    "a name that is none": (LOCAL, Request("[::1", cookies=COOKIE), Verdict.UNKNOWN_HOST),
    "localhost, through a tunnel": (LOCAL, Request("localhost:9999", cookies=COOKIE), Verdict.ALLOWED),
    "IPv6": (LOCAL, Request("[::1]:8787", cookies=COOKIE), Verdict.ALLOWED),
    "the host's own name": (LOCAL, Request("LOGIN1:8787", cookies=COOKIE), Verdict.ALLOWED),
    "a page of another site": (LOCAL, Request(HERE, "http://evil.example", cookies=COOKIE), Verdict.OTHER_SITE),
    "a page of another port": (LOCAL, Request(HERE, "http://127.0.0.1:8000", cookies=COOKIE), Verdict.OTHER_SITE),
    "a page of no site": (LOCAL, Request(HERE, "null", cookies=COOKIE), Verdict.OTHER_SITE),
    "its own page": (LOCAL, Request(HERE, f"http://{HERE}", cookies=COOKIE), Verdict.ALLOWED),
    "another interface, without a token": (OPEN, Request("10.0.0.1:8787"), Verdict.NO_TOKEN),
    "another interface, by a name of the site": (OPEN, Request("gw.site:80", cookies=COOKIE), Verdict.ALLOWED),
    "another interface, by a name, without a token": (OPEN, Request("gw.site:80"), Verdict.UNKNOWN_HOST),
    "switched off": (WITHOUT, Request(HERE), Verdict.ALLOWED),
    "switched off, and a name of another site": (WITHOUT, Request("evil.example"), Verdict.UNKNOWN_HOST),
    "switched off, and a page of another site": (WITHOUT, Request(HERE, "http://evil.example"), Verdict.OTHER_SITE),
    "switched off, and an empty token": (WITHOUT, Request(HERE, token="", is_navigation=True), Verdict.ALLOWED),
}


@pytest.mark.parametrize("name", CASES)
def test_verdict(name: str) -> None:
    access, request, expected = CASES[name]
    assert access.verdict(request) is expected


def test_link_has_the_token() -> None:
    assert LOCAL.link("http://x/guild") == f"http://x/guild?token={TOKEN}"
    assert LOCAL.link("http://x/guild?a=1#b") == f"http://x/guild?a=1&token={TOKEN}#b"
    assert WITHOUT.link("http://x/guild") == "http://x/guild"

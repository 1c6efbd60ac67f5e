"""A real browser for tests: Debian's chromium with its driver. If it is missing, a test is skipped, or fails in CI."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def browser(width: int = 1360, height: int = 900) -> Iterator[Any]:
    """Yields a headless browser."""
    program, driver = shutil.which("chromium") or shutil.which("chromium-browser"), shutil.which("chromedriver")
    if not program or not driver:
        text = "needs a browser: apt install chromium chromium-driver"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        f"window-size={width},{height}",
    ):
        options.add_argument(f"--{argument}")
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield opened
    finally:
        opened.quit()


def complaints(opened: Any) -> list[str]:
    """Returns the errors in the browser's log: of the script, and violations of the page's policy."""
    return [entry["message"] for entry in opened.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

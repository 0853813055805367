"""A real chromium without a screen, driven by its own chromedriver; it reaches nothing but this machine."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from tests.support.require import need

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


@contextmanager
def chromium(downloads: Path, width: int = 1280, height: int = 1000) -> Iterator[webdriver.Chrome]:
    """The browser; what it downloads lies in `downloads`."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    need(binary and driver, "chromium and chromedriver")
    options = Options()
    options.binary_location = str(binary)
    with tempfile.TemporaryDirectory(prefix="tailgate-browser-") as profile:
        for flag in (*_FLAGS, f"--window-size={width},{height}", f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        browser = webdriver.Chrome(options=options, service=Service(str(driver)))
        try:
            yield browser
        finally:
            browser.quit()


def resize(browser: webdriver.Chrome, width: int, height: int) -> None:
    """The viewport, to the pixel; a window cannot be as narrow as a phone."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def prefer(browser: webdriver.Chrome, scheme: str) -> None:
    """'light' or 'dark', as the system's own setting."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def complaints(browser: webdriver.Chrome) -> list[str]:
    """What the browser's console says of faults since this was last asked."""
    return [json.dumps(entry) for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def in_shadow(browser: webdriver.Chrome, script: str) -> Any:
    """The value of a JavaScript expression about `root`, the shadow root of the tab's element."""
    return browser.execute_script(
        f"const root = document.querySelector('tailgate-tail-latency')?.shadowRoot; return root ? ({script}) : null;"
    )

"""A headless Chromium of the system's packages, driven by Selenium, for the tests of the page."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)


def find() -> tuple[str, str]:
    """The browser and its driver; a test that needs them is skipped with what is missing."""
    pytest.importorskip("selenium", reason="no Selenium: pip install 'fedacg[dev]'")
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not browser or not driver:
        pytest.skip("no browser: apt-get install chromium chromium-driver")
    return browser, driver


class Browser:
    """One window, with what it asked for and what it complained about."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: Path | str) -> None:
        self.driver.get(address.as_uri() if isinstance(address, Path) else address)

    def resize(self, width: int, height: int) -> None:
        """The size of the page itself, as a phone would have it."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def media(self, media: str = "", **features: str) -> None:
        """Print, or a preference such as prefers_color_scheme="dark"."""
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": wanted})

    def js(self, expression: str, *arguments: Any) -> Any:
        """The value of an expression in the page."""
        return self.driver.execute_script(f"return {expression.strip()}", *arguments)

    def all(self, selector: str) -> list[Any]:
        from selenium.webdriver.common.by import By

        found: list[Any] = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return found

    def one(self, selector: str) -> Any:
        (found,) = self.all(selector)
        return found

    def keys(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        for key in keys:
            ActionChains(self.driver).send_keys(getattr(Keys, key, key)).perform()

    @property
    def focus(self) -> Any:
        return self.driver.switch_to.active_element

    def requests(self) -> list[str]:
        """Every address asked for since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """What stands in the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@contextmanager
def launched(profile: Path, *flags: str) -> Iterator[Browser]:
    """A browser with a profile of its own, ended afterwards."""
    program, driver_program = find()
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={profile}", *flags):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = Chrome(options=options, service=ChromeService(driver_program))
    try:
        yield Browser(driver)
    finally:
        driver.quit()

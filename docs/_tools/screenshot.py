"""The picture of a report's page for README.md: runs the quickstart with three seeds and photographs the page.

    python docs/_tools/screenshot.py

Needs Chromium and its driver. The seconds in its table are those of the machine that it runs on.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from selenium.webdriver import Chrome, ChromeOptions, ChromeService

PICTURE = Path(__file__).resolve().parents[1] / "images" / "page.png"
COMMAND = ("compare", "quickstart", "--methods", "fedavg,fedprox,fedavgm,fedacg", "--seeds", "0,1,2")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
WIDTH, HEIGHT = 1240, 1250


def photograph(page: Path, picture: Path, profile: Path) -> None:
    """The upper part of the page, as a window of this size shows it."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, "--hide-scrollbars", f"--user-data-dir={profile}"):
        options.add_argument(flag)
    driver = Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))
    try:
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get(page.as_uri())
        driver.save_screenshot(str(picture))
    finally:
        driver.quit()
    with Image.open(picture) as full:
        few = full.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(picture, optimize=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        runs = Path(name) / "runs"
        subprocess.run([sys.executable, "-m", "fedacg", *COMMAND, "--out", runs], check=True)
        photograph(runs / "index.html", PICTURE, Path(name) / "profile")
    print(PICTURE)


if __name__ == "__main__":
    main()

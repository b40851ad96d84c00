"""Chromium without a window, as tests of pages use it."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CHARTS = """
return [...document.querySelectorAll("figure.chart")].map(figure => {
  const svg = figure.querySelector("svg"), box = (svg ?? figure.querySelector("canvas")).getBoundingClientRect();
  const boxes = [...svg?.querySelectorAll("text") ?? []].filter(text => text.textContent && text.style.opacity !== "0"
    && text.getAttribute("opacity") !== "0").map(text => text.getBoundingClientRect());
  let touching = 0;
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach(b => { if (a.left < b.right - 1 && b.left < a.right - 1
    && a.top < b.bottom - 4 && b.top < a.bottom - 4) touching++; }));
  return {width: box.width, height: box.height, texts: boxes.length, touching,
    outside: boxes.filter(b => b.left < 0 || b.right > innerWidth + 1).length};
});"""


class Browser:
    """One window."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str, width: int = 1280) -> None:
        """Show a page in a window so many pixels wide, and wait until its charts are drawn."""
        metrics = {"width": width, "height": 1600, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.get("about:blank")  # ends what the page before still asks for
        self.problems()
        self.driver.get(address)
        self.wait("return [...document.querySelectorAll('figure.chart')].every(one => one.dataset.drawn)")
        self.run("return document.fonts.ready.then(() => true)")

    def run(self, script: str) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script)

    def wait(self, script: str, seconds: float = 120.0) -> Any:
        """What a script returns, once that is true. The time is far more than a busy machine takes."""
        deadline = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"never true: {script}; console: {self.problems()}"
            time.sleep(0.05)
        return value

    def click(self, selector: str) -> None:
        """On the first element that matches."""
        self.run(f"document.querySelector({selector!r}).click()")

    def type(self, selector: str, text: str) -> None:
        """Put a text into a field, as its user would."""
        change = "one.value = arguments[1]; one.dispatchEvent(new Event('input', {bubbles: true}));"
        self.driver.execute_script(f"const one = document.querySelector(arguments[0]); {change}", selector, text)

    def hover(self, selector: str) -> str:
        """Move the mouse onto the first element that matches; the text of the tooltip that appears."""
        self._move(selector).perform()
        return self.wait("return document.querySelector('#vg-tooltip-element.visible')?.innerText")

    def press(self, selector: str) -> None:
        """Click with the mouse, as marks of charts need it."""
        self._move(selector).click().perform()

    def drag(self, selector: str, pixels: int) -> None:
        """Drag the first element that matches to the right."""
        self._move(selector).click_and_hold().move_by_offset(pixels, 0).release().perform()

    def _move(self, selector: str) -> Any:
        from selenium.webdriver import ActionChains

        found = self.driver.find_element("css selector", selector)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
        return ActionChains(self.driver, duration=0).move_to_element(found)

    def media(self, **features: str) -> None:
        """What media queries find: `media(prefers_color_scheme="dark")`, `media(type="print")`; nothing: as usual."""
        kind = features.pop("type", "")
        given = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": kind, "features": given})

    def charts(self) -> list[dict[str, Any]]:
        """Of each chart: its size, how many texts it has, how many of them touch or leave the page."""
        return self.run(_CHARTS)

    def fits(self) -> bool:
        """Whether the page is no wider than the window."""
        return self.run("return document.documentElement.scrollWidth <= innerWidth")

    def problems(self) -> list[str]:
        """What the console said since the page was opened or this was last called."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def picture(self, path: Path) -> None:
        """A PNG of the whole page."""
        height = self.run("return document.documentElement.scrollHeight")
        width = self.run("return innerWidth")
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.save_screenshot(str(path))


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    """A browser that ends with the block."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_page_load_timeout(200)
    try:
        yield Browser(driver)
    finally:
        driver.quit()

"""Headless Chromium through its debugging pipe: real keys, real clicks, what the console says, screenshots."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any

from outside_tools import missing, npm_packages

SECONDS, TRIES = 60, 10_000


def chromium_path() -> str | None:
    """The browser, if there is one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


class Browser:
    """One page in one browser."""

    def __init__(self, profile: Path) -> None:
        program = chromium_path() or missing("chromium is not installed (apt-get install chromium)")
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]
        options += ["--no-first-run", "--disable-extensions", f"--user-data-dir={profile}"]
        # The pipes are 3 and 4 in the browser, whatever they are here.
        script = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", program, *options, "about:blank"],
            pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._rest = b""
        self._number = 0
        self.console: list[str] = []
        self.requests: list[str] = []
        targets = self._send("Target.getTargets")["targetInfos"]
        page = next(item["targetId"] for item in targets if item["type"] == "page")
        self._session = ""
        self._session = self._send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def open(
        self, page: Path, *, width: int = 1280, height: int = 800, dark: bool = False, script: bool = True
    ) -> None:
        """Open a file, and wait until everything is there."""
        mobile = width < 600
        self._send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self._send("Emulation.setEmulatedMedia", features=[scheme, still])
        self._send("Emulation.setScriptExecutionDisabled", value=not script)
        self._send("Page.navigate", url="about:blank")
        self._send("Page.navigate", url=page.as_uri())
        self._wait_for("Page.loadEventFired")

    def do(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        for _ in range(TRIES):
            if self.do(f"!!({condition})"):
                return
        raise AssertionError(f"never true: {condition}")

    def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        code = {"Enter": 13, "Tab": 9}.get(key, 0)
        self._send("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self._send("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def click(self, selector: str) -> None:
        """Click in the middle of the first element that matches."""
        place = self.do(
            "(e => { e.scrollIntoView({block: 'center', inline: 'center'}); const r = e.getBoundingClientRect(); "
            f"return [r.x + r.width / 2, r.y + r.height / 2] }})(document.querySelector({json.dumps(selector)}))"
        )
        at = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
        self._send("Input.dispatchMouseEvent", type="mousePressed", **at)
        self._send("Input.dispatchMouseEvent", type="mouseReleased", **at)

    def screenshot(self, path: Path) -> None:
        """What is visible, as PNG."""
        path.write_bytes(base64.b64decode(self._send("Page.captureScreenshot")["data"]))

    def axe(self) -> list[str]:
        """What axe-core finds on the page: nothing on one that everybody can read."""
        package = npm_packages("axe-core", "axe-core@4.14.1") / "node_modules" / "axe-core" / "axe.min.js"
        self.do(package.read_text(encoding="utf-8") + ";0")
        shown = "v.id + ': ' + v.nodes.slice(0, 3).map(n => n.target + ' ' + n.failureSummary).join('; ')"
        found: list[str] = self.do(f"axe.run().then(answer => answer.violations.map(v => {shown}))")
        return found

    def _send(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if getattr(self, "_session", ""):
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _wait_for(self, event: str) -> None:
        while self._next().get("method") != event:
            pass

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], SECONDS)
            assert ready, "the browser does not answer"
            got = os.read(self._from, 1 << 20)
            assert got, "the browser has ended"
            self._rest += got
        raw, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.consoleAPICalled":
                self.console.append(str([item.get("value") for item in parameters["args"]]))
            case "Runtime.exceptionThrown":
                self.console.append(json.dumps(parameters["exceptionDetails"])[:500])
            case "Log.entryAdded":
                self.console.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case _:
                pass

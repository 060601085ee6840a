"""A headless Chromium driven over its debugging pipe (NUL-separated JSON on descriptors 3 and 4): enough to click and look."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    """Return the command of an installed Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a headless Chromium. errors: messages of its console, and requests that failed."""

    def __init__(self, command: str, *, width: int = 1440, height: int = 1000, dark: bool = False) -> None:
        self.errors: list[str] = []
        self._folder = tempfile.mkdtemp(prefix="noria-browser-")
        self._next = 0
        self._rest = b""
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # The shell moves the descriptors to where Chromium looks for them.
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        arguments = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            f"--user-data-dir={self._folder}", "--remote-debugging-pipe", f"--window-size={width},{height}", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", command, *arguments],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._read, self._write = ours_in, ours_out
        target = next(each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        attach = {"targetId": target["targetId"], "flatten": True}
        self._session = self.call("Target.attachToTarget", **attach)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.page(f"{domain}.enable")
        self.resize(width, height)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.page("Emulation.setEmulatedMedia", features=scheme)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._folder, ignore_errors=True)

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.page("Emulation.setDeviceMetricsOverride", **metrics)

    def page(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.call(method, session=self._session, **parameters)

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        self._next += 1
        message = {"id": self._next, "method": method, "params": parameters} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._next:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, url: str) -> None:
        self.page("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression; promises are awaited."""
        event = self.page("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in event, event["exceptionDetails"]
        return event["result"].get("value")

    def wait(self, condition: str, timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.run(f"!!({condition})"):
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {condition}; {self.errors}"
            time.sleep(0.05)

    def press(self, key: str, text: str = "") -> None:
        named = {"key": key, "code": key, "windowsVirtualKeyCode": {"Escape": 27, "Enter": 13}.get(key, ord(key[0]))}
        self.page("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
        self.page("Input.dispatchKeyEvent", type="keyUp", **named)

    def click(self, x: float, y: float) -> None:
        self.page("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased"):
            self.page("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.page("Page.captureScreenshot", format="png")["data"]))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser ended"
            self._rest += piece
        raw, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, event: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.errors.append(str([each.get("value") or each.get("description") for each in event["args"]]))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{event['entry']['text']} {event['entry'].get('url', '')}")

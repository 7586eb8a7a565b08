"""A page in Chromium (Qt WebEngine), in a process of its own: `browser.py PAGE light|dark FOLDER WIDTH...`.

Reads a JavaScript expression from stdin and evaluates it in the page at each width. Prints
{"loaded", "console", "requests", "found": [one a width]}; leaves FOLDER/SCHEME-WIDTH.png of the whole page.
"""

import json
import os
import sys
from pathlib import Path

os.environ["QT_QPA_PLATFORM"] = "offscreen"
_SCHEME = {"dark": 0, "light": 1}[sys.argv[2]]
os.environ["QTWEBENGINE_CHROMIUM_FLAGS"] = (
    f"--no-sandbox --disable-gpu --hide-scrollbars --blink-settings=preferredColorScheme={_SCHEME}"
)

from PyQt6.QtCore import QEventLoop, QTimer, QUrl  # noqa: E402
from PyQt6.QtWebEngineCore import (  # noqa: E402
    QWebEnginePage,
    QWebEngineProfile,
    QWebEngineSettings,
    QWebEngineUrlRequestInterceptor,
)
from PyQt6.QtWebEngineWidgets import QWebEngineView  # noqa: E402
from PyQt6.QtWidgets import QApplication  # noqa: E402

application = QApplication(["browser"])
console: list[str] = []
requests: list[str] = []


class Requests(QWebEngineUrlRequestInterceptor):
    def interceptRequest(self, info):
        requests.append(info.requestUrl().toString())


class Page(QWebEnginePage):
    def javaScriptConsoleMessage(self, level, message, line, source):
        console.append(f"{source}:{line}: {message}")


def wait(start, milliseconds=20000):
    """What `start`'s callback is given; None after `milliseconds`."""
    got = []
    loop = QEventLoop()
    QTimer.singleShot(milliseconds, loop.quit)
    start(lambda *values: (got.append(values[0] if values else None), loop.quit()))
    if not got:
        loop.exec()
    return got[0] if got else None


def pause(milliseconds=300):
    wait(lambda done: QTimer.singleShot(milliseconds, done))


def main() -> None:
    path, scheme, folder, *widths = sys.argv[1:]
    expression = sys.stdin.read()
    profile = QWebEngineProfile()
    interceptor = Requests()
    profile.setUrlRequestInterceptor(interceptor)
    page = Page(profile)
    # A file may not ask the network for anything otherwise, and such a request would not be seen.
    page.settings().setAttribute(QWebEngineSettings.WebAttribute.LocalContentCanAccessRemoteUrls, True)
    view = QWebEngineView()
    view.setPage(page)
    view.resize(int(widths[0]), 900)
    view.show()

    def load(done):
        page.loadFinished.connect(done)
        page.load(QUrl.fromLocalFile(os.path.abspath(path)))

    loaded, found = wait(load), []
    for width in widths:
        view.resize(int(width), 900)
        pause()
        text = wait(lambda done: page.runJavaScript(f"JSON.stringify({expression})", done))
        found.append(json.loads(text) if text else None)
        height = wait(lambda done: page.runJavaScript("document.documentElement.scrollHeight", done))
        view.resize(int(width), int(min(height or 900, 12000)))
        pause(1000)  # a page of thousands of pixels is painted slowly
        view.grab().save(str(Path(folder) / f"{scheme}-{width}.png"))
    print(json.dumps({"loaded": loaded, "console": console, "requests": requests, "found": found}), flush=True)
    os._exit(0)  # Python ends Qt's objects in an order that they do not bear


main()

"""Stands in for the Python that has vLLM: takes vLLM's command line, answers as little as a launch needs, misbehaves.

`STUB_ENGINE` says how: nothing (a good server), or words out of: deaf (ignores SIGTERM), forks (starts a helper in its
group), strays (starts one in a session of its own), dies (prints an error and ends at start), mute (never healthy).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODE = os.environ.get("STUB_ENGINE", "").split()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/health":
            return self.reply(503 if "mute" in MODE else 200, "")
        if self.path == "/v1/models":
            return self.reply(200, json.dumps({"data": [{"id": "stub"}]}))
        if self.path == "/version":
            return self.reply(200, json.dumps({"version": "0.32.0"}))
        if self.path == "/die":
            print("ERROR out of memory", flush=True)
            os._exit(7)
        return self.reply(404, "")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.reply(200, 'data: {"choices": [{"text": "a"}]}\n\ndata: [DONE]\n\n')

    def reply(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    """Serves until told to end."""
    if "dies" in MODE:
        print("INFO starting\nValueError: No available memory for the cache blocks.", flush=True)
        sys.exit(1)
    for word, session in (("forks", False), ("strays", True)):
        if word in MODE:
            subprocess.Popen(["sleep", "600"], start_new_session=session)
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler)
    if "deaf" in MODE:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever()


if __name__ == "__main__":
    main()

"""A user's mistake ends every kind of process with one line that names the mend and exit code 2, and hangs nobody."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.locust_runs import ROOT, Ended, end, free_port, start
from tests.support.openai_server import Running, serve
from tests.support.waiting import eventually

CASES: dict[str, tuple[list[str], str]] = {
    "workload": (
        ["--workload", "chat-shrt"],
        "locust: unknown workload 'chat-shrt'; did you mean 'chat-short'?",
    ),
    "typo": (
        ["--workload", "{typo}"],
        "locust: {typo}:3: unknown key 'classes.a.input-token'; did you mean 'input-tokens'?",
    ),
    "model": (["--model", "large"], "locust: the server {url} has no model 'large'; it has: tiny"),
    "down": (
        ["-H", "http://127.0.0.1:1"],
        "locust: no server answers at http://127.0.0.1:1 (connection refused); start it, or mend -H/--host",
    ),
    "scheme": (
        ["-H", "127.0.0.1:8000"],
        "locust: -H: '127.0.0.1:8000' is no http or https URL; write it like http://127.0.0.1:8000",
    ),
    "host": (
        ["-H", "http://no-such-host.invalid"],
        "locust: the host of http://no-such-host.invalid cannot be resolved",
    ),
    "rate": (
        ["--arrival", "poisson"],
        "locust: --arrival poisson needs a rate; add --request-rate with the fleet's requests per second",
    ),
    "slo": (["--slo", "ttft_p95<1"], "locust: --slo: 'ttft_p95<1' names no unit; write ttft_p95<1ms or ttft_p95<1s"),
    "duration": (
        ["--drain", "soon"],
        "locust: --drain: 'soon' is no duration; give seconds, or write it like 500ms or 2m",
    ),
    "count": (["--num-requests", "0"], "locust: --num-requests: '0' is not a whole number; give 1 or more"),
    "json": (["--extra-body", "[1]"], 'locust: --extra-body: not a JSON object; write one like {{"top_k": 1}}'),
    "body": (
        ["--extra-body", '{{"stream": false}}'],
        "locust: --extra-body: 'stream' is set by the suite itself; give --no-stream",
    ),
    "pace": (
        ["--time-scale", "10"],
        "locust: --time-scale is the pace of a trace; here arrivals are closed; leave it out",
    ),
    "query": (
        ["-H", "http://127.0.0.1:1/v1?api-version=2"],
        "locust: -H: what follows '?' or '#' in the URL is not sent; leave it out",
    ),
    "endpoint": (
        ["-H", "http://127.0.0.1:1/llm/v1/chat/completions/"],
        "locust: -H: /v1/chat/completions is the workload's to say; write http://127.0.0.1:1/llm",
    ),
    "blank": (
        ["-H", "http://127.0.0.1:1/a b"],
        "locust: -H: 'http://127.0.0.1:1/a b' holds what no URL can; write a blank as %20",
    ),
    "records": (
        ["--records", "sample:2"],
        (
            "locust: --records: cannot read 'sample:2'; write all, none or sample:RATE with a rate between 0 and 1, "
            "such as sample:0.1"
        ),
    ),
    "trace": (
        ["--workload", "azure-code"],
        "locust: workload azure-code replays a trace; give its file with --trace FILE",
    ),
    "authority": (["--tls-ca", "{typo}"], "locust: --tls-ca {typo}: "),
    "key": (
        ["--api-key-file", "sk-secret-given-by-mistake"],
        (
            "locust: the file given with --api-key-file cannot be read; "
            "give the path of a file that holds the key, or set OPENAI_API_KEY"
        ),
    ),
    "warmup": (
        ["--warmup", "10", "-t", "5s"],
        "locust: --warmup 10 leaves nothing of --run-time 5; lengthen the run",
    ),
}


FORKED = ("typo", "down", "key")


@pytest.fixture(scope="module")
def refused(server: Running, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Ended, str]]:
    """Every case once alone and once with --processes: what it printed, and the line it should have printed."""
    base = tmp_path_factory.mktemp("bad")
    typo = base / "typo.yaml"
    typo.write_text("name: x\nclasses:\n  a: {input-token: 3, output-tokens: 3}\n")
    words = {"typo": str(typo), "url": server.url}

    def refuse(name: str, processes: bool) -> tuple[Ended, str]:
        given, line = CASES[name]
        port = str(free_port())
        arguments = ["-f", "locustfiles/chat.py", "--headless", "-t", "9s", "-H", server.url]
        arguments += ["--master-bind-port", port, "--master-port", port]
        arguments += [word.format(**words) for word in given] + (["--processes", "2"] if processes else [])
        return end(start(*arguments), base, timeout_s=30), line.format(**words)

    # With --processes each kind of check is tried once: a file, the server, a secret.
    jobs = [(name, processes) for name in CASES for processes in (False, True) if name in FORKED or not processes]
    with ThreadPoolExecutor(4) as pool:
        done = pool.map(lambda job: refuse(*job), jobs)
        return {f"{name} {processes}": result for (name, processes), result in zip(jobs, done, strict=True)}


@pytest.mark.parametrize(
    ("name", "processes"), [*((name, False) for name in CASES), *((name, True) for name in FORKED)]
)
def test_one_line_and_exit_code_2(refused: dict[str, tuple[Ended, str]], name: str, processes: bool) -> None:
    ended, line = refused[f"{name} {processes}"]
    said = [text for text in ended.err.splitlines() if "/INFO/" not in text]
    assert len(said) == 1, ended.err
    assert said[0].startswith(line)
    assert ended.code == 2
    assert "secret" not in ended.err + ended.out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--headless", "--processes", "2", "--master-bind-port", "{port}"],
            (
                "locust: port {port}, where workers connect, is taken; give another with --master-bind-port "
                "(and the workers --master-port)"
            ),
        ),
        (["--web-port", "{port}"], "locust: port {port} of the web UI is taken; give another with --web-port"),
    ],
)
def test_a_port_that_is_taken(server: Running, tmp_path: Path, arguments: list[str], line: str) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        words = [word.format(port=port) for word in arguments]
        ended = end(start("-f", "locustfiles/chat.py", "-H", server.url, *words), tmp_path, timeout_s=20)
    assert ended.err.splitlines()[-1] == line.format(port=port)
    assert ended.code == 2


def test_tags_that_leave_no_task(server: Running, tmp_path: Path) -> None:
    arguments = ["-f", "locustfiles/chat.py", "--headless", "-t", "9s", "-H", server.url, "--tags", "other"]
    ended = end(start(*arguments, "--results", tmp_path / "run"), tmp_path, timeout_s=30)
    assert ended.code == 2
    # Beside Locust's own warning.
    assert "locust: ChatUser has nothing to do; leave out --tags and --exclude-tags" in ended.err.splitlines()
    assert "Traceback" not in ended.err
    assert not (tmp_path / "run").exists()


def test_a_server_that_is_down_dismisses_the_workers(tmp_path: Path) -> None:
    port = free_port()
    master = start(
        *("-f", "locustfiles/chat.py", "--headless", "-t", "9s", "-H", "http://127.0.0.1:1"),
        *("--master", "--master-bind-port", port, "--expect-workers", 2),
    )
    workers = [start("-f", "locustfiles/chat.py", "--worker", "--master-port", port) for _ in range(2)]
    ended = end(master, tmp_path)
    assert ended.code == 2
    assert "no server answers at http://127.0.0.1:1" in ended.err
    assert "Traceback" not in ended.err
    for worker in workers:
        assert end(worker, tmp_path, timeout_s=10).code == 0


def test_workers_that_do_not_come_end_the_wait_and_those_that_came(server: Running, tmp_path: Path) -> None:
    port = free_port()
    log = tmp_path / "worker.log"
    worker = start("-f", "locustfiles/chat.py", "--worker", "--master-port", port, "--logfile", log)
    eventually(lambda: log.exists() and "Starting Locust" in log.read_text())
    master = start(
        *("-f", "locustfiles/chat.py", "--headless", "-t", "9s", "-H", server.url, "--master-bind-port", port),
        *("--master", "--expect-workers", 2, "--expect-workers-max-wait", 6),
    )
    ended = end(master, tmp_path)
    assert ended.code == 2
    said = "locust: 1 of 2 workers had joined after 6 s; start the others, or name as many as there are with"
    assert said in ended.err
    assert "Traceback" not in ended.err
    assert end(worker, tmp_path, timeout_s=10).code == 0


def test_what_only_a_worker_lacks_ends_the_run_too(server: Running, tmp_path: Path) -> None:
    port = free_port()
    trace = tmp_path / "here" / "trace.csv"
    trace.parent.mkdir()
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,20,5\n")
    master = start(
        *("-f", ROOT / "locustfiles/replay.py", "--headless", "-H", server.url, "--trace", "trace.csv"),
        *("--master", "--master-bind-port", port, "--expect-workers", 1),
        cwd=trace.parent,
    )
    worker = start("-f", ROOT / "locustfiles/chat.py", "--worker", "--master-port", port, cwd=tmp_path)
    ended = end(master, tmp_path)
    assert ended.code == 2
    assert "--trace: trace.csv is not a file" in ended.err
    assert "worker-0 on " in ended.err
    assert end(worker, tmp_path, timeout_s=10).code == 0


def test_a_key_that_is_wanted_or_wrong(tmp_path: Path) -> None:
    with serve("--key", "right") as server:
        arguments = ["-f", "locustfiles/chat.py", "--headless", "-H", server.url, "-t", "9s"]
        without = end(start(*arguments), tmp_path)
        wrong = end(start(*arguments, env={"OPENAI_API_KEY": "wrong"}), tmp_path)
        assert f"locust: the server {server.url} wants an API key (HTTP 401); set OPENAI_API_KEY" in without.err
        assert f"locust: the server {server.url} refuses the API key (HTTP 401)" in wrong.err
        assert (without.code, wrong.code) == (2, 2)


def test_a_key_from_a_file_is_sent_and_never_kept(small: Path, tmp_path: Path) -> None:
    key = tmp_path / "key.txt"
    key.write_text("right-and-secret\n")
    with serve("--key", "right-and-secret") as server:
        directory, port = tmp_path / "run", free_port()
        ended = end(
            start(
                *("--master-bind-port", port, "--master-port", port),
                *("-f", "locustfiles/chat.py", "--headless", "-H", server.url, "--workload", small),
                *("--num-requests", 30, "-u", 3, "-r", 100, "--results", directory, "--processes", 2),
                *("--api-key-file", key),
            ),
            directory,
        )
    assert ended.summary["requests"]["ok"] == 30
    written = "".join(path.read_text() for path in directory.rglob("*") if path.is_file())
    assert "right-and-secret" not in written + ended.out + ended.err

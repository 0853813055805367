"""The suite's places in Locust's life: what happens when it parses, starts, stops and quits, in each kind of process.

Imported once by every locustfile of the suite; importing it installs the listeners.
"""

from __future__ import annotations

import errno
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import gevent
from gevent.event import Event
from locust import events, runners, stats
from locust.env import Environment
from locust.runners import LocalRunner, MasterRunner, WorkerRunner

from locustfiles import against, console, locust_stats, rate_page, tail_tab
from locustfiles.alone import Alone
from locustfiles.crew import Crew
from locustfiles.enlisted import Enlisted
from locustfiles.fleet import Distributed
from locustfiles.leader import Course, Leader, ask_server
from locustfiles.options import add_options
from locustfiles.settings import ApiKey, chosen, read_settings
from locustfiles.strain import REPORT_INTERVAL_S
from locustfiles.web import Admission, announce_starts
from locustfiles.web_login import Credentials, require_login
from tailgate.exits import BadInput, Exit
from workloads import open_replayed
from workloads.tokenizer_file import TokenizerFile

logger = logging.getLogger(__name__)

# After this many seconds without a sign of life Locust gives a worker up, and ends the run if it was the last. Locust's
# own three are soon over on a machine whose cores are busy, while two hundred users connect.
_SILENCE_S = 10

_key = ApiKey(None)
_checked = False
_crews: dict[int, Crew] = {}


def crew(environment: Environment) -> Crew:
    """The part that this process has in runs of `environment`."""
    return _crews[id(environment)]


@events.init_command_line_parser.add_listener
def _on_parser(parser: Any, **_: Any) -> None:
    add_options(parser)
    parse = parser.parse_args

    def parse_and_check(*args: Any, **kwargs: Any) -> Any:
        # Here and not in an `init` listener: Locust forks its --processes next, and a master that ends after that
        # leaves workers behind which wait minutes for it.
        options = parse(*args, **kwargs)
        _check(options)
        return options

    parser.parse_args = parse_and_check


def _check(options: Any) -> None:
    """Ends the process with one line on a mistake in the options. Once: the web UI parses them again for each page."""
    global _key, _checked
    if _checked:
        return
    _checked = True
    try:
        settings = read_settings(chosen(options))
        settings.tls.context()
        if not options.worker:
            against.check(settings.baseline, settings.save_baseline)
            # Before the fork, so that workers have what was read.
            open_replayed(settings.workload, settings.trace)
            if settings.tokenizer:
                TokenizerFile(settings.tokenizer)
        _key = ApiKey.find(getattr(options, "api_key_file", None))
        if options.web_login:
            Credentials.find()
        _check_ports(options)
        # A master of workers elsewhere asks at the start of the run: until they have connected it cannot dismiss them.
        if options.headless and options.host and not options.worker and not options.master:
            ask_server(settings, options.host, _key)
    except BadInput as error:
        print(f"locust: {error}", file=sys.stderr)
        sys.exit(Exit.BAD_INPUT)


def _check_ports(options: Any) -> None:
    """Locust meets a taken port with a traceback, by then with workers waiting or without its web UI."""
    if options.worker:
        return
    if options.master or options.processes:
        mend = "give another with --master-bind-port (and the workers --master-port)"
        _check_port(options.master_bind_host, options.master_bind_port, "port {}, where workers connect,", mend)
    if port := options.prometheus_port:
        _check_port("", int(port), "port {} for Prometheus", "give another with --prometheus-port")
    if not options.headless:
        _check_port(options.web_host, options.web_port, "port {} of the web UI", "give another with --web-port")


def _check_port(host: str, port: int, name: str, mend: str) -> None:
    try:
        socket.create_server(("" if host == "*" else host, port)).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BadInput(f"{name.format(port)} is taken", mend) from None


def _require_tasks(environment: Environment) -> None:
    """Locust would log a traceback for each user, over and over."""
    idle = [item.__name__ for item in environment.user_classes if not item.tasks]
    if idle:
        filtered = any(getattr(environment.parsed_options, name, None) for name in ("tags", "exclude_tags"))
        mend = "leave out --tags and --exclude-tags" if filtered else "give it a task"
        raise BadInput(f"{idle[0]} has nothing to do", mend)


@events.init.add_listener
def _on_init(environment: Environment, runner: Any, web_ui: Any = None, **_: Any) -> None:
    locust_stats.install()
    runners.WORKER_REPORT_INTERVAL = REPORT_INTERVAL_S
    runners.HEARTBEAT_LIVENESS = _SILENCE_S
    # Locust sets --run-time's timer next, against gevent's idea of now, which still is the time before all imports.
    gevent.get_hub().loop.update_now()
    if isinstance(runner, WorkerRunner):
        hurry = _Member(environment, runner).hurry
    else:
        hurry = _Head(environment, runner, web_ui).hurry
    _interrupt_in_a_greenlet_of_its_own(hurry)


def _interrupt_in_a_greenlet_of_its_own(hurry: Callable[[], None]) -> None:
    """Has Ctrl-C end the run, and a second one its drain.

    Python would raise it in whichever greenlet runs, perhaps in the middle of counting a request.
    """
    hub = gevent.get_hub()
    hub.NOT_ERROR = (*hub.NOT_ERROR, KeyboardInterrupt)
    came_before = False

    def on_interrupt() -> None:
        nonlocal came_before
        if came_before:
            hurry()
        else:
            came_before = True
            raise KeyboardInterrupt

    gevent.signal_handler(signal.SIGINT, on_interrupt)


class _Member:
    """A worker process."""

    def __init__(self, environment: Environment, runner: WorkerRunner) -> None:
        self._crew = _crews[id(environment)] = Crew(environment, _key, self._done)
        self._line = Enlisted(environment, runner, self._crew)
        environment.events.test_stopping.add_listener(self._end)
        # After Locust's own listeners, so that quitting, which goes backwards, comes here first.
        environment.events.quitting.add_listener(self._quit)

    def hurry(self) -> None:
        self._crew.end(0)

    def _done(self) -> None:
        gevent.spawn(self._line.report_now)

    def _end(self, **_: Any) -> None:
        self._crew.end()

    def _quit(self, environment: Environment, **_: Any) -> None:
        if self._crew.in_run:
            self._crew.end()
            self._line.report_now()
        # Failures are the master's to judge.
        environment.process_exit_code = environment.process_exit_code or Exit.GOOD


class _Head:
    """The process that leads: Locust's master, or its only process."""

    def __init__(self, environment: Environment, runner: LocalRunner | MasterRunner, web_ui: Any) -> None:
        self._environment = environment
        self._runner = runner
        self._leader = Leader(environment, _key, self._over)
        self._admission = Admission()
        self._shown: list[str] = []
        self._run_time_s = self._take_run_time()
        self._waiting = self._take_longest_wait()
        if isinstance(runner, MasterRunner):
            self._leader.fleet = Distributed(environment, runner, self._leader.take)
        else:
            mine = _crews[id(environment)] = Crew(environment, _key, lambda: alone.crew_is_done())
            alone = Alone(mine, self._leader.take)
            self._leader.fleet = alone
        options = environment.parsed_options
        if web_ui is not None:
            base_path = getattr(options, "web_base_path", "") or ""
            if web_ui.web_login and (credentials := Credentials.find()):
                require_login(web_ui, base_path, credentials)
            announce_starts(web_ui, self._admission, self._change_rate)
            self._leader.metrics.mount(web_ui, base_path)
            tail_tab.mount(web_ui, base_path, self._leader.metrics)
            rate_page.mount(web_ui, base_path, self._leader)
        if port := getattr(options, "prometheus_port", None):
            self._leader.metrics.serve(int(port))
        environment.events.test_start.add_listener(self._begin)
        environment.events.test_stopping.add_listener(self._stop)
        environment.events.test_stop.add_listener(self._finish)
        environment.events.quitting.add_listener(self._quit)
        environment.events.quit.add_listener(self._show)

    def hurry(self) -> None:
        self._leader.hurry()

    def _change_rate(self, text: str) -> None:
        self._leader.change_rate(rate_page.number(text))

    @property
    def _headless(self) -> bool:
        return self._environment.web_ui is None

    def _take_run_time(self) -> float | None:
        """Takes --run-time out of Locust's hands, which would count it from before the run is prepared."""
        options: Any = self._environment.parsed_options
        automatic = getattr(options, "headless", False) or getattr(options, "autostart", False)
        if not automatic or self._environment.shape_class is not None or not options.run_time:
            return None
        run_time_s, options.run_time = float(options.run_time), None
        return run_time_s

    def _take_longest_wait(self) -> gevent.Greenlet | None:
        """Takes --expect-workers-max-wait out of Locust's hands, which would end as if requests had failed."""
        options: Any = self._environment.parsed_options
        if not getattr(options, "headless", False) or not getattr(options, "expect_workers_max_wait", 0):
            return None
        longest_s, options.expect_workers_max_wait = options.expect_workers_max_wait, 0

        def give_up() -> None:
            joined = len(self._runner.clients.ready) if isinstance(self._runner, MasterRunner) else 0
            problem = f"{joined} of {options.expect_workers} workers had joined after {longest_s} s"
            self._refuse(BadInput(problem, "start the others, or name as many as there are with --expect-workers"))

        return gevent.spawn_later(longest_s, give_up)

    def _begin(self, **_: Any) -> None:
        if self._waiting is not None:
            self._waiting.kill(block=False)
        run_time_s, self._run_time_s = self._run_time_s, None
        options: Any = self._environment.parsed_options
        if run_time_s is not None:
            options.run_time = run_time_s
        try:
            _require_tasks(self._environment)
            self._leader.begin()
        except BadInput as error:
            self._refuse(error)
        self._admission.grant()
        if run_time_s is not None:
            logger.info("run time: %g s from now", run_time_s)
            gevent.get_hub().loop.update_now()
            course = self._leader.course
            ahead_s = (course.start_ns - time.time_ns()) / 1e9 if course else 0.0
            gevent.spawn_later(run_time_s + max(ahead_s, 0.0), self._end_run, course)

    def _refuse(self, error: BadInput) -> NoReturn:
        if self._headless:
            print(f"locust: {error}", file=sys.stderr)
            self._environment.process_exit_code = Exit.BAD_INPUT
            self._leader.fleet.dismiss()
            # In a greenlet of its own an exit reaches the main one without Locust's log of a crashed greenlet.
            gevent.spawn(sys.exit, Exit.BAD_INPUT)
            Event().wait()
        logger.error("%s", error)
        self._admission.refuse(str(error))
        self._runner.shape_greenlet = None
        self._runner._users_dispatcher = None
        raise gevent.GreenletExit

    def _stop(self, **_: Any) -> None:
        self._leader.stop()
        # Nothing is in flight any more: Locust need not wait for anyone.
        self._environment.stop_timeout = 0.0

    def _finish(self, **_: Any) -> None:
        course = self._leader.finish()
        if course is None or not course.summary:
            return
        self._shown = console.summary_lines(course.summary, course.store.meta, course.store.directory)
        self._shown += course.thresholds
        if course.comparison is not None:
            self._shown += ["", *course.comparison.text().splitlines()]
        if not self._headless:
            self._show()
        elif isinstance(self._runner, MasterRunner) and self._runner.worker_count <= 0:
            # The last worker is gone; Locust stops, but stays until --run-time is over.
            gevent.spawn(self._runner.quit)

    def _quit(self, environment: Environment, **_: Any) -> None:
        self._leader.stop()
        self._finish()
        if self._leader.course is not None and environment.process_exit_code is None:
            environment.process_exit_code = self._leader.exit_code()
        if getattr(environment.parsed_options, "csv_prefix", None):
            # Locust writes its CSV files once a second, and not once more at the end.
            gevent.sleep(stats.CSV_STATS_INTERVAL_SEC + 0.1)

    def _show(self, **_: Any) -> None:
        lines, self._shown = self._shown, []
        for line in lines:
            print(line, flush=True)

    def _over(self, why: str) -> None:
        logger.info("%s", why)
        gevent.spawn(self._end_run, self._leader.course)

    def _end_run(self, course: Course | None) -> None:
        if self._leader.course is not course or course is None or course.ending:
            return
        options = self._environment.parsed_options
        if self._headless:
            self._runner.quit()
            return
        self._runner.stop()
        quit_after_s = getattr(options, "autoquit", -1)
        if getattr(options, "autostart", False) and quit_after_s != -1:
            gevent.sleep(quit_after_s)
            self._runner.quit()
            assert self._environment.web_ui is not None, "not headless"
            self._environment.web_ui.stop()

"""The run as a whole: asked of the server, dealt out to the fleet, gathered on disk, ended, summed up, judged."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gevent
import msgspec
from gevent.event import Event
from locust.env import Environment

from exporters import quality
from exporters.compare import Comparison
from exporters.run import REQUESTS
from exporters.run_store import RunStore
from locustfiles import against, engine_page, report_file, users_asked
from locustfiles.cache_check import CacheCheck
from locustfiles.dealing import cut_of
from locustfiles.discovery import Api, Server, ServerTokens, discover, server_url
from locustfiles.fleet import Fleet
from locustfiles.messages import Assignment, Introduction, Report
from locustfiles.metrics_page import MetricsPage
from locustfiles.rate_control import RateControl, no_rate
from locustfiles.record_share import thin
from locustfiles.run_facts import (
    LAUNCH_CONFIG,
    Sums,
    clock_of,
    facts_at_start,
    identity,
    notes_of,
    sent_in_all,
    window_of_schedule,
)
from locustfiles.settings import FRESH, ApiKey, Settings, chosen, fresh_salt, fresh_seed, read_settings
from tailgate.exits import BadInput, Exit, worst
from tailgate.objectives import sources_of
from workloads import Plan, calibrate_for, make_plan

logger = logging.getLogger(__name__)

# A schedule's first requests must not be late before every worker has heard that it began.
_LEAD_S = 1.0
_LONGEST_SPACING_S = 1.0
_SPACING_UNDER_A_SHAPE_S = 0.02


@dataclass
class Course:
    """One run from its start to its end."""

    run_id: str
    settings: Settings
    store: RunStore
    start_ns: int
    stop_ns: int | None = None
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)
    sums: dict[str, Sums] = field(default_factory=dict)
    plan: Plan | None = None
    rates: RateControl | None = None
    cache: CacheCheck | None = None
    watcher: gevent.Greenlet | None = None
    user_watcher: gevent.Greenlet | None = None
    ending: bool = False
    broken: bool = False
    ended: Event = field(default_factory=Event)
    summary: dict[str, Any] | None = None
    finished: Event = field(default_factory=Event)
    comparison: Comparison | None = None
    thresholds: list[str] = field(default_factory=list)
    codes: list[Exit] = field(default_factory=list)


class Leader:
    """Leads one run after the other; `on_over` is called, with the reason, when there is none to go on."""

    def __init__(self, environment: Environment, key: ApiKey, on_over: Callable[[str], None]) -> None:
        self._environment = environment
        self._key = key
        self._on_over = on_over
        self.fleet: Fleet
        self.metrics = MetricsPage()
        self.course: Course | None = None

    def begin(self) -> None:
        """Starts a run with the options as they stand now. Raises `BadInput`."""
        options = self._environment.parsed_options
        settings = read_settings(chosen(options))
        against.check(settings.baseline, settings.save_baseline)
        api, server = ask_server(settings, self._host(), self._key)
        seed = fresh_seed() if settings.seed is None else settings.seed
        salt = fresh_salt() if settings.salt == FRESH else settings.salt
        baseline = against.baseline_runs(settings.baseline) if settings.baseline else ()
        plan = make_plan(
            settings.workload,
            seed=seed,
            model=server.model,
            counter=calibrate_for(settings.workload, _counter(settings, api, server), settings.trace),
            salt=salt,
            trace=settings.trace,
            time_scale=settings.time_scale,
            arrival=settings.arrival,
            extra_body=settings.extra_body,
            stream=settings.stream,
            usage_per_chunk=server.engine.reports_usage_per_chunk,
            max_model_len=server.longest,
        )
        run_id = uuid.uuid4().hex
        users = getattr(options, "num_users", None) or 1
        meta = {"run_id": run_id, **facts_at_start(settings, users, server, seed, salt, plan)}
        store = RunStore.create(self._directory(settings), meta)
        if store.earlier:
            logger.warning("an earlier run in %s was moved to %s", store.directory, store.earlier)
        course = Course(run_id, settings, store, start_ns=0, plan=plan)
        if plan.schedule is not None:
            course.rates = RateControl(
                plan.schedule, settings.arrival, lambda at, rate: self._set_pace(course, at, rate)
            )
        self.course = course
        self._environment.stop_timeout = settings.drain_s
        try:
            crew = self.fleet.enlist(self._assignments(course, server, seed, salt, plan))
        except BadInput:
            store.close()
            self.course = None
            raise
        self._say(settings, server, seed, crew, store)
        course.start_ns = time.time_ns() + (int(_LEAD_S * 1e9) if settings.arrival.open else 0)
        for name, member in crew.items():
            course.workers[name] = identity(member)
        window = {"start_ns": course.start_ns + int(settings.warmup_s * 1e9), "end_ns": None}
        _note(store, workers=course.workers, clock=clock_of(crew), window=window, notes=notes_of(crew))
        if server.has_metrics and not os.environ.get(LAUNCH_CONFIG):
            course.watcher = engine_page.watch(api, lambda sample: self._keep_engine(store, sample))
        course.cache = CacheCheck(api) if server.has_metrics else None
        self.metrics.begin(store.meta, store.directory, crew, lambda: self.fleet.lost, baseline)
        self.fleet.start(run_id, course.start_ns, cut_of(plan, settings.num_requests, course.start_ns))
        runner = self._environment.runner
        assert runner is not None, "there is one while a run begins"
        if course.rates is not None:
            course.rates.begin(course.start_ns)
            if settings.arrival.rate_per_user:
                course.rates.follow(lambda: runner.user_count)
        else:
            course.user_watcher = users_asked.watch(
                runner, users, course.start_ns, lambda changes: _note(store, user_changes=changes)
            )

    def take(self, report: Report) -> None:
        """A worker's report, each once."""
        course = self.course
        if course is None or report.run_id != course.run_id or course.summary is not None:
            return
        course.store.append_lines(report.lines)
        if course.store.fault and not course.broken:
            course.broken = True
            if not course.ending:
                self._on_over("the run ends here, for its records cannot be kept; free space, or name other --results")
        self.metrics.observe(report)
        known = course.workers.setdefault(report.worker, {})
        known.update({k: v for k, v in msgspec.to_builtins(report.health).items() if v is not None})
        course.sums[report.worker] = Sums(report.bodies_count, int(report.bodies_sum, 16), int(report.schedule_sum, 16))
        if report.done and not course.ending and self.fleet.all_done():
            self._on_over("all requests have been sent and answered")

    def _keep_engine(self, store: RunStore, sample: dict[str, Any]) -> None:
        store.append_engine(sample)
        self.metrics.see_engine(sample)

    def stop(self) -> None:
        """Ends sending, drains, gathers the last reports; whoever calls while that goes on waits for its end."""
        course = self.course
        if course is None or course.start_ns == 0:
            return
        if not course.ending:
            course.ending = True
            course.stop_ns = time.time_ns()
            if course.rates is not None:
                course.rates.end()
            self.fleet.stop(course.run_id, course.settings.drain_s, course.stop_ns)
            for watcher in (course.watcher, course.user_watcher):
                if watcher is not None:
                    watcher.kill()
            course.ended.set()
        course.ended.wait()

    def hurry(self) -> None:
        """Ends a drain at once."""
        course = self.course
        if course is not None and course.ending and not course.ended.is_set():
            self.fleet.hurry(course.run_id)

    def finish(self) -> Course | None:
        """Sums the run up, once; None where there is none, or it was summed up before, or is meanwhile."""
        course = self.course
        if course is None or course.start_ns == 0 or course.summary is not None:
            if course is not None and course.summary is not None:
                course.finished.wait()
            return None
        self.stop()
        if course.summary is not None:
            # Somebody else waited for the same end.
            course.finished.wait()
            return None
        store, stop_ns = course.store, course.stop_ns or time.time_ns()
        window_start = min(course.start_ns + int(course.settings.warmup_s * 1e9), stop_ns)
        for name, why in self.fleet.lost.items():
            course.workers.setdefault(name, {})["lost"] = why
            logger.error("%s", quality.lost_worker(name, why))
        try:
            store.update_meta(
                window={"start_ns": window_start, "end_ns": stop_ns},
                workers=course.workers,
                sent=sent_in_all(course.sums.values()),
                master=self.fleet.strain.facts() if self.fleet.strain else None,
                **self._kept(course, window_start, stop_ns),
            )
            summary = course.summary = store.finish()
            course.codes = _codes(summary)
            self._judge(course)
            self.metrics.end(summary, course.comparison)
            if course.settings.report:
                gate = course.settings.gate
                report_file.write(store.directory, course.settings.baseline, gate.text if gate else None)
            thin(store.directory, course.settings.records.share)
        except OSError as error:
            mend = "free space, then run: python -m exporters recover"
            logger.error("%s: %s; %s %s", error.filename or store.directory, error.strerror, mend, store.directory)
            course.summary = course.summary or {}
            course.codes.append(Exit.BAD_INPUT)
        finally:
            # Where summing up failed its files are open yet, and locked: nobody could recover the run.
            store.close()
            course.finished.set()
        return course

    def change_rate(self, rate: float) -> None:
        """Another rate for the rest of the current run: requests/s, or a trace's pace. Raises `BadInput`."""
        course = self.course
        if course is None or course.start_ns == 0 or course.ending:
            raise BadInput("there is no run whose rate could be changed", "start one")
        if course.rates is None:
            raise BadInput("this run is a closed loop", "change its number of users, or start one with --request-rate")
        course.rates.change(rate)

    def rate_state(self) -> dict[str, Any]:
        """What a person sees of the current run's rate, as `RateControl.state` says it."""
        course = self.course
        if course is None or course.start_ns == 0 or course.ending:
            return no_rate("There is no run")
        return course.rates.state() if course.rates else no_rate("The run is a closed loop: its users set the rate")

    def _set_pace(self, course: Course, at_s: float, rate: float) -> None:
        self.fleet.change_rate(course.run_id, at_s, rate)
        _note(course.store, rate_changes=course.rates.changes if course.rates else [])

    def _kept(self, course: Course, start_ns: int, end_ns: int) -> dict[str, Any]:
        """What run.json says of the engine's cache, and of how the schedule was kept in open loop."""
        assert course.plan is not None, "made before the run began"
        records = course.store.directory / REQUESTS
        kept: dict[str, Any] = {"prefix_cache": course.cache.end(course.plan, records) if course.cache else None}
        if course.plan.schedule is None:
            return kept
        found = window_of_schedule(
            course.plan.schedule, course.start_ns, (start_ns, end_ns), course.settings.num_requests
        )
        redeals = [{"from_index": index, "workers": count} for index, count in self.fleet.redeals]
        return kept | {"schedule": {**course.store.meta["schedule"], **found, "redeals": redeals}}

    def exit_code(self) -> Exit:
        """The exit code of the last run that was summed up."""
        return worst(self.course.codes) if self.course is not None else Exit.GOOD

    def _judge(self, course: Course) -> None:
        """Compares with a baseline and becomes one, where that was asked for; a fault there spoils no run."""
        settings, directory = course.settings, course.store.directory
        try:
            if settings.baseline:
                course.comparison = against.compare_with(settings.baseline, directory, settings.gate)
                course.codes.append(course.comparison.exit_code)
            elif settings.gate:
                codes, course.thresholds = against.hold_alone(settings.gate, directory)
                course.codes += codes
            if settings.save_baseline:
                logger.info("baseline saved: %s", against.keep_as(settings.save_baseline, directory))
        except BadInput as error:
            logger.error("%s", error)
            course.codes.append(Exit.NOT_VALID)

    def _host(self) -> str | None:
        classes = self._environment.user_classes
        return self._environment.host or next((item.host for item in classes if item.host), None)

    def _directory(self, settings: Settings) -> Path:
        if settings.results is not None:
            return settings.results.absolute()
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        parts = [stamp, settings.workload.name, *([settings.label] if settings.label else [])]
        return (Path("results") / "-".join(parts)).absolute()

    def _spacing_s(self) -> float:
        """Between the first requests of two users of the fleet: Locust spawns a second's users all at once."""
        rate = getattr(self._environment.parsed_options, "spawn_rate", None)
        shaped = self._environment.shape_class is not None
        return _SPACING_UNDER_A_SHAPE_S if shaped else 1.0 / float(rate or 1.0)

    def _assignments(
        self, course: Course, server: Server, seed: int, salt: str, plan: Plan
    ) -> Callable[[int, int, bool], Assignment]:
        options = chosen(self._environment.parsed_options)
        spacing_s = self._spacing_s()
        workload, calibration = course.settings.workload.resolved(), plan.calibration.to_dict()

        def make(slot: int, slots: int, guest: bool) -> Assignment:
            return Assignment(
                run_id=course.run_id,
                directory=str(course.store.directory),
                worker=f"worker-{slot}",
                slot=slot,
                slots=slots,
                guest=guest,
                url=server.url,
                model=server.model,
                seed=seed,
                salt=salt,
                options=options,
                workload=workload,
                calibration=calibration,
                usage_per_chunk=server.engine.reports_usage_per_chunk,
                longest=server.longest,
                spacing_s=min(slots * spacing_s, _LONGEST_SPACING_S),
                sent_ns=time.time_ns(),
                live=self.metrics.shown,
                rate_changes=tuple(course.rates.changes) if course.rates else (),
            )

        return make

    def _say(
        self, settings: Settings, server: Server, seed: int, crew: dict[str, Introduction], store: RunStore
    ) -> None:
        engine = server.engine
        who = f"{engine.name or 'unknown engine'} {engine.version or ''}".strip()
        logger.info(
            "%s: %s, seed %d, model %s on %s at %s%s",
            settings.workload.name,
            settings.arrival.text(),
            seed,
            server.model,
            who,
            server.url,
            " - SIMULATED" if engine.simulated else "",
        )
        for note in (*notes_of(crew), *sources_of(settings.slo or "")):
            logger.info("%s", note)
        logger.info("run directory: %s", store.directory)


def ask_server(settings: Settings, host: str | None, key: ApiKey) -> tuple[Api, Server]:
    """The server at `host` as it describes itself, and a way to ask it more. Raises `BadInput`."""
    api = Api(server_url(host), settings.tls, key.headers())
    return api, discover(api, settings.model, settings.workload.models)


def _note(store: RunStore, **facts: Any) -> None:
    """Adds to run.json. What a full disk does not take now stands in what is written at the end, or that fails too."""
    with contextlib.suppress(OSError):
        store.update_meta(**facts)


def _counter(settings: Settings, api: Api, server: Server) -> Any:
    """Who counts tokens: the file that was named, else the server, else nobody (words)."""
    if settings.tokenizer:
        from workloads.tokenizer_file import TokenizerFile

        return TokenizerFile(settings.tokenizer)
    return ServerTokens.of(api, server.model)


def _codes(summary: dict[str, Any]) -> list[Exit]:
    codes = []
    if not summary["valid"]:
        codes.append(Exit.NOT_VALID)
    if any(objective["met"] is False for objective in summary["objectives"]):
        codes.append(Exit.REGRESSION)
    if summary["requests"]["failed"]:
        codes.append(Exit.REQUESTS_FAILED)
    return codes

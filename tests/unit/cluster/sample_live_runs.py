"""A hand-made live run: a job that was resized, one that crashed, one that was given up, one that still ran."""

from __future__ import annotations

from xbench.records import Environment, LiveResult, LiveRun, LiveSpan

ENVIRONMENT = Environment(
    hostname="cpu-box", cpu="AMD EPYC 7B13", cores=2, memory_bytes=8 * 1024**3, python="3.11.7", torch="2.15.0+cu132",
    device="cpu", device_count=0, xbench="0.1.0", commit="0123456789abcdef", facts={"kernel": "6.1"},
)  # fmt: skip


def job(name: str, **values: object) -> LiveResult:
    given: dict[str, object] = {
        "name": name, "workload": "synthetic:layers=20,bytes=256k", "steps": 1200, "batch_size": 16, "arrival_s": 0.0,
        "gpus": 1, "least": 1, "most": None, "status": "finished", "restarts": 0,
    }  # fmt: skip
    return LiveResult.model_validate(given | values)


def span(name: str, slots: list[int], from_s: float, to_s: float | None, how: str, steps: float = 0.0) -> LiveSpan:
    return LiveSpan.model_validate(
        {"job": name, "slots": slots, "from_s": from_s, "trained_s": from_s + 3.25, "to_s": to_s,
         "from_steps": steps, "to_steps": steps + 200, "how": how}
    )  # fmt: skip


def live_run() -> LiveRun:
    return LiveRun(
        created="2026-03-01T12:00:00+00:00", command="xbench cluster run jobs.toml --policy doubling", xbench="0.1.0",
        complete=False, error="it was interrupted", policy="doubling", engine="local", slots=2,
        believed_restart_s=10.0, overhead_s=4.375, retries=1, resumed=1, environment=ENVIRONMENT,
        jobs=[
            job("long", began_s=0.0, finished_s=63.5, jct_s=63.5, forecast_jct_s=88.9, forecast_error=0.4,
                simulated_jct_s=60.0, error=60.0 / 63.5 - 1, restarts=2, simulated_restarts=2,
                speeds={1: 61.25, 2: 83.5}),
            job("shaky", arrival_s=8.0, began_s=9.5, finished_s=30.0, jct_s=22.0, forecast_jct_s=19.8,
                forecast_error=-0.1, simulated_jct_s=23.0, error=23.0 / 22.0 - 1, restarts=1,
                simulated_restarts=0, crashes=1, lost_steps=37, speeds={1: 59.0}),
            job("broken", arrival_s=9.0, status="failed", reason="it failed 2 times, at last: rank 0: boom",
                began_s=31.0, forecast_jct_s=12.5, restarts=1, crashes=2),
            job("late", arrival_s=60.0, status="unfinished", began_s=61.0),
        ],
        findings=[
            "2 of 4 jobs finished under doubling; the mean job completion time is 42.8 s.",
            "Given up: broken.",
            "Forecast from declared speeds and starts of 10.0 s, completion times are off by 25.0 % on average, by "
            "40.0 % at most (long).",
            "Simulated again with what the run itself measured, they are within 10 % of the live ones: off by 5.0 % on "
            "average, by 5.5 % at most (long).",
        ],
        warnings=["the run was resumed once, of which the simulation knows nothing"],
        spans=[
            span("long", [0, 1], 0.0, 8.5, "stopped"), span("long", [0], 8.5, 33.0, "stopped", 200),
            span("shaky", [1], 9.5, 15.0, "failed"), span("shaky", [1], 15.0, 30.0, "finished", 200),
            span("broken", [1], 31.0, 32.0, "failed"), span("late", [0, 1], 61.0, None, "running"),
        ],
    )  # fmt: skip

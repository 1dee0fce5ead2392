"""The worker pool against graders that hang, die, raise and eat memory."""

import math
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import pytest
from process_ends import alive, wait_for_end

from fade_jax.outcomes import group_outcomes
from paced_jax.verifiers import Verdicts, WorkerPool, why_none

GRADER = "hostile_grader:grade"


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(GRADER, workers=2, limit=2.0, memory_bytes=2**28) as pool:
        yield pool


def parent(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


@pytest.mark.parametrize(
    ("response", "verdict", "reason"),
    [
        ("4", 1, "compared"),
        ("5", 0, "compared"),
        ("none", -1, "unparsed"),
        ("hang", -1, "timeout"),
        ("sleep 60", -1, "timeout"),
        ("stop", -1, "timeout"),
        ("exit", -1, "died"),
        ("crash", -1, "died"),
        ("raise", -1, "error: KeyError"),
    ],
)
def test_each_fate_of_a_worker_is_its_own_verdict(pool, response, verdict, reason):
    got = pool.verify([response], ["4"])
    assert (got.verdict.tolist(), got.reason) == ([verdict], (reason,))
    assert got.verdict.dtype == np.int8
    # The pool is whole again: one worker more than it has would be needed to miss this.
    assert pool.verify(["4"] * 9, ["4"] * 9).verdict.tolist() == [1] * 9


def test_a_memory_hog_is_ended_by_its_limit_on_memory():
    with WorkerPool(GRADER, workers=1, limit=60.0, memory_bytes=2**28) as patient:
        got = patient.verify(["eat"], ["4"])
        assert (got.verdict.tolist(), got.reason) == ([-1], ("memory",))
        assert patient.verify(["4"], ["4"]).verdict.tolist() == [1]


def test_rows_keep_their_places_among_failures(pool):
    responses = ["4", "exit", "5", "raise", "4", "sleep 30", "none", "4"]
    got = pool.verify(responses, ["4"] * 8)
    assert got.verdict.tolist() == [1, -1, 0, -1, 1, -1, -1, 1]
    assert why_none(got) == {"died": 1, "error: KeyError": 1, "timeout": 1, "unparsed": 1}


def test_none_is_neither_a_success_nor_a_trial(pool):
    """Field report 56: [1, error, 0, timeout] is 1 of 2, not 1 of 4."""
    got = pool.verify(["4", "raise", "5", "hang"], ["4"] * 4)
    outcomes = group_outcomes(jnp.array(got.verdict), jnp.zeros(4, jnp.int32), 1)
    assert [float(x[0]) for x in outcomes[:3]] == [1.0, 2.0, 2.0]
    got = pool.verify(["raise"] * 4, ["4"] * 4)
    outcomes = group_outcomes(jnp.array(got.verdict), jnp.zeros(4, jnp.int32), 1)
    assert [float(x[0]) for x in outcomes[:3]] == [0.0, 0.0, 4.0]
    assert bool(outcomes.degenerate[0])


def hostile_burst(pool, responses, golds, limit, workers):
    """Checks limits, places and size of the pool over a burst; returns the verdicts.

    Of three bursts one must be in time: a machine with other work gives nobody a promise.
    """
    pool.verify(["warm"] * workers * 4, ["9"] * workers * 4)
    most = math.ceil(len(responses) / workers) * (limit + 1)
    late = []
    for _ in range(3):
        started = time.monotonic()
        got = pool.verify(responses, golds)
        total = time.monotonic() - started
        assert len(got.reason) == len(responses)
        if got.seconds.max() <= limit + 1 and total <= most:
            return got
        late.append((got.seconds.max(), total))
    raise AssertionError(f"late thrice: {late}")


def test_fifty_hanging_inputs_at_once_come_back_in_time_and_leave_the_pool_whole():
    """Field report 46: within limit + 1 s of its own start each; none lost, none kept."""
    limit, workers = 0.5, 3
    with WorkerPool(GRADER, workers=workers, limit=limit) as pool:
        before = {*pool.verify(["pid"] * 50, [""] * 50).reason}
        got = hostile_burst(pool, ["hang"] * 50, ["9"] * 50, limit, workers)
        assert got.reason == ("timeout",) * 50 and (got.verdict == -1).all()
        # Slow enough that every worker takes part.
        pids = pool.verify(["sleep .2"] * workers, [""] * workers).reason
        assert pids == ("compared",) * workers
        after = pool.pids()
        assert len(set(after)) == workers
        assert not {str(pid) for pid in after} & before
        assert not any(alive(int(pid)) for pid in before)
    assert not any(alive(pid) for pid in after)


def test_callers_on_many_threads_share_the_workers(pool):
    def caller(number):
        rows = [str(number)] * 10 + ["exit"]
        return pool.verify(rows, [str(number)] * 11).verdict.tolist()

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(caller, range(8))) == [[1] * 10 + [-1]] * 8


def test_a_worker_that_is_killed_while_idle_costs_no_item_its_verdict(pool):
    pool.verify(["sleep .2"] * 2, [""] * 2)
    before = pool.pids()
    assert len(before) == 2
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    wait_for_end(before)
    assert pool.verify(["4"] * 6, ["4"] * 6).verdict.tolist() == [1] * 6
    assert set(pool.pids()).isdisjoint(before)


def test_a_lost_template_is_replaced(pool):
    template = parent(int(pool.verify(["pid"], [""]).reason[0]))
    workers = pool.pids()
    os.kill(template, signal.SIGKILL)
    wait_for_end([template, *workers])  # whose signal comes as the template ends
    assert pool.verify(["4"] * 6, ["4"] * 6).verdict.tolist() == [1] * 6
    assert {parent(pid) for pid in pool.pids()}.isdisjoint({template, os.getpid()})


def test_closing_waits_for_items_in_progress_and_ends_every_process():
    pool = WorkerPool(GRADER, workers=2, limit=20.0)
    results: list[Verdicts] = []
    working = threading.Thread(
        target=lambda: results.append(pool.verify(["sleep 1"] * 2, ["x"] * 2))
    )
    pool.verify(["sleep .5"] * 2, ["x"] * 2)
    assert len(pool.pids()) == 2
    working.start()
    while pool.pids():  # until both are in use
        time.sleep(0.01)
    pool.close()
    working.join()
    assert results[0].verdict.tolist() == [0, 0]
    with pytest.raises(RuntimeError):
        pool.verify(["4"], ["4"])
    pool.close()


def test_a_pool_outlives_the_thread_that_made_it():
    with ThreadPoolExecutor(1) as thread:
        pool = thread.submit(lambda: WorkerPool(GRADER, workers=2, limit=20.0)).result()
    with pool:
        first = pool.verify(["pid"], [""])
        assert first.verdict.tolist() == [1]
        template = parent(int(first.reason[0]))
        time.sleep(0.2)
        assert pool.verify(["4"] * 4, ["4"] * 4).verdict.tolist() == [1] * 4
        assert {parent(pid) for pid in pool.pids()} == {template}


def test_large_texts_pass(pool):
    text = "x" * 3_000_000
    got = pool.verify([text, "y\n\ud800"], [text, "y\n\ud800"])
    assert (got.verdict.tolist(), got.reason) == ([1, 1], ("compared",) * 2), got.seconds


def test_bad_arguments_are_refused_by_name(pool):
    with pytest.raises(ValueError, match="workers: must be positive, got 0"):
        WorkerPool(GRADER, workers=0)
    with pytest.raises(ValueError, match="limit: must be positive, got -1"):
        WorkerPool(GRADER, limit=-1.0)
    with pytest.raises(ValueError, match="golds: must be as many as responses, 2, got 1"):
        pool.verify(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="grader: 'no_such_module:grade' does not load"):
        WorkerPool("no_such_module:grade")
    assert os.getpid() not in pool.pids()

"""Forks: all of torch works in them, they have the modes of the calling thread, and waiting for them has a limit."""

import os
import subprocess
import sys
import textwrap
import time
from multiprocessing import Pipe

import pytest
import torch
from reference.bounded import bounded

from dpfed.forks import Fork, ended


def answer_of(call):
    here, there = Pipe(duplex=False)
    process = Fork(lambda: there.send(call()))
    there.close()
    with bounded(seconds=60):
        found = here.recv()
    assert ended(process, seconds=60) == 0
    return found


def test_a_fork_has_the_modes_of_the_calling_thread():
    with torch.no_grad():
        assert answer_of(torch.is_grad_enabled) is False
    with torch.inference_mode():
        assert answer_of(torch.is_inference_mode_enabled) is True
    assert answer_of(lambda: (torch.is_grad_enabled(), torch.get_num_threads())) == (True, torch.get_num_threads())


def test_a_fork_that_does_not_end_is_killed():
    began = time.monotonic()
    assert ended(Fork(lambda: time.sleep(600)), seconds=0.1) == -9
    assert time.monotonic() - began < 30


def test_the_exit_status_of_a_fork(capfd):
    assert ended(Fork(lambda: os._exit(3)), seconds=60) == 3
    assert ended(Fork(lambda: 1 / 0), seconds=60) == 1
    assert "ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Fork", "multiprocessing"])
def test_a_replay_can_use_every_thread_of_torch_after_training_in_the_same_process(kind):
    """The planted fault: a fork by multiprocessing from the thread that has used OpenMP waits for ever."""
    planted = """
        import multiprocessing
        from dpfed.audit.replays import audit
        def forked(call):
            process = multiprocessing.get_context("fork").Process(target=call)
            process.start(), process.join(20)
            print("killed" if process.is_alive() else "ended")
            process.kill()
            return 1
        audit._status_of_process = forked
    """
    code = """
        import torch, dpfed
        torch.set_num_threads(2)
        def work():
            return float(torch.ones(4_000_000).exp().sum())
        work()
        def call(data, out):
            work()
            noisy = dpfed.audit.mechanism(lambda x: x + torch.randn(400_000), sensitivity=1.0, std=1.0)
            noisy(torch.zeros(400_000))
        print(dpfed.audit.replay(call, pairs=1))
    """
    code = textwrap.dedent(code if kind == "Fork" else planted + code)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert ("inconclusive" if kind == "Fork" else "killed") in done.stdout, done.stderr

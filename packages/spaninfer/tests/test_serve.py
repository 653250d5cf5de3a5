"""A server whose engine fails or hangs, as its clients and its supervisor see it."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.client import HTTPException
from time import monotonic, sleep

import pytest

pytestmark = pytest.mark.slow
LIMIT_S = 120  # only ends a test that has failed

PROGRAM = """
import os, signal, sys, time
from dataclasses import replace
from pathlib import Path
from spaninfer_serving import end_with

trouble, told, control, *arguments = sys.argv[1:]
if control:
    end_with(int(control))

from spaninfer import cli
from spaninfer.process import run

class Troubled:
    def __init__(self, runner):
        self._runner = runner

    def __getattr__(self, name):
        return getattr(self._runner, name)

    def start(self, plan):
        if plan.number == 3 and trouble and not Path(told).exists():
            Path(told).touch()  # a process that is started anew does better
            if trouble == "hangs":
                print("hangs", file=sys.stderr, flush=True)
                time.sleep(1e6)
            if trouble == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("a secret of the device")
        return self._runner.start(plan)

loaded = cli._loaded

def troubled(*given):
    parts = loaded(*given)
    return replace(parts, runner=Troubled(parts.runner))

cli._loaded = troubled
serve = ["serve", "--port", "0", "--backend", "reference", *arguments]
run(serve, control=int(control) if control else None)
"""

SUPERVISOR = """
import sys
from spaninfer_serving.supervisor.supervisor import supervise
program, trouble, told, _, *arguments = sys.argv[1:]
begin = [sys.executable, "-c", program, trouble, told]
sys.exit(supervise(lambda control: [*begin, control, *arguments]))
"""


class Served:
    """A server whose third step is the last of its engine's process."""

    def __init__(self, process):
        self.process, self.printed = process, ""
        self._reading = threading.Thread(target=self._read)
        self._reading.start()
        self.url = self.wait_for(r"playground\s+(http://\S+?)/?\s")[1]

    def _read(self):
        for line in self.process.stderr:
            self.printed += line

    def wait_for(self, pattern):
        """Wait for what the process prints."""
        give_up_s = monotonic() + LIMIT_S
        while not (found := re.search(pattern, self.printed)):
            assert monotonic() < give_up_s, self.printed
            assert self.process.poll() is None, self.printed
            sleep(0.01)
        return found

    def ask(self, path, body=None):
        """Return the status and the JSON body of an answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            return refused.code, json.load(refused)

    def text(self, path, body=None):
        """Return the body of an answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return answer.read().decode()

    def end(self, number=signal.SIGTERM):
        """Send a signal, and return the code with which the process ends."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self):
        """Return the code with which the process ends."""
        code = self.process.wait(LIMIT_S)
        self._reading.join(LIMIT_S)
        assert not self._reading.is_alive(), "a process below it still has its standard error"
        return code


@contextmanager
def served(tmp_path, *arguments, trouble="", supervised=False):
    given = [trouble, str(tmp_path / "told"), "", *arguments]
    program = ["-c", SUPERVISOR, PROGRAM] if supervised else ["-c", PROGRAM]
    process = subprocess.Popen(
        [sys.executable, *program, *given],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "200"},
    )
    try:
        yield Served(process)
    finally:
        process.kill()
        process.wait()


ASKED = {"prompt": "Once", "max_tokens": 9, "ignore_eos": True}


EACH_WAY = pytest.mark.parametrize("api_servers", ["0", "1"])  # in one process, and in two


@EACH_WAY
def test_a_model_that_is_served_under_several_names_answers_to_each(tmp_path, api_servers):
    names = ("--served-model-name", "fables", "--served-model-name", "gpt-4o-mini")

    with served(tmp_path, "--api-server-count", api_servers, *names) as server:
        assert "(model: fables, gpt-4o-mini)" in server.wait_for(r"OpenAI API .*")[0]
        listed = server.ask("/v1/models")[1]["data"]
        answers = [
            server.ask("/v1/completions", {"prompt": "Once", "max_tokens": 1} | asked)[1]["model"]
            for asked in ({}, {"model": "gpt-4o-mini"})
        ]
        assert server.end() == 0

    assert [each["id"] for each in listed] == ["fables", "gpt-4o-mini"]
    assert answers == ["fables", "gpt-4o-mini"]


@EACH_WAY
def test_a_server_whose_engine_failed_answers_and_ends(tmp_path, api_servers):
    with served(tmp_path, "--api-server-count", api_servers, trouble="raises") as server:
        status, body = server.ask("/v1/completions", ASKED)
        code = server.ended()

    assert status == 500
    assert "secret" not in json.dumps(body)
    assert "a secret of the device" in server.printed
    assert code == 1


@EACH_WAY
def test_a_step_that_hangs_is_noticed_and_every_waiting_request_is_answered(tmp_path, api_servers):
    arguments = ("--step-timeout", "0.5", "--api-server-count", api_servers)
    with served(tmp_path, *arguments, trouble="hangs") as server:
        status, body = server.ask("/v1/completions", ASKED)
        code = server.ended()

    assert status == 503
    assert "within 0.5 s" in body["error"]["message"]
    assert server.printed.count("stack traces of all threads") == 1
    assert "in start" in server.printed
    assert code == 1


STREAMED = {**ASKED, "stream": True}
CONNECTIONS = 4  # of clients that ask for one answer after the other


def answers(server, num, results):
    """Ask until `num` requests have been answered; note the statuses, "cut" and 0 for no answer."""
    left = num
    while left:
        try:
            status, _ = server.ask("/v1/completions", ASKED)
        except (OSError, HTTPException):
            status = "cut"
        results.append(status)
        left -= status == 200
        if status != 200:
            sleep(0.1)


@EACH_WAY
@pytest.mark.parametrize("trouble", ["raises", "hangs", "is killed"])
def test_behind_a_crash_another_process_answers_at_the_same_address(tmp_path, api_servers, trouble):
    arguments = ("--step-timeout", "2", "--api-server-count", api_servers)
    with served(tmp_path, *arguments, trouble=trouble, supervised=True) as server:
        results = []
        clients = [
            threading.Thread(target=answers, args=(server, 2, results)) for _ in range(CONNECTIONS)
        ]
        for client in clients:
            client.start()
        server.wait_for("starting another one")
        live, _ = server.ask("/health/live")
        for client in clients:
            client.join()
        ready, _ = server.ask("/health/ready")
        restarts = re.search(r"engine_restarts_total (\d\S*)", server.text("/metrics"))
        code = server.end()

    assert (live, ready) == (200, 200)
    assert float(restarts[1]) == 1
    assert results.count(200) == 2 * CONNECTIONS
    refused = {"raises": {500, 503}, "hangs": {503}, "is killed": {503}}[trouble]
    alone = {"cut"} if api_servers == "0" else set()  # with the engine's process, its connections
    assert set(results) - {200} <= refused | alone
    assert len(results) > 2 * CONNECTIONS
    assert server.printed.count("starting another one (restart 1 of at most 3") == 1
    assert code == 0


def test_streams_of_an_engine_that_is_killed_end_with_an_error_and_done(tmp_path):
    arguments = ("--api-server-count", "1")
    with served(tmp_path, *arguments, trouble="is killed", supervised=True) as server:
        said = server.text("/v1/completions", STREAMED)
        server.wait_for("was ended by SIGKILL; starting another one")
        code = server.end()

    assert "the engine's process has ended" in said
    assert said.endswith("data: [DONE]\n\n")
    assert code in (0, 143), server.printed  # 143: the signal came while the next one loaded


def test_where_the_supervisor_is_killed_everything_below_it_ends(tmp_path):
    with served(tmp_path, "--api-server-count", "1", supervised=True) as server:
        server.end(signal.SIGKILL)  # waits until nobody has its standard error any more


@EACH_WAY
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_ends_a_server_whose_step_hangs(tmp_path, number, api_servers):
    arguments = ("--drain", "0", "--api-server-count", api_servers)
    with served(tmp_path, *arguments, trouble="hangs") as server:
        asking = threading.Thread(target=server.ask, args=("/v1/completions", ASKED))
        asking.start()
        server.wait_for("hangs")
        code = server.end(number)
        asking.join()

    assert code == 1


def test_where_the_engine_s_process_is_killed_api_servers_say_so_and_end(tmp_path):
    asked = {**ASKED, "max_tokens": 4000, "stream": True}
    with served(tmp_path, "--api-server-count", "1") as server:
        request = urllib.request.Request(
            server.url + "/v1/completions",
            json.dumps(asked).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            assert answer.readline().startswith(b"data: {")
            server.end(signal.SIGKILL)  # waits until nobody has its standard error any more
            rest = answer.read()
    assert b"the engine's process has ended" in rest
    assert rest.endswith(b"data: [DONE]\n\n")

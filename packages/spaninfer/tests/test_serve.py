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
from time import monotonic, sleep

import pytest

pytestmark = pytest.mark.slow
LIMIT_S = 120  # only ends a test that has failed

PROGRAM = """
import sys, time
from dataclasses import replace
from spaninfer import cli

class Troubled:
    def __init__(self, runner):
        self._runner = runner

    def __getattr__(self, name):
        return getattr(self._runner, name)

    def start(self, plan):
        if plan.number == 3 and {hangs} is not None:
            if {hangs}:
                print("hangs", file=sys.stderr, flush=True)
                time.sleep(1e6)
            raise RuntimeError("a secret of the device")
        return self._runner.start(plan)

loaded = cli._loaded

def troubled(*given):
    parts = loaded(*given)
    return replace(parts, runner=Troubled(parts.runner))

cli._loaded = troubled
cli.app(["serve", "--port", "0", "--backend", "reference", *{arguments}])
"""


class Served:
    """A process whose third step is its last."""

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

    def end(self, number=signal.SIGTERM):
        """Send a signal, and return the code with which the process ends."""
        self.process.send_signal(number)
        code = self.process.wait(LIMIT_S)
        self._reading.join()
        return code


@contextmanager
def served(*arguments, hangs):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(arguments=arguments, hangs=hangs)],
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
def test_a_model_that_is_served_under_several_names_answers_to_each(api_servers):
    names = ("--served-model-name", "fables", "--served-model-name", "gpt-4o-mini")

    with served("--api-server-count", api_servers, *names, hangs=None) as server:
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
def test_a_server_whose_engine_failed_says_so_to_probes_clients_and_its_supervisor(api_servers):
    with served("--api-server-count", api_servers, hangs=False) as server:
        first, _ = server.ask("/v1/completions", ASKED)
        second, body = server.ask("/v1/completions", ASKED)
        live, ready = server.ask("/health/live"), server.ask("/health/ready")
        code = server.end()

    assert (first, second, live[0], ready[0]) == (500, 503, 503, 503)
    assert "secret" not in json.dumps([body, live, ready])
    assert body["error"]["message"].startswith("the engine has failed")
    assert "a secret of the device" in server.printed
    assert code == 1


@EACH_WAY
def test_a_step_that_hangs_is_noticed_and_whoever_waits_is_answered(api_servers):
    arguments = ("--step-timeout", "0.5", "--api-server-count", api_servers)
    with served(*arguments, hangs=True) as server:
        first, body = server.ask("/v1/completions", ASKED)
        second, _ = server.ask("/v1/completions", ASKED)
        live, _ = server.ask("/health/live")
        code = server.end()

    assert (first, second, live) == (503, 503, 503)
    assert "within 0.5 s" in body["error"]["message"]
    assert server.printed.count("what every thread is doing") == 1
    assert "in start" in server.printed
    assert code == 1


@EACH_WAY
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_ends_a_server_whose_step_hangs(number, api_servers):
    with served("--drain", "0", "--api-server-count", api_servers, hangs=True) as server:
        asking = threading.Thread(target=server.ask, args=("/v1/completions", ASKED))
        asking.start()
        server.wait_for("hangs")
        code = server.end(number)
        asking.join()

    assert code == 1


def test_where_the_engine_s_process_is_killed_api_servers_say_so_and_end():
    asked = {**ASKED, "max_tokens": 4000, "stream": True}
    with served("--api-server-count", "1", hangs=None) as server:
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

"""The supervisor, around processes that listen, answer and exit on command."""

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest
import trustme

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no supervisor there")
LIMIT_S = 120  # only ends a test that has failed

# Each line of the script is what one process does in its turn: a code to end with before it is
# ready or behind that, "serve" until it is killed, "wait" in front of being ready, "deaf", which
# no signal reaches, in front of that, or "drain": closes its address when a signal comes, and ends
# later.
PROCESS = """
import os, signal, socket, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from spaninfer_serving.supervisor.messages import FromEngine, ToEngine, receive, send

folder, certificate, form, control = Path(sys.argv[1]), sys.argv[2] or None, *sys.argv[3:]
control = socket.socket(fileno=int(control))
told, listener = receive(control, ToEngine)
todo = (folder / "script").read_text().splitlines()[told.num_restarts]
print("turn", told.num_restarts, os.getpid(), flush=True)
what, _, code = todo.partition(" ")
if what == "fail":
    sys.exit(int(code)) if int(code) >= 0 else os.kill(os.getpid(), -int(code))
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN if what == "deaf" else lambda *_: sys.exit(int(code or 0)))
own = listener
if own is None:
    own = socket.create_server(("127.0.0.1", 0))
    send(control, FromEngine(form, 0.1, certificate, None), own)
def drain(*_):
    own.close()
    print("drains", flush=True)
    while not (folder / "go").exists():
        time.sleep(0.01)
    sys.exit(0)

if what == "drain":
    signal.signal(signal.SIGTERM, drain)
print("listens", flush=True)
while what in ("wait", "deaf") and not (folder / "go").exists():
    time.sleep(0.01)
send(control, FromEngine(form, 0.1, certificate, None, True), None)
print("ready", own.getsockname()[1], flush=True)
if what == "end":
    sys.exit(int(code))

class Answer(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(told.num_restarts).encode())

own.setblocking(False)  # for the supervisor too, which may be accepting at the same time
server = HTTPServer(("127.0.0.1", 0), Answer, bind_and_activate=False)
server.socket.close()
server.socket = own
server.serve_forever()
"""

SUPERVISOR = """
import sys
from spaninfer_serving.supervisor import supervisor
supervisor.PAUSE_S, supervisor.END_S = 0.01, float(sys.argv[1])
program = [sys.executable, "-c", *sys.argv[2:]]
sys.exit(supervisor.supervise(lambda control: [*program, control]))
"""


class Supervised:
    """A supervisor's process, and what it and the processes below it have said."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process, self.folder, self.said, self.errors = process, folder, "", ""
        self._reading = [
            threading.Thread(target=self._read, args=(process.stdout, "said")),
            threading.Thread(target=self._read, args=(process.stderr, "errors")),
        ]
        for reading in self._reading:
            reading.start()

    def _read(self, stream: Iterator[str], name: str) -> None:
        for line in stream:
            setattr(self, name, getattr(self, name) + line)

    def wait_for(self, pattern: str) -> re.Match[str]:
        give_up_s = monotonic() + LIMIT_S
        while not (found := re.search(pattern, self.said)):
            assert monotonic() < give_up_s, self.said + self.errors
            sleep(0.01)
        return found

    def go(self) -> None:
        (self.folder / "go").touch()

    def ended(self) -> int:
        """Return the exit code, when nobody holds the standard streams any more."""
        code = self.process.wait(LIMIT_S)
        for reading in self._reading:
            reading.join(LIMIT_S)
            assert not reading.is_alive(), "a process is left"
        return code

    def ask(self, path: str, method: str = "GET", body: bytes | None = None):
        port = int(self.wait_for(r"ready (\d+)")[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers


Start = Callable[..., Supervised]


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Start]:
    """What starts a supervisor whose processes follow a script, one line each."""
    started = []

    def start(
        *script: str, form: str = "text", certificate: str = "", end_s: float = LIMIT_S
    ) -> Supervised:
        (tmp_path / "script").write_text("\n".join(script))
        given = (SUPERVISOR, str(end_s), PROCESS, str(tmp_path), certificate, form)
        process = subprocess.Popen(
            [sys.executable, "-c", *given],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return Supervised(process, tmp_path)

    yield start
    for process in started:
        process.terminate()  # and what is below it
        process.wait(LIMIT_S)


def test_a_first_start_that_fails_is_no_crash(supervised: Start) -> None:
    server = supervised("fail 2")

    assert server.ended() == 2
    assert server.errors == ""


def test_a_first_start_that_is_killed_is_told(supervised: Start) -> None:
    server = supervised("fail -9")

    assert server.ended() == 128 + signal.SIGKILL
    assert server.errors == (
        "error: the engine's process was ended by SIGKILL before it answered requests; where that "
        "was for lack of memory, the system's log says so\n"
    )


def test_a_server_that_ends_in_order_is_not_restarted(supervised: Start) -> None:
    server = supervised("end 0")

    assert server.ended() == 0
    assert server.errors == ""


def test_another_process_takes_over_the_address_and_says_so_in_a_line(supervised: Start) -> None:
    server = supervised("serve", "serve")
    first = int(server.wait_for(r"turn 0 (\d+)")[1])
    assert server.ask("/")[:2] == (200, b"0")

    os.kill(first, signal.SIGKILL)
    server.wait_for("turn 1")
    server.wait_for("ready.*\n(.*\n)*ready")

    assert server.ask("/")[:2] == (200, b"1")
    server.process.terminate()
    assert server.ended() == 0
    assert server.errors == (
        "error: the engine's process was ended by SIGKILL; starting another one "
        "(restart 1 of at most 3 within 300 s)\n"
    )


def test_while_a_process_starts_requests_are_refused_and_probes_are_answered(
    supervised: Start,
) -> None:
    server = supervised("end 3", "wait")
    server.wait_for("turn 1")

    status, body, headers = server.ask("/v1/completions", "POST", b"x" * (1 << 20))
    assert status == 503
    assert json.loads(body)["error"]["code"] == "restarting"
    assert 1 <= int(headers["Retry-After"]) <= 10
    assert server.ask("/health/live")[0] == 200
    assert server.ask("/health/ready")[0] == server.ask("/health?a=b")[0] == 503
    assert server.ask("/health/ready", "HEAD")[:2] == (503, b"")
    server.go()
    server.wait_for("ready.*\n(.*\n)*ready")
    assert server.ask("/health/ready")[:2] == (200, b"1")
    server.process.terminate()
    assert server.ended() == 0


def test_behind_tls_requests_are_refused_over_tls(supervised: Start, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        tmp_path / "chain.pem"
    )
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    server = supervised("end 3", "wait", certificate=str(tmp_path / "chain.pem"))
    server.wait_for("turn 1")

    port = int(server.wait_for(r"ready (\d+)")[1])
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=LIMIT_S, context=trusting)
    connection.request("POST", "/v1/completions", b"x" * (1 << 20))
    answer = connection.getresponse()

    assert answer.status == 503
    assert json.loads(answer.read())["error"]["code"] == "restarting"
    server.process.terminate()
    assert server.ended() in (0, 143)


def test_a_certificate_that_is_gone_does_not_keep_the_next_process_from_starting(
    supervised: Start, tmp_path: Path
) -> None:
    server = supervised("end 3", "end 0", certificate=str(tmp_path / "gone.pem"))

    assert server.ended() == 0
    assert "error: requests wait for the engine's process and get no 503: --ssl" in server.errors


def test_a_client_that_says_nothing_does_not_delay_the_next_process(supervised: Start) -> None:
    server = supervised("end 3", "wait")
    server.wait_for("turn 1")
    port = int(server.wait_for(r"ready (\d+)")[1])
    with socket.create_connection(("127.0.0.1", port)) as silent:
        silent.sendall(b"GET / HT")
        assert server.ask("/health/live")[0] == 200
        server.go()
        server.wait_for("ready.*\n(.*\n)*ready")
        assert server.ask("/")[0] == 200
    server.process.terminate()
    assert server.ended() == 0


def test_a_server_that_crashes_again_and_again_ends(supervised: Start) -> None:
    server = supervised("end 3", "fail 1", "end 7", "end 3", "serve")

    assert server.ended() == 1
    assert server.said.count("turn") == 4
    assert server.errors.splitlines()[-1] == (
        "error: the engine's process ended with code 3; it was restarted 3 times within 300 s, "
        "so the server ends"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_below_and_its_code_is_the_server_s(
    supervised: Start, number: int
) -> None:
    server = supervised("serve 5")
    server.wait_for("ready")

    server.process.send_signal(number)

    assert server.ended() == 5
    assert server.said.count("turn") == 1


def refuses(port: int) -> bool:
    """Return True if nothing listens there; raises TimeoutError if nobody accepts."""
    try:
        socket.create_connection(("127.0.0.1", port), 5.0).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize(("script", "turn"), [(["drain"], 0), (["end 3", "drain"], 1)])
def test_while_a_process_drains_new_connections_are_refused(
    supervised: Start, script: list[str], turn: int
) -> None:
    server = supervised(*script)
    server.wait_for(f"turn {turn}[^$]*?ready")
    port = int(server.wait_for(r"ready (\d+)")[1])

    server.process.terminate()
    server.wait_for("drains")

    for _ in range(200):  # the supervisor sends the signal before it closes its listener
        if refuses(port):
            break
        sleep(0.01)
    assert refuses(port)
    server.go()
    assert server.ended() == 0


def test_a_process_that_ends_before_it_has_heard_anything_is_a_failed_start() -> None:
    program = "import sys; from spaninfer_serving.supervisor.supervisor import supervise; " + (
        "sys.exit(supervise(lambda control: [sys.executable, '-c', 'import os; os._exit(4)']))"
    )

    assert subprocess.run([sys.executable, "-c", program], timeout=LIMIT_S).returncode == 4


def test_a_signal_ends_a_server_between_two_processes(supervised: Start) -> None:
    server = supervised("end 3", "wait 143")
    server.wait_for("turn 1")

    server.process.terminate()

    assert server.ended() == 143
    assert server.said.count("turn") == 2


@pytest.mark.parametrize(("script", "turn"), [(["deaf"], 0), (["end 3", "deaf"], 1)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_no_signal_reaches_is_killed(
    supervised: Start, script: list[str], turn: int, number: int
) -> None:
    server = supervised(*script, end_s=0.2)
    server.wait_for(f"turn {turn}")
    if turn:
        assert server.ask("/health/live")[0] == 200  # the first has given its address
    else:
        server.wait_for("listens")

    server.process.send_signal(number)

    assert server.ended() == 128 + signal.SIGKILL
    assert re.fullmatch(  # the first may listen before it is known how long it drains
        r"error: the engine's process did not end within (0.2 s, 0|0.3 s, 0.1) of them to drain; "
        "it is killed: where it reads from a disk that does not answer, check that",
        server.errors.splitlines()[-1],
    )


def test_a_log_of_json_stays_one(supervised: Start) -> None:
    server = supervised("end 3", "end 0", form="json")

    assert server.ended() == 0
    said = json.loads(server.errors)
    assert said["level"] == "error"
    assert "ended with code 3" in said["message"]

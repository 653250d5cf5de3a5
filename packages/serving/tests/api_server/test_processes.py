"""API server processes among the system's others."""

import os

from spaninfer_serving import Settings, bind
from spaninfer_serving.api_server.processes import ApiServerProcesses


def test_an_api_server_shares_the_engine_s_session_but_no_terminal_s_interrupts():
    settings = Settings(port=0, api_servers=1)
    with bind(settings) as listener:
        processes = ApiServerProcesses(settings, listener)
        process, end = processes.take()
        session, group = os.getsid(process.pid), os.getpgid(process.pid)
        end.close()  # it ends
        processes.close()
        code = process.wait(120)

    assert session == os.getsid(0)
    assert group == process.pid
    assert code == 1  # in the middle of its imports: behind them it would be 0

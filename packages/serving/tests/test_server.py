import asyncio
import re

import pytest
from spaninfer_serving import Settings
from spaninfer_serving.server import Server


@pytest.mark.parametrize(("turns", "told"), [(1, []), (9, ["requests still running: 1;"])])
def test_a_request_that_ends_as_the_server_stops_is_not_told_as_running(
    engine, caplog, turns, told
):
    """Its last turn of the event loop is over, and what waits for its end has not been called."""
    server = Server(engine, Settings(port=0, drain_s=0), lambda: None)
    server.lifespan, server.servers = server.config.lifespan_class(server.config), []

    async def answer():
        for _ in range(turns - 1):
            await asyncio.sleep(0)

    async def stop():
        tasks = server.server_state.tasks
        tasks.add(task := asyncio.ensure_future(answer()))
        task.add_done_callback(tasks.discard)
        await asyncio.sleep(0)
        await server.shutdown()

    asyncio.run(stop())

    said = " ".join(each.message for each in caplog.records if "serving" in each.name)
    assert re.findall(r"requests still running: \d+;", said) == told

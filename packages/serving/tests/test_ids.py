import os
import re

import pytest
from spaninfer_serving.ids import new_hex


def test_ids_have_as_many_digits_as_asked_for_and_differ():
    found = {new_hex(24) for _ in range(1000)}

    assert len(found) == 1000
    assert all(re.fullmatch("[0-9a-f]{24}", each) for each in found)
    assert len(new_hex()) == 32


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_gives_ids_of_its_own():
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, new_hex().encode())
        os._exit(0)
    os.waitpid(child, 0)
    given = os.read(reading, 64).decode()
    os.close(reading)
    os.close(writing)

    assert given != new_hex()

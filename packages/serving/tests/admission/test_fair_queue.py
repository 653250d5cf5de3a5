import pytest
from spaninfer_serving.admission.fair_queue import Client, FairQueue

ANN, BOB = Client("ann", "1"), Client("bob", "1")


def drained(queue):
    return [queue.take() for _ in range(len(queue))]


def filled(*entries):
    queue = FairQueue()
    for client, cost, item in entries:
        queue.put(client, cost, item)
    return queue


def test_items_of_one_client_come_in_their_order_whatever_they_cost():
    assert drained(filled((ANN, 9, "a"), (ANN, 1, "b"), (ANN, 5, "c"))) == ["a", "b", "c"]


def test_a_client_with_much_to_do_lets_others_in_between():
    queue = filled(*[(ANN, 5, f"a{i}") for i in range(4)], (BOB, 5, "b0"), (BOB, 5, "b1"))

    assert drained(queue) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_what_is_cheap_overtakes_what_is_expensive_of_others():
    assert drained(filled((ANN, 1000, "long"), (BOB, 1, "short"))) == ["short", "long"]


def test_nobody_waits_for_ever_behind_what_is_cheap():
    queue = filled((ANN, 10, "long"))
    taken = []
    for number in range(20):  # as many as are taken come anew
        queue.put(BOB, 1, number)
        taken.append(queue.take())

    assert taken.index("long") == 9  # its end and that of the tenth are one, and it was first


def test_an_account_gains_nothing_by_many_connections():
    queue = filled(*[(Client("ann", f"{i}"), 5, f"a{i}") for i in range(9)], (BOB, 5, "b0"))

    assert drained(queue).index("b0") == 1


def test_connections_of_an_account_share_equally():
    first, second = Client("ann", "1"), Client("ann", "2")
    queue = filled(*[(first, 5, f"f{i}") for i in range(3)], (second, 5, "s0"), (second, 5, "s1"))

    assert drained(queue) == ["f0", "s0", "f1", "s1", "f2"]


def test_a_client_that_was_idle_has_saved_up_nothing():
    queue = FairQueue()
    for number in range(50):
        queue.put(ANN, 5, number)
    for _ in range(40):
        queue.take()
    for number in range(20):
        queue.put(BOB, 5, f"b{number}")

    taken = [str(queue.take()) for _ in range(10)]
    assert 4 <= sum(item.startswith("b") for item in taken) <= 6


def test_an_empty_queue_has_no_next_item():
    queue = filled((ANN, 1, "a"))
    queue.take()

    assert len(queue) == 0
    with pytest.raises(IndexError):
        queue.take()

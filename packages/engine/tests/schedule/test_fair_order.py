from spaninfer_engine.schedule.fair_order import FairOrder
from spaninfer_engine.schedule.policy import LATEST_S


def test_who_sends_one_stands_in_front_of_who_sent_many_before():
    order = FairOrder()
    many = [order.take("many", 300, 10.0) for _ in range(100)]
    one = order.take("one", 300, 10.5)

    assert many == sorted(many)
    assert sum(fair_start_s < one for fair_start_s in many) < 20


def test_requests_of_one_client_keep_their_order_and_all_come_within_a_minute():
    order = FairOrder()
    taken = [order.take("only", 5000, 10.0) for _ in range(1000)]

    assert taken == sorted(taken)
    assert taken[-1] == 10.0 + LATEST_S


def test_who_sends_seldom_is_never_put_off():
    order = FairOrder()

    assert [order.take("calm", 100, now) for now in (1.0, 2.0, 3.0)] == [1.0, 2.0, 3.0]


def test_clients_whose_turns_are_over_are_forgotten():
    order = FairOrder()
    for number in range(5000):
        order.take(f"client {number}", 10, float(number))

    assert len(order._last_s) <= 1100

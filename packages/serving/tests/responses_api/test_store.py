from contextlib import suppress

import pytest
from spaninfer_serving.responses_api.store import ResponseStore, StoredResponse
from spaninfer_serving.wire.chat import Message
from spaninfer_serving.wire.errors import Problem


def stored(num_bytes=10, text=""):
    return StoredResponse(b"x" * num_bytes, (Message(role="user", content=text),) if text else ())


def names_of(store, account, names):
    found = []
    for name in names:
        with suppress(Problem):
            store.get(account, name)
            found.append(name)
    return found


def test_the_oldest_are_forgotten_where_there_are_too_many():
    store = ResponseStore(max_responses=2, max_bytes=1000)

    for name in "abc":
        store.put("key", name, stored())

    assert names_of(store, "key", "abc") == ["b", "c"]
    assert (len(store), store.num_bytes) == (2, 20)


def test_the_account_with_the_most_bytes_makes_room():
    store = ResponseStore(max_responses=100, max_bytes=1000)
    store.put("small", "a", stored(100))

    for number in range(20):
        store.put("large", f"b{number}", stored(200))

    assert names_of(store, "small", ["a"]) == ["a"]
    assert names_of(store, "large", ["b15", "b16", "b19"]) == ["b16", "b19"]
    assert store.num_bytes <= 1000


def weight_of(*conversations):
    store = ResponseStore(max_responses=9, max_bytes=1 << 30)
    for number, conversation in enumerate(conversations):
        store.put("key", str(number), StoredResponse(b"", tuple(conversation)))
    return store.num_bytes


def asked(content):
    return Message(role="user", content=content)


def with_picture(num_bytes):
    url = f"data:image/png;base64,{'A' * num_bytes}"
    return asked([{"type": "image_url", "image_url": {"url": url}}])


def test_a_conversation_counts_as_what_it_holds():
    assert weight_of([asked("ü" * 5000)]) - weight_of([asked("x")]) == 9999
    assert weight_of([with_picture(7000)]) - weight_of([with_picture(1000)]) == 6000


def test_what_turns_share_counts_once_and_until_the_last_of_them_is_forgotten():
    shown = with_picture(9000)
    turns = [shown], [shown, asked("a")], [shown, asked("a"), asked("b")]
    assert weight_of(*turns) < 1.5 * weight_of([shown])
    store = ResponseStore(max_responses=9, max_bytes=1 << 30)
    for number, turn in enumerate(turns):
        store.put("key", str(number), StoredResponse(b"", tuple(turn)))

    left = [store.delete("key", str(number)) or store.num_bytes for number in range(3)]

    assert left[0] > left[1] > 9000
    assert left[2] == 0


def test_what_alone_is_too_large_is_not_kept_and_pushes_out_what_its_account_has():
    store = ResponseStore(max_responses=9, max_bytes=1000)
    store.put("other", "a", stored(10))

    store.put("key", "b", stored(2000))

    assert names_of(store, "key", "b") == []
    assert names_of(store, "other", "a") == ["a"]


def test_nothing_is_kept_where_nothing_may_be():
    store = ResponseStore(max_responses=0, max_bytes=1000)

    store.put("key", "a", stored())

    assert (len(store), store.is_open) == (0, False)


def test_deleting_gives_the_bytes_back_and_finds_no_response_of_others():
    store = ResponseStore(max_responses=9, max_bytes=1000)
    store.put("key", "a", stored())

    with pytest.raises(Problem, match="there is no response 'a' of this key"):
        store.delete("other", "a")
    store.delete("key", "a")

    assert (len(store), store.num_bytes) == (0, 0)

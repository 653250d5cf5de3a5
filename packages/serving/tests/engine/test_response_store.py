from contextlib import suppress

import pytest
from spaninfer_serving.engine.response_store import ResponseStore, StoredResponse
from spaninfer_serving.wire.chat import Message
from spaninfer_serving.wire.errors import Problem


def stored(num_bytes=10, text=""):
    messages = [Message(role="user", content=text)] if text else []
    return StoredResponse.new(b"x" * num_bytes, messages)


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
        store.put("key", str(number), StoredResponse.new(b"", conversation))
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
        store.put("key", str(number), StoredResponse.new(b"", turn))

    left = [store.delete("key", str(number)) or store.num_bytes for number in range(3)]

    assert left[0] == left[1] > 9000  # the third has all that the second had
    assert left[2] == 0


def test_a_conversation_comes_back_as_it_was():
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    turns = [
        Message(role="system", content="ü"),
        with_picture(100),
        Message(role="assistant", content="", tool_calls=[call], reasoning_content="hm"),
        Message(role="tool", content="found", tool_call_id="c"),
    ]
    assert StoredResponse.new(b"", turns).messages() == turns


def test_a_message_of_several_conversations_is_there_once():
    store = ResponseStore(max_responses=9, max_bytes=1 << 30)
    for name in "ab":  # as it comes from other processes: equal, and not the same
        store.put("key", name, StoredResponse.new(b"", [asked("a" * 1000)]))
    first, second = (store.get("key", name).conversation[0] for name in "ab")
    assert first is second


def test_what_would_take_more_than_a_quarter_of_all_is_not_kept():
    store = ResponseStore(max_responses=9, max_bytes=1000)
    store.put("key", "a", stored(250))

    store.put("key", "b", stored(251))

    assert names_of(store, "key", "ab") == ["a"]


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

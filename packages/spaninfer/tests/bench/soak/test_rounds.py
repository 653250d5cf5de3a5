import json
from collections import Counter

from spaninfer.bench.compare import compare
from spaninfer.bench.records import circumstances, read
from spaninfer.bench.soak.client import Tally
from spaninfer.bench.soak.ordinary import Waits
from spaninfer.bench.soak.rounds import Phase, Round, records, verdict


def phase(first_s, *, answered=10, attacks=None, peak_mib=300.0, own=True):
    tally = Tally(answered, Counter({"200": answered}))
    waits = Waits([first_s] * 4, [3 * first_s] * 4, [first_s / 10] * (4 if own else 0), tally)
    cpus = {"server": 0.5, "clients": 0.1}
    if attacks:
        cpus["attackers"] = 0.2
    return Phase(5.0, waits, cpus, attacks or {}, peak_mib)


def soaked(*firsts, **options):
    """Return the records of rounds, whose clients wait so long alone, and twice that attacked."""
    attacks = {"bursts": Tally(20, Counter({"200": 15, "429": 5})).summary()}
    rounds = [
        Round(
            phase(first, own=options.get("own", True)),
            phase(2 * first, attacks=attacks, **options),
            {"spans": 0.0},
            310.0,
        )
        for first in firsts
    ]
    return list(records(rounds, {"model": "demo"}))


def find(found, **about):
    [record] = [each for each in found if about.items() <= each.items()]
    return record


def test_what_clients_wait_is_in_milliseconds_by_round_and_the_ratio_is_of_one_round():
    found = soaked(0.1, 0.3)

    about = {"what": "first token", "at": "p50", "phase": "attacked"}
    assert find(found, **about, unit="ms")["runs"] == [200.0, 600.0]
    assert find(found, **about, unit="of alone")["runs"] == [2.0, 2.0]


def test_what_clients_waited_for_a_cpu_of_their_own_is_told_apart():
    found = soaked(0.1, 0.3)

    about = {"what": "first token, client without a CPU", "at": "p99", "phase": "attacked"}
    assert find(found, **about)["runs"] == [20.0, 60.0]
    assert not [each for each in soaked(0.1, own=False) if "client without" in each["what"]]


def test_counts_are_sums_and_rates_are_per_second():
    found = soaked(0.1, 0.3)

    answered = find(found, what="ordinary requests", phase="attacked")
    assert (answered["median"], answered["unit"]) == (2.0, "requests/s")
    assert (answered["requests"]["answered"], answered["held"]) == (20, {"spans": 0.0})
    burst = find(found, what="bursts")
    assert (burst["median"], burst["requests"]["refused"]) == (4.0, 10)


def test_a_system_that_tells_no_memory_leaves_it_out():
    assert not [each for each in soaked(0.1, peak_mib=None) if each.get("phase") == "attacked"
                and each["unit"] == "MiB"]  # fmt: skip


def test_a_soak_can_be_compared_with_another(tmp_path):
    paths = []
    for name, first in (("before", 0.2), ("after", 0.1)):
        path = tmp_path / f"{name}.jsonl"
        said = [each | circumstances("cpu") for each in soaked(first)]
        path.write_text("\n".join(map(json.dumps, said)))
        paths.append(path)

    found = compare(*map(read, paths))

    assert not found.only_before
    assert not found.only_after
    gains = {pair.after["what"]: pair.gain for pair in found.pairs if pair.after["unit"] == "ms"}
    own = "first token, client without a CPU"
    assert gains == {"first token": 2.0, "whole answer": 2.0, own: 2.0}


def test_a_soak_is_summed_up_over_clients_and_attackers():
    attacks = {"bursts": Tally(20, Counter({"200": 15, "429": 4, "lost": 1})).summary()}
    rounds = [
        Round(phase(0.1), phase(0.2, attacks=attacks), {"spans": 1.0, "running": 0.0}, rss)
        for rss in (310.0, 312.5)
    ]

    found = verdict(rounds)

    assert str(found) == (
        "requests: 80 sent, 70 answered, 8 refused, 0 failed, 0 cut, 2 lost, 0 left; "
        "spans leaked: 2; memory grew by 2.5 MiB"
    )
    assert not found.is_good
    assert verdict([Round(phase(0.1), phase(0.2), {"spans": 0.0}, None)]).is_good

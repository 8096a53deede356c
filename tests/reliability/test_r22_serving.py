"""R20, R22 to R26 (serving): slow clients, many streams, hang-ups, a flood, SIGTERM, and minutes of mixed load."""

from collections.abc import Iterator

import pytest
from reliability.serving_rows import (
    GOOD,
    check_flood,
    check_hang_ups,
    check_shutdown,
    check_slow_clients,
    check_streams,
    soak,
    tiny_server,
)
from serving.server import Running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        pytest.importorskip(package, reason="the extra `serve` is not installed")
    with tiny_server("--slots", "16", "--waiting", "256") as running:
        yield running


def test_streams_are_the_same_bits_alone_and_in_company(server: Running) -> None:
    found = check_streams(server, clients=16, seconds=3, seed=1)
    assert found["answers"] > 30 and found["other_tokens"] == found["other_bits"] == 0, found


def test_hang_ups_leave_nothing_in_the_process(server: Running) -> None:
    found = check_hang_ups(server, 40, 1)
    assert found["wrong"] == 0 and found["cancelled"] > 20 and found["grew"]["descriptors"] <= 1, found


@pytest.mark.full
@pytest.mark.timeout(400)
def test_r20_slow_clients(server: Running) -> None:
    found = check_slow_clients(server, dribblers=200, readers=50, seconds=30)
    print(f"R20: 200 dribblers and 50 who do not read: {found}")
    assert found["dribblers_closed_after"] < 13 and found["held_at_the_end"] <= 1
    assert found["p95_seconds"] < 2 * found["p95_alone_seconds"] + 0.02, found


@pytest.mark.full
@pytest.mark.timeout(600)
def test_r22_sixty_four_streams(server: Running) -> None:
    found = check_streams(server, clients=64, seconds=60, seed=22)
    print(f"R22: of 64 clients for 60 s: {found}")
    assert found["answers"] > 200 and found["other_tokens"] == found["other_bits"] == 0


@pytest.mark.full
def test_r22_control_without_the_mode_differs() -> None:
    with tiny_server("--slots", "16", "--waiting", "256", "--invariant", "off") as free:
        found = check_streams(free, clients=16, seconds=20, seed=22)
    print(f"R22 control, invariance off: {found}")
    assert found["other_bits"] > 0


@pytest.mark.full
@pytest.mark.timeout(400)
def test_r23_hang_ups(server: Running) -> None:
    found = check_hang_ups(server, 300, 23)
    print(f"R23: {found}")
    assert found["wrong"] == 0 and found["idle_after"] < 1 and found["cancelled"] > 200
    assert found["grew"]["descriptors"] <= 1 and found["grew"]["children"] == 0


@pytest.mark.full
@pytest.mark.timeout(400)
def test_r24_five_hundred_at_once() -> None:
    with tiny_server("--slots", "16", "--waiting", "32") as small:
        found = check_flood(small, 500, GOOD | {"max_tokens": 40})
    print(f"R24: of 500 at once: {found}")
    assert found["answered"] >= 48 and found["answered"] + found["refused"] == 500
    assert found["grew"]["megabytes"] < 100


@pytest.mark.full
@pytest.mark.timeout(900)
def test_r25_terminated_ten_times() -> None:
    found = []
    for number in range(10):
        with tiny_server("--slots", "16", key=None) as one:
            found.append(check_shutdown(one, streams=12, delay=number / 20))
    whole, slowest = sum(one["finished"] for one in found), max(one["seconds"] for one in found)
    print(f"R25: {whole} of 120 streams finished after 10 SIGTERMs, the slowest end took {slowest} s")
    assert whole == 120 and all(one["code"] == 0 and one["refused"] for one in found), found


@pytest.mark.full
@pytest.mark.timeout(600)
def test_r26_three_minutes_of_mixed_load(server: Running) -> None:
    found = soak(server, 3, 26)
    print(f"R26: {found}")
    assert "wrong" not in found and found["right"] > 100
    assert found["megabytes_per_minute"] < 1 and found["threads_apart"] == 0

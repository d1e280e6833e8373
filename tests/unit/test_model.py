"""Durations, sizes, startpoints, names and the partitioner: the values that people write."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stack.errors import BadInput
from stack.model.duration import format_duration, format_size, parse_duration_ms, parse_size_bytes
from stack.model.feed import MAX_NAME_LENGTH, key_subject, name_fault, value_subject
from stack.model.partitioner import murmur2, partition_of
from stack.model.startpoint import (
    AtOffset,
    AtOffsets,
    AtTime,
    Latest,
    Oldest,
    Startpoint,
    format_time,
    parse_startpoint,
    parse_time_ms,
)

NOW_MS = 1_772_366_400_000  # 2026-03-01T12:00Z
LARGEST = (1 << 63) - 1
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # years 1 to 9999


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("0s", 0),
        ("500ms", 500),
        ("10s", 10_000),
        ("5m", 300_000),
        ("24h", 86_400_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("0.25s", 250),
        ("1d2h3m4s5ms", 93_784_005),
        (f"{LARGEST}ms", LARGEST),
    ],
)
def test_a_duration_is_numbers_with_units(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize(
    "text",
    ["", "10", "s", "10 s", " 10s", "10s ", "-10s", "1e3s", "10S", "1,5h", "10y", "1h30", "forever", ".5s"],
)
def test_what_is_not_a_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadInput, match="is not a duration") as caught:
        parse_duration_ms(text)
    assert repr(text) in caught.value.message
    assert "1h30m" in caught.value.hint


@pytest.mark.parametrize("text", [f"{LARGEST + 1}ms", "9999999999999999999w", "9" * 400 + "s"])
def test_a_duration_beyond_64_bits_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_duration_ms(text)


@given(st.integers(0, LARGEST))
@example(LARGEST)
def test_durations_survive_writing_and_reading(duration_ms: int) -> None:
    assert parse_duration_ms(format_duration(duration_ms)) == duration_ms


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [(0, "0s"), (1, "1ms"), (90_000, "1m30s"), (86_400_000, "1d"), (604_800_000, "7d"), (3_600_001, "1h1ms")],
)
def test_a_duration_is_written_the_shortest_way(duration_ms: int, text: str) -> None:
    assert format_duration(duration_ms) == text


@given(st.text(alphabet="0123456789.msdhw- ", max_size=30) | st.text(max_size=20))
@example("9" * 5000 + "s")
@example("٣s")
def test_any_text_is_a_duration_or_bad_input(text: str) -> None:
    with contextlib.suppress(BadInput):
        assert 0 <= parse_duration_ms(text) <= LARGEST


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0B", 0),
        ("64B", 64),
        ("64KB", 65_536),
        ("512MB", 512 << 20),
        ("512mb", 512 << 20),
        ("2 GB", 2 << 30),
        (" 1.5GB ", 3 << 29),
        ("1TB", 1 << 40),
    ],
)
def test_a_size_is_a_number_and_a_unit(text: str, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "512", "MB", "512M", "-1MB", "1e3MB", "1MB2KB", "9" * 400 + "MB", "9999999TB"]
)
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_size_bytes(text)


@given(st.integers(0, LARGEST))
def test_sizes_in_bytes_survive_reading(size_bytes: int) -> None:
    assert parse_size_bytes(f"{size_bytes}B") == size_bytes


@given(st.integers(0, 1023), st.sampled_from(["KB", "MB", "GB", "TB"]))
def test_whole_sizes_survive_writing_and_reading(count: int, unit: str) -> None:
    size_bytes = parse_size_bytes(f"{count}{unit}")
    assert parse_size_bytes(format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KB"),
        (1536, "1.5 KB"),
        (10 << 10, "10 KB"),
        (512 << 20, "512 MB"),
        (1 << 40, "1.0 TB"),
        (1 << 50, "1024 TB"),
    ],
)
def test_a_size_is_written_with_the_unit_that_fits(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("text", "startpoint"),
    [
        ("oldest", Oldest()),
        (" latest ", Latest()),
        ("0", AtOffset(0)),
        ("120", AtOffset(120)),
        (str(LARGEST), AtOffset(LARGEST)),
        ("p0=120,p1=98", AtOffsets({0: 120, 1: 98})),
        ("p0=1, p11=2", AtOffsets({0: 1, 11: 2})),
        ("-10m", AtTime(NOW_MS - 600_000)),
        ("-1h30m", AtTime(NOW_MS - 5_400_000)),
        ("2026-03-01T12:00Z", AtTime(NOW_MS)),
        ("2026-03-01T12:00", AtTime(NOW_MS)),
        ("2026-03-01T13:00+01:00", AtTime(NOW_MS)),
        ("2026-03-01", AtTime(NOW_MS - 43_200_000)),
        ("2026-03-01T12:00:00.123Z", AtTime(NOW_MS + 123)),
        ("1969-12-31T23:59:59.999Z", AtTime(-1)),
    ],
)
def test_a_startpoint_is_read_as_people_write_it(text: str, startpoint: Startpoint) -> None:
    assert parse_startpoint(text, NOW_MS) == startpoint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a startpoint"),
        ("newest", "is not a startpoint"),
        ("2026-13-01", "is not a startpoint"),
        ("-10", "is not an age"),
        ("-", "is not an age"),
        ("-99999999999999w", "is not an age"),
        ("p0=", "is not partition=offset"),
        ("p0=1,", "is not partition=offset"),
        ("p0=1;p1=2", "is not partition=offset"),
        ("p0=-1", "is not partition=offset"),
        ("p0=1,p0=2", "partition 0 stands twice"),
        ("p0=1,p00=2", "partition 0 stands twice"),
        (str(LARGEST + 1), "larger than any offset"),
        (f"p0={LARGEST + 1}", "larger than any offset"),
    ],
)
def test_what_is_not_a_startpoint_is_refused_with_the_syntax(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        parse_startpoint(text, NOW_MS)
    assert "p0=120,p1=98" in caught.value.hint


@given(
    st.text(max_size=30)
    | st.text(alphabet="0123456789p=,-:+TZ.msh ", max_size=40)
    | st.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{2,8}[Z+-][0-9:]{0,5}", fullmatch=True)
)
@example("9" * 5000)
@example("p" + "9" * 5000 + "=1")
@example("p1=" + "9" * 5000)
@example("0001-01-01T00:00+23:59")
@example("9999-12-31T23:59:59.999999-23:59")
def test_any_text_is_a_startpoint_or_bad_input(text: str) -> None:
    try:
        point = parse_startpoint(text, NOW_MS)
    except BadInput:
        return
    match point:
        case AtOffset(offset):
            assert 0 <= offset <= LARGEST
        case AtOffsets(offsets):
            assert all(0 <= offset <= LARGEST for offset in offsets.values())
        case AtTime(timestamp_ms):
            assert -LARGEST <= timestamp_ms <= LARGEST


@given(st.integers(FIRST_MS, LAST_MS))
@example(LAST_MS)
@example(FIRST_MS)
@example(181_659_645_460_853)
def test_times_survive_writing_and_reading(timestamp_ms: int) -> None:
    assert parse_time_ms(format_time(timestamp_ms)) == timestamp_ms


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (NOW_MS + 7, "2026-03-01T12:00:00.007Z"),
        (LAST_MS + 1, "253402300800000 ms"),
        (FIRST_MS - 1, "-62135596800001 ms"),
        (LARGEST, f"{LARGEST} ms"),
    ],
)
def test_a_time_is_written_in_utc_or_else_as_its_number(timestamp_ms: int, text: str) -> None:
    assert format_time(timestamp_ms) == text


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "7",
        "page-views",
        "page.views",
        "page_views",
        "views.v",
        "v2",
        "a.version2",
        "dead",
        "x" * MAX_NAME_LENGTH,
    ],
)
def test_a_good_name_has_no_fault(name: str) -> None:
    assert name_fault(name) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "lower-case letters"),
        ("Page", "lower-case letters"),
        ("-a", "a letter or digit at both ends"),
        ("a.", "a letter or digit at both ends"),
        ("..", "a letter or digit at both ends"),
        ("_catalog", "a letter or digit at both ends"),
        ("a b", "lower-case letters"),
        ("a/b", "lower-case letters"),
        ("a\n", "lower-case letters"),
        ("é", "lower-case letters"),
        (
            "x" * (MAX_NAME_LENGTH + 1),
            f"it has {MAX_NAME_LENGTH + 1} characters, {MAX_NAME_LENGTH} are allowed",
        ),
        ("views.dead", "end in .dead"),
        ("views.changelog", "end in .changelog"),
        ("a.b.redrive", "end in .redrive"),
        ("a.b.redriven", "end in .redriven"),
        ("views.v2", "versions of a feed"),
        ("a.v1.v22", "versions of a feed"),
    ],
)
def test_a_bad_name_is_told_why(name: str, said: str) -> None:
    assert said in (name_fault(name) or "")


def test_subjects_are_named_after_the_feed() -> None:
    assert (value_subject("page-views"), key_subject("page-views")) == ("page-views-value", "page-views-key")


# From Kafka's own UtilsTest.testMurmur2.
KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("data", "signed"), KAFKA_VECTORS.items())
def test_murmur2_is_kafkas(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed & 0xFFFFFFFF


@given(st.binary(max_size=40), st.integers(1, 10_000))
def test_a_key_always_has_the_same_partition_among_those_there_are(key: bytes, partitions: int) -> None:
    place = partition_of(key, partitions)
    assert 0 <= place < partitions
    assert place == partition_of(bytes(key), partitions)


def test_partitions_come_from_the_positive_part_of_the_hash() -> None:
    # Kafka's toPositive drops the sign bit; abs() or the unsigned hash would choose other partitions.
    assert partition_of(b"21", 7) == (-973932308 & 0x7FFFFFFF) % 7
    assert partition_of(b"foobar", 1000) == (-790332482 & 0x7FFFFFFF) % 1000


def test_keys_spread_over_all_partitions() -> None:
    assert {partition_of(b"user-%d" % number, 8) for number in range(200)} == set(range(8))

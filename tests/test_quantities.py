"""How long and how large, against what a person would write."""

from __future__ import annotations

import pytest

from holdfast.quantities import byte_size, duration


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0000123, "12 µs"), (0.0034, "3.4 ms"), (0.25, "250 ms"), (1.234, "1.23 s"), (12.3, "12 s"), (119, "119 s"),
        (120, "2 min"), (659, "11 min"), (7169, "119 min"), (7171, "2 h 00 min"), (7500, "2 h 05 min"),
    ],
)  # fmt: skip
def test_a_duration_is_said_in_the_unit_people_use(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"), (999, "999 B"), (999.6, "1 kB"), (1000, "1 kB"), (78_400, "78.4 kB"), (999_499, "999 kB"),
        (999_500, "1 MB"), (4_200_000, "4.2 MB"), (96 * 10**9, "96 GB"), (2.5e21, "2,500 EB"),
    ],
)  # fmt: skip
def test_a_size_is_said_in_the_unit_people_use(count: float, words: str) -> None:
    assert byte_size(count) == words

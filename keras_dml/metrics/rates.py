"""False match rates: their checks, and how many pairs they allow and need."""

import math
from collections.abc import Iterable

from keras_dml._common.checks import check_number, items_of
from keras_dml._common.errors import argument_error

# Pairs per requested false match (the rule of three): with 3/p pairs and no false match among them,
# the rate is below p with a confidence of 95 %.
RULE_OF_THREE = 3


def pairs_needed(false_match_rate: float) -> int:
    """Return how many negative pairs a false match rate needs: 3 / rate, the rule of three.

    With fewer pairs, even a set without any false match would not show, with a confidence of 95 %,
    that the rate is met.

    Examples:
        >>> pairs_needed(1e-3)
        3000

    Raises:
        ValueError: The rate is not above 0 and below 1.

    Reference: ISO/IEC 19795-1:2021, annex B; Hanley and Lippman-Hand 1983, "If nothing goes wrong,
    is everything all right?".
    """
    rate = check_number("false_match_rate", false_match_rate, above=0, below=1)
    # Limited to the range of int64, which exceeds every set, because the quotient may be infinite.
    return math.ceil(min(RULE_OF_THREE / rate * (1 - 1e-12), 2.0**63))


def checked_rates(name: str, given: Iterable[float], least: int = 1) -> tuple[float, ...]:
    """Return the rates as a tuple, or raise `ValueError` unless each is above 0 and below 1."""
    rates = items_of(given)
    if rates is None or len(rates) < least:
        raise argument_error(name, "a list of at least one rate", given)
    return tuple(check_number(name, rate, above=0, below=1) for rate in rates)


def allowed(rate: float, pairs: int) -> int:
    """Return how many pairs may match. 1e-3 of 3,000 is 3, regardless of rounding."""
    return math.floor(rate * pairs * (1 + 1e-12))

"""A token is a function of its own row: not of neighbours, order, thread or what came before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tests.sampling.rows import random_row

SIZES = [5, 64, 100, 257, 5000]


def make_rows(num_rows: int) -> list:
    rng = np.random.default_rng(11)
    return [random_row(rng, int(rng.choice(SIZES))) for _ in range(num_rows)]


def test_a_row_gives_the_same_bits_alone_and_among_others_in_any_order():
    rows = make_rows(300)
    first = [repr(row.kernel()) for row in rows]
    again = {}
    for index in np.random.default_rng(12).permutation(len(rows)).tolist():
        again[index] = repr(rows[index].kernel())
    assert [again[index] for index in range(len(rows))] == first


def test_threads_do_not_disturb_each_other():
    rows = make_rows(200)
    alone = [repr(row.kernel()) for row in rows]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda row: repr(row.kernel()), rows))
    assert together == alone


def test_the_logits_are_not_written():
    for row in make_rows(50):
        before = row.logits.copy()
        row.logits.flags.writeable = False
        row.kernel()
        np.testing.assert_array_equal(row.logits, before)

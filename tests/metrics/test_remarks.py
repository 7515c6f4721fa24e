"""Warnings about measurements."""

from calmrl.metrics.measures import FEW, remarks, row
from calmrl.workflows.compare import plan


def test_good_numbers_need_no_remark():
    assert remarks([row("a->b", "nmse", 0.8, 90), row("95", "coverage", 94.0, 900), row("a->b", "R@1", 20, 90)]) == []


def test_imputation_worse_than_the_mean_is_named_by_direction():
    (said,) = remarks([row("a->b", "nmse", 1.24, 90), row("b->a", "nmse", 0.9, 90), row("a,c->b", "nmse", 1.9, 90)])
    assert "a->b (normalised error 1.24), a,c->b (1.90)" in said
    assert "b->a" not in said


def test_as_good_as_the_mean_is_no_fault():
    assert remarks([row("a->b", "nmse", 1.0, 90), row("a->b", "mse", 7.0, 90)]) == []
    (said,) = remarks([row("a->b", "nmse", 1.01, 90)])
    assert said.endswith("for a->b (normalised error 1.01): do not use these imputed vectors")


def test_intervals_that_do_not_cover():
    assert "hold 65 % of the true values: they are too narrow" in remarks([row("95", "coverage", 65.0, 900)])[0]
    assert "too wide" in remarks([row("95", "coverage", 99.5, 900)])[0]
    assert remarks([row("90", "coverage", 65.0, 900)]) == []  # the level that is judged is 95


def test_few_queries_say_what_one_hit_is_worth():
    (said,) = remarks([row("a->b", "R@1", 14.0, 7), row("b->a", "R@1", 14.0, 300), row("average", "R@1", 14.0, 14)])
    assert said == "few queries: a->b (7); with 7, one hit more or less moves R@1 by 14 points"


def test_evaluate_and_compare_call_the_same_numbers_of_queries_few():
    assert plan.FEW is FEW
    assert remarks([row("a->b", "R@1", 14.0, FEW)]) == []
    assert remarks([row("a->b", "R@1", 14.0, FEW - 1)]) != []

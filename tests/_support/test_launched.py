"""What is said when another process is lost, and what is not taken for that."""

from __future__ import annotations

import pytest

from calmrl._support.launched import _lost_is_said
from calmrl.errors import ProcessLost


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("[gloo/transport/pair.cc] Connection closed by peer", "another of the 3 processes has ended"),
        ("Timed out waiting 5000ms for recv", "another of the 3 processes did not answer in time"),
    ],
)
def test_a_lost_process_is_a_sentence(reason, sentence):
    with (
        pytest.raises(ProcessLost, match=f"{sentence}, so this one ends too; start again"),
        _lost_is_said(3, "start again"),
    ):
        raise RuntimeError(reason)


@pytest.mark.parametrize(("size", "reason"), [(3, "mat1 and mat2 cannot be multiplied"), (1, "gloo is not there")])
def test_other_errors_stay_as_they_are(size, reason):
    with pytest.raises(RuntimeError, match=reason) as caught, _lost_is_said(size, "start again"):
        raise RuntimeError(reason)
    assert type(caught.value) is RuntimeError

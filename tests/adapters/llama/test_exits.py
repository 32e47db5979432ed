"""Causes of an engine's end, for people."""

import pytest

from p2pmesh.adapters.llama.exits import describe_exit, last_line_of


@pytest.mark.parametrize(
    ("return_code", "words"),
    [
        (-4, ("SIGILL", "illegal instruction", "rebuild")),
        (-6, ("SIGABRT", "GGML_ASSERT(x) failed")),
        (-9, ("SIGKILL", "out of memory")),
        (-11, ("SIGSEGV",)),
        (-1, ("SIGHUP",)),
        (-99, ("signal 99",)),
        (3, ("status 3",)),
    ],
)
def test_a_cause_names_the_signal_and_what_to_do(return_code, words):
    text = describe_exit(return_code, "GGML_ASSERT(x) failed")
    assert "\n" not in text
    assert all(word in text for word in words)


def test_the_last_line_that_says_something():
    assert last_line_of(b"one\ntwo\n\n  \n") == "two"
    assert last_line_of(b"") == ""

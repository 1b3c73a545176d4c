"""What the dispatcher thread is asked for, in which order it comes."""

from app.runtime.commands import CommandQueue


def queue(commands="", executions=""):
    """One of commands that are called by single letters."""
    made = CommandQueue()
    for name in commands:
        made.put(name)
    for name in executions:
        made.put(name, executes=True)
    return made


def test_commands_come_all_at_once_in_their_order():
    made = queue("abc")
    assert made.take() == ("a", "b", "c")
    assert made.take() == ()
    assert not made


def test_between_two_executions_comes_a_turn_without():
    made = queue(executions="abc")
    assert [made.take() for _ in range(7)] == [("a",), (), ("b",), (), ("c",), (), ()]


def test_an_execution_that_comes_right_after_one_has_to_wait_too():
    made = queue(executions="a")
    assert made.take() == ("a",)
    made.put("b", executes=True)
    assert made.take() == ()
    assert made
    assert made.take() == ("b",)


def test_commands_do_not_wait_and_are_no_turn_for_others():
    made = queue("a", "bc")
    assert [made.take() for _ in range(2)] == [("a",), ("b",)]
    made.put("d")
    assert [made.take() for _ in range(3)] == [("d",), (), ("c",)]


def test_at_the_end_everything_is_left_to_run():
    made = queue("a", "bc")
    assert made.take_all() == ("a", "b", "c")
    assert not made

"""The two forms of log lines."""

import json
import logging
import sys

import pytest

from app.logs import JsonFormatter, TextFormatter, configure


@pytest.fixture
def untouched():
    """Give the root logger its handlers back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def record(message="an event", *args, facts=None, exc_info=None):
    made = logging.LogRecord("app.x", logging.WARNING, "x.py", 1, message, args, exc_info)
    if facts is not None:
        made.facts = facts
    return made


def test_text_is_one_line_with_the_facts_behind_the_message():
    line = TextFormatter().format(record("a %s", "thing", facts={"model": "m", "rows": 3, "why": "two words"}))
    assert line.endswith(' WARNING app.x: a thing model=m rows=3 why="two words"')


@pytest.mark.parametrize("evil", ["a\nWARNING fake", "a\r\nb", "\x1b[31mred", "a\x85b", "a\x00b"])
def test_nothing_that_comes_from_outside_makes_a_line_of_its_own_or_talks_to_the_terminal(evil):
    line = TextFormatter().format(record("said %s", evil, facts={"id": evil}))
    assert len(line.splitlines()) == 1
    assert all(character.isprintable() for character in line)
    assert len(JsonFormatter().format(record("said %s", evil, facts={"id": evil})).split("\n")) == 1


def test_json_is_one_object_with_time_level_logger_message_and_facts():
    line = json.loads(JsonFormatter().format(record("a %s", "thing", facts={"model": "é", "rows": 3, "message": "no"})))
    assert line.pop("time").endswith("+00:00")
    assert line == {"level": "WARNING", "logger": "app.x", "message": "a thing", "model": "é", "rows": 3}


@pytest.mark.parametrize("form", [TextFormatter(), JsonFormatter()])
def test_a_traceback_is_told(form):
    try:
        raise ValueError("wrong")
    except ValueError:
        line = form.format(record(exc_info=sys.exc_info()))
    assert "ValueError: wrong" in line
    assert "Traceback" in line


@pytest.mark.parametrize(("form", "kind"), [("text", TextFormatter), ("json", JsonFormatter)])
def test_the_setting_chooses_the_form_of_all_lines(untouched, form, kind):
    configure(form)
    [handler] = logging.getLogger().handlers
    assert isinstance(handler.formatter, kind)
    assert logging.getLogger().level == logging.INFO

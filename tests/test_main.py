"""How the parts of one process are put together."""

import json
import logging

import pytest

from app.domain.config import EndpointsConfig, ModelPolicy, SchedulerConfig
from app.domain.errors import ModelNotFound
from app.main import build_node, recent_file, stop_node
from app.settings import Settings
from tests.builders import write_identity_bundle


@pytest.fixture
def make_node(tmp_path):
    """Build a node, unstarted, and take it apart again."""
    made = []

    def make(**settings):
        made.append(build_node(Settings(cache_dir=tmp_path / "cache", model_dirs=(tmp_path,), **settings)))
        return made[-1]

    yield make
    for node in made:
        stop_node(node)


def test_what_was_done_last_is_kept_when_nothing_can_be_executed_any_more(make_node, tmp_path):
    node = make_node()
    node.engine.watchdog.on_lost()
    assert json.loads((tmp_path / "cache" / "recent-8000.json").read_text()) == {"requests": [], "dispatches": []}


def test_it_is_kept_beside_the_record_where_there_is_one(make_node, tmp_path):
    node = make_node(record_dir=tmp_path / "records", endpoints=EndpointsConfig(port=1))
    node.engine.watchdog.on_lost()
    assert recent_file(node.settings) == tmp_path / "records" / "recent-1.json"
    assert recent_file(node.settings).is_file()


def test_names_of_models_in_settings_are_looked_for(make_node, tmp_path):
    write_identity_bundle(tmp_path, "tabular")
    node = make_node(
        models_include=("tabul",),
        startup_models=("nope",),
        required_models=("gone",),
        scheduler=SchedulerConfig(models={"tabula": ModelPolicy()}),
    )
    with pytest.raises(ModelNotFound):
        node.watcher.find("tabular")  # which looks
    assert {place for place in node.watcher.problems if isinstance(place, str)} == {
        "INFERENCE_SERVER_MODELS_INCLUDE: tabul",
        "INFERENCE_SERVER_STARTUP_MODELS: nope",
        "INFERENCE_SERVER_REQUIRED_MODELS: gone",
        "INFERENCE_SERVER_SCHEDULER_MODELS: tabula",
    }


def test_the_settings_are_one_line_at_the_start(make_node, caplog):
    caplog.set_level(logging.INFO)
    make_node(slow_request_ms=5)
    [line] = [record for record in caplog.records if record.getMessage() == "settings"]
    assert line.facts.keys() == Settings().effective().keys()

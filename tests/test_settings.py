"""Where settings come from, which wins, and what is said about a wrong one."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from app.settings import PREFIX, Settings, SettingsError, paths, variables


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    """Start from an environment without any of ours."""
    for name in variables(Settings):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def load(monkeypatch):
    """Load with the given variables, named without the prefix."""

    def load_with(**values):
        for name, value in values.items():
            monkeypatch.setenv(f"{PREFIX}{name}", str(value))
        return Settings.load()

    return load_with


@pytest.fixture
def node_file(tmp_path, monkeypatch):
    """Write a node file and name it in the environment."""

    def write(text):
        file = tmp_path / "node.yaml"
        file.write_text(text)
        monkeypatch.setenv(f"{PREFIX}NODE_FILE", str(file))

    return write


@pytest.fixture
def complaint(load):
    """What is said about the given variables."""

    def complaint_of(**values):
        with pytest.raises(SettingsError) as caught:
            load(**values)
        return str(caught.value)

    return complaint_of


def test_without_any_source_the_defaults_hold(load):
    settings = load()
    assert settings.model_dirs == (Path("bundles"),)
    assert settings.model_control_mode == "dynamic"
    assert settings.startup_models is None
    assert (settings.endpoints.host, settings.endpoints.port) == ("127.0.0.1", 8000)
    assert settings.scheduler.discipline == "fair"
    assert settings.switch_interval_us == 50


def test_the_cache_follows_the_users_directories(load, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load().cache_dir == tmp_path / "inference-server"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/somewhere")
    assert load().cache_dir == Path("/somewhere/.cache/inference-server")


@pytest.mark.parametrize(
    ("name", "text", "path", "value"),
    [
        ("MODEL_CONTROL_MODE", "explicit", "model_control_mode", "explicit"),
        ("MODEL_POLL_SECONDS", "0.5", "model_poll_seconds", 0.5),
        ("HOOK_THREADS", "3", "hook_threads", 3),
        ("WORKER_NAME", "123", "worker_name", "123"),
        ("RECORD_DIR", "/tmp/x", "record_dir", Path("/tmp/x")),
        ("RUNTIME_BACKEND", "cpu", "runtime.backend", "cpu"),
        ("RUNTIME_DEVICE_MEMORY_BYTES", "1000", "runtime.device_memory_bytes", 1000),
        ("RUNTIME_ALLOW_CPU_FALLBACK", "true", "runtime.allow_cpu_fallback", True),
        ("SCHEDULER_DISCIPLINE", "edf", "scheduler.discipline", "edf"),
        ("SCHEDULER_EMA_HALFLIFE_SECONDS", "12.5", "scheduler.ema_halflife_seconds", 12.5),
        ("SCHEDULER_ADMISSION", "off", "scheduler.admission", "off"),
        ("ENDPOINTS_PORT", "0", "endpoints.port", 0),
        ("ENDPOINTS_FAST_PATH", "false", "endpoints.fast_path", False),
        ("ENDPOINTS_MAX_INFLIGHT_BYTES", "7", "endpoints.max_inflight_bytes", 7),
        ("ENDPOINTS_SSL_CERTFILE", "cert.pem", "endpoints.ssl_certfile", "cert.pem"),
    ],
)
def test_a_variable_is_the_section_and_the_field(load, name, text, path, value):
    found = load(**{name: text})
    for part in path.split("."):
        found = getattr(found, part)
    assert found == value


def test_every_variable_is_read(load):
    """A name in the list that nothing reads would hide a misspelt one."""
    values = {name.removeprefix(PREFIX): "?" for name in variables(Settings) if not name.endswith("NODE_FILE")}
    values["SCHEDULER_MODELS"] = '{"m": 0}'
    texts = {"MODEL_DIRS", "MODELS_INCLUDE", "CACHE_DIR", "STARTUP_MODELS", "REQUIRED_MODELS", "WORKER_NAME"}
    texts |= {"RECORD_DIR", "ENDPOINTS_HOST", "ENDPOINTS_SSL_CERTFILE", "ENDPOINTS_SSL_KEYFILE", "CLUSTER_HAPROXY"}
    texts |= {"ENDPOINTS_API_TOKEN", "ENDPOINTS_ADMIN_TOKEN"}
    settings = load(**{name: values.pop(name) for name in texts})
    assert settings.endpoints.api_token is not None
    assert settings.endpoints.api_token.get_secret_value() == "?"
    assert settings.required_models == ("?",)
    with pytest.raises(SettingsError) as caught:
        load(**values)
    assert all(f"{PREFIX}{name}" in str(caught.value) for name in values)


# lists


@pytest.mark.parametrize("name", ["MODELS_INCLUDE", "STARTUP_MODELS", "REQUIRED_MODELS"])
@pytest.mark.parametrize(
    ("text", "names"),
    [("a", ("a",)), ("a,b", ("a", "b")), (" a , b,", ("a", "b")), ("", ()), ("1", ("1",)), ("null", ("null",))],
)
def test_names_are_separated_by_commas(load, name, text, names):
    assert getattr(load(**{name: text}), name.lower()) == names


def test_directories_are_separated_by_colons(load):
    assert load(MODEL_DIRS="/a:b").model_dirs == (Path("/a"), Path("b"))


def test_per_model_settings_are_json(load):
    models = load(SCHEDULER_MODELS='{"a": {"weight": 3}, "b": {"residency": "device"}}').scheduler.models
    assert models["a"].weight == 3
    assert models["b"].residency == "device"


# the node file


def test_the_environment_wins_over_the_node_file_key_by_key(load, node_file):
    node_file(
        "global:\n"
        "  model_dirs: /models:more\n"
        "  required_models: [a, b]\n"
        "  scheduler:\n"
        "    {discipline: fifo, max_queue_depth: 7, models: {m: {weight: 2, max_wait_ms: 5}, n: {weight: 4}}}\n"
        "worker: {anything: goes}\n"
    )
    settings = load(SCHEDULER_DISCIPLINE="edf", SCHEDULER_MODELS='{"m": {"weight": 9}}')
    assert settings.model_dirs == (Path("/models"), Path("more"))
    assert settings.required_models == ("a", "b")
    assert (settings.scheduler.discipline, settings.scheduler.max_queue_depth) == ("edf", 7)
    models = settings.scheduler.models
    assert (models["m"].weight, models["m"].max_wait_ms, models["n"].weight) == (9, 5, 4)


@pytest.mark.parametrize("text", ["", "global:", "worker: 1", "global:\n  runtime:\n  cache_dir:"])
def test_empty_blocks_change_nothing(load, node_file, text):
    before = load()
    node_file(text)
    assert load() == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("globl: {}", "the top-level keys are `global` and `worker`"),
        ("[1]", "the top-level keys are `global` and `worker`"),
        ("global: [1]", "`global` is no mapping"),
        ("global: {1: 2}", "`global` is no mapping"),
        ("global: {", "NODE_FILE"),
        ("global: {hok_threads: 1}", "node file: global.hok_threads: no such setting; known are: model_dirs"),
        ("global: {scheduler: {wieght: 1}}", "node file: global.scheduler.wieght: no such setting; known are: discip"),
        (
            "global: {scheduler: {models: {m: {x: 1}}}}",
            "models.m.x: no such setting; known are: weight",
        ),
        ("global: {endpoints: {port: 70000}}", "node file: global.endpoints.port=70000: Input should be less than"),
        ("global: {runtime: 3}", "node file: global.runtime=3: "),
        ("global: {model_dirs: 7}", "node file: global.model_dirs=7: "),
    ],
)
def test_what_is_wrong_in_the_node_file_is_named(complaint, node_file, text, message):
    node_file(text)
    assert message in complaint()


def test_a_node_file_that_cannot_be_read_is_named(complaint):
    assert f"{PREFIX}NODE_FILE=/nowhere.yaml" in complaint(NODE_FILE="/nowhere.yaml")


# refusals


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("SCHEDULR_DISCIPLINE", "SCHEDULER_DISCIPLINE"),
        ("SCHEDULER_DISIPLINE", "SCHEDULER_DISCIPLINE"),
        ("HOOK_THREAD", "HOOK_THREADS"),
        ("ENDPOINTS_FAST_PATH_", "ENDPOINTS_FAST_PATH"),
    ],
)
def test_a_misspelt_variable_is_refused_with_what_was_meant(complaint, name, meant):
    said = complaint(**{name: "s3cret"})
    assert said == f"unknown environment variable {PREFIX}{name}: did you mean {PREFIX}{meant}?"


def test_a_variable_like_no_other_is_refused_with_all_that_are_known(complaint):
    said = complaint(QQQQQQQQQQQQQQQQQQQQQQQQQQQQQ="s3cret")
    assert f"{PREFIX}MODEL_DIRS" in said
    assert "s3cret" not in said


@pytest.mark.parametrize("name", ["ENDPOINTS_API_TOKEN", "ENDPOINTS_ADMIN_TOKEN"])
def test_an_empty_token_is_called_empty(complaint, name):
    assert complaint(**{name: ""}) == f"{PREFIX}{name}: is empty: give it a value, or leave it out"


@pytest.mark.parametrize("name", ["RUNTIME", "SCHEDULER"])
def test_a_whole_section_in_one_variable_is_refused(complaint, name):
    assert "unknown environment variable" in complaint(**{name: "{}"})


@pytest.mark.parametrize("name", ["inference_server_hook_threads", "Inference_Server_Nonsense"])
def test_a_variable_in_other_letters_is_refused(monkeypatch, name):
    monkeypatch.setenv(name, "3")
    with pytest.raises(SettingsError, match=name):
        Settings.load()


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("RUNTIME_BACKEND", "gpu", "'auto', 'cpu' or 'cuda'"),
        ("MODEL_CONTROL_MODE", "poll", "'dynamic', 'static' or 'explicit'"),
        ("SCHEDULER_COST_EMA_ALPHA", "0", "greater than 0"),
        ("SCHEDULER_COST_EMA_ALPHA", "2", "less than or equal to 1"),
        ("HOOK_THREADS", "many", "valid integer"),
        ("HOOK_THREADS", "0", "greater than or equal to 1"),
        ("MODEL_POLL_SECONDS", "0", "greater than 0"),
        ("DRAIN_DELAY_SECONDS", "-1", "greater than or equal to 0"),
        ("ENDPOINTS_FAST_PATH", "perhaps", "valid boolean"),
        ("SCHEDULER_MODELS", "{bad", "JSON"),
    ],
)
def test_a_bad_value_is_refused_with_its_variable_the_value_and_what_is_allowed(complaint, name, text, allowed):
    said = complaint(**{name: text})
    assert f"{PREFIX}{name}={text!r}: " in said
    assert allowed in said


def test_a_bad_value_inside_the_per_model_settings_is_named_with_its_path(complaint):
    said = complaint(SCHEDULER_MODELS=json.dumps({"a.b": {"weight": 0}}))
    assert f"{PREFIX}SCHEDULER_MODELS.a.b.weight=0: Input should be greater than 0" in said


def test_every_fault_is_named_at_once(complaint):
    said = complaint(HOOK_THREADS="x", RUNTIME_MEM_FRACTION="7")
    assert f"{PREFIX}HOOK_THREADS" in said
    assert f"{PREFIX}RUNTIME_MEM_FRACTION" in said


# secrets


def test_tokens_do_not_show(load):
    settings = load(ENDPOINTS_API_TOKEN="s3cret", ENDPOINTS_ADMIN_TOKEN="s3cret")
    assert "s3cret" not in f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    assert settings.endpoints.api_token is not None
    assert settings.endpoints.api_token.get_secret_value() == "s3cret"


def test_a_token_of_the_wrong_type_is_not_shown(complaint, node_file):
    node_file("global: {endpoints: {api_token: 12345}}")
    assert "12345" not in complaint()


def test_settings_cannot_be_changed(load):
    with pytest.raises(ValidationError, match="frozen"):
        load().hook_threads = 3


# which source won


def test_every_setting_has_its_value_and_the_source_that_won(load, node_file):
    node_file(
        "global: {hook_threads: 3, worker_name: file, runtime: {backend: cpu}, scheduler: {models: {m: {weight: 2}}}}"
    )
    found = load(WORKER_NAME="env", SCHEDULER_DISCIPLINE="edf", MODEL_DIRS="/a:b").effective()
    assert found.keys() == {".".join(path) for path in paths(Settings)}
    assert found["worker_name"] == ("env", "environment")
    assert found["hook_threads"] == (3, "node file")
    assert found["runtime.backend"] == ("cpu", "node file")
    assert found["scheduler.discipline"] == ("edf", "environment")
    assert found["scheduler.sizing"] == ("cost", "default")
    assert found["model_dirs"] == (["/a", "b"], "environment")
    models, source = found["scheduler.models"]
    assert (models["m"]["weight"], source) == (2, "node file")
    assert {source for name, (_, source) in found.items() if name.startswith("endpoints.")} == {"default"}


def test_a_secret_shows_only_that_it_is_set(load, node_file):
    node_file("global: {endpoints: {admin_token: s3cret}}")
    found = load(ENDPOINTS_API_TOKEN="s3cret").effective()
    assert "s3cret" not in str(found)
    assert found["endpoints.api_token"].source == "environment"
    assert found["endpoints.admin_token"].source == "node file"
    assert found["endpoints.api_token"].value is not None
    assert Settings().effective()["endpoints.admin_token"] == (None, "default")


@pytest.mark.parametrize(
    ("given", "devices"),
    [
        ("0,1", ("0", "1")),
        ("cpu:2", ("cpu", "cpu")),
        ("cpu", ("cpu",)),
        ("3", ("3",)),
        ("", ()),
        (" 0, cpu:1", ("0", "cpu")),
    ],
)
def test_devices_are_ordinals_or_so_many_of_the_cpu(load, given, devices):
    assert load(RUNTIME_DEVICES=given).runtime.devices == devices


@pytest.mark.parametrize("written", ["[0, 1]", "'0,1'"])
def test_devices_in_the_node_file_are_a_list_or_text(load, node_file, written):
    node_file(f"global: {{runtime: {{devices: {written}}}}}")
    assert load().runtime.devices == ("0", "1")


@pytest.mark.parametrize("given", ["gpu0", "-1", "cpu:0", "cpu:x", "0,0", "1.5"])
def test_what_is_no_device_is_named(complaint, given):
    said = complaint(RUNTIME_DEVICES=given)
    assert "INFERENCE_SERVER_RUNTIME_DEVICES" in said
    assert "device" in said


def test_replicas_are_numbers_or_all_by_model(load, complaint):
    assert load(CLUSTER_REPLICAS="a=2, b=all").cluster.replicas == {"a": 2, "b": "all"}
    assert "CLUSTER_REPLICAS" in complaint(CLUSTER_REPLICAS="a=0")

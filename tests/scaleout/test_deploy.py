"""What a deploy on Ray refuses before anything starts, and what replicas and Serve are told."""

from argparse import ArgumentParser
from pathlib import Path

import pytest

from app.cli import main
from app.domain.config import EndpointsConfig, RuntimeConfig
from app.domain.errors import ServingError
from app.scaleout.deploy import add_options, authentication, check, has_gpu, replica_settings, serve_environment
from app.settings import Settings, SettingsError


def arguments(*given):
    parser = ArgumentParser()
    add_options(parser)
    return parser.parse_args(given)


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr("app.scaleout.deploy.find_spec", lambda _: object())


def test_without_ray_it_is_said_where_it_is_to_be_had(monkeypatch, capsys):
    monkeypatch.setattr("app.scaleout.deploy.find_spec", lambda _: None)
    with pytest.raises(SystemExit, match=r"pip install 'inference-server\[ray\]'"):
        main(["cluster", "deploy"])


def test_an_unknown_option_is_refused_also_where_the_rest_is_read_elsewhere(capsys):
    for command in (["cluster", "deploy", "--copies", "2"], ["status", "--copies"]):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 2
        assert "unrecognized arguments: --copies" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["--replicas", "0"], "--replicas is at least 1"),
        (["--queue-depth", "0"], "--queue-depth more than 0"),
        (["--cpus", "-1"], "--cpus not negative"),
        (["--replicas", "3", "--max-replicas", "2"], "--max-replicas 2 is less than --replicas 3"),
        (["--route-prefix", "models"], "--route-prefix models: begins with a slash"),
    ],
)
def test_options_that_make_no_sense_are_named(installed, given, complaint):
    with pytest.raises(ServingError, match=complaint):
        check(arguments(*given), Settings())


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (Settings(runtime=RuntimeConfig(devices="0,1")), "RUNTIME_DEVICES=0,1: .* --replicas 2"),
        (Settings(endpoints=EndpointsConfig(ssl_certfile="c.pem")), "ENDPOINTS_SSL_CERTFILE=c.pem: .* no TLS"),
    ],
)
def test_settings_that_ray_serve_cannot_keep_are_named(installed, settings, complaint):
    with pytest.raises(SettingsError, match=complaint):
        check(arguments(), settings)


def test_what_makes_sense_is_let_pass(installed):
    check(arguments("--replicas", "2", "--max-replicas", "2"), Settings(runtime=RuntimeConfig(devices="cpu:1")))


@pytest.mark.parametrize(
    ("runtime", "gpus", "local", "gpu"),
    [
        ({"backend": "auto"}, 2.0, True, True),
        ({"backend": "auto"}, 0.0, False, False),
        ({"backend": "cpu"}, 2.0, True, False),
        ({"devices": "cpu:1"}, 2.0, True, False),
        ({"backend": "cuda"}, 1.0, True, True),
        ({"backend": "cuda"}, 0.0, False, True),  # a cluster may grow
    ],
)
def test_a_replica_gets_a_gpu_where_there_are_some(runtime, gpus, local, gpu):
    settings = Settings(runtime=RuntimeConfig(**runtime))
    assert has_gpu(settings, {"CPU": 4.0, "GPU": gpus}, local=local) is gpu


def test_cuda_on_a_machine_without_a_gpu_is_refused():
    with pytest.raises(SettingsError, match="RUNTIME_BACKEND=cuda: Ray finds no GPU"):
        has_gpu(Settings(runtime=RuntimeConfig(backend="cuda")), {"CPU": 4.0}, local=True)


def test_a_replica_on_the_cpu_takes_as_many_threads_as_it_was_given_processors(tmp_path):
    told = replica_settings(Settings(cache_dir=tmp_path), gpu=False, cpus=2)
    assert (told.runtime.backend, told.runtime.intra_op_threads) == ("cpu", 2)
    own = Settings(cache_dir=tmp_path, runtime=RuntimeConfig(intra_op_threads=3))
    assert replica_settings(own, gpu=False, cpus=0.5).runtime.intra_op_threads == 3


def test_a_replica_on_a_gpu_sees_one_device(tmp_path):
    told = replica_settings(Settings(cache_dir=tmp_path, runtime=RuntimeConfig(device_ordinal=3)), gpu=True, cpus=1)
    assert (told.runtime.backend, told.runtime.device_ordinal, told.runtime.intra_op_threads) == ("cuda", 0, None)


def test_paths_do_not_depend_on_where_a_replica_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = replica_settings(Settings(cache_dir=Path("cache"), model_dirs=(Path("a"), Path("/b"))), gpu=False, cpus=1)
    assert told.model_dirs == (tmp_path / "a", Path("/b"))
    assert told.cache_dir == tmp_path / "cache"


def test_one_admin_token_opens_all_replicas_and_stays_from_deploy_to_deploy(tmp_path):
    def token(**endpoints):
        settings = Settings(cache_dir=tmp_path, endpoints=EndpointsConfig(**endpoints))
        found = replica_settings(settings, gpu=False, cpus=1).endpoints.admin_token
        return None if found is None else found.get_secret_value()

    made = token()
    assert made == token() == (tmp_path / "admin-token-8000").read_text()
    assert token(admin_token="mine") == "mine"


def test_serve_drains_as_long_as_the_settings_say_and_what_an_operator_set_stays():
    told = serve_environment(Settings(drain_delay_seconds=2.5), {"RAY_SERVE_HAPROXY_RETRY_ON": "none"})
    assert told["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
    assert told["RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"] == "2.5"
    assert told["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] == "60"
    assert told["RAY_SERVE_HAPROXY_RETRY_ON"] == "none"


def test_a_cluster_of_our_own_asks_for_a_token():
    first, second = authentication({}), authentication({})
    assert first["RAY_AUTH_MODE"] == "token"
    assert len(first["RAY_AUTH_TOKEN"]) == 64
    assert first["RAY_AUTH_TOKEN"] != second["RAY_AUTH_TOKEN"]
    assert authentication({"RAY_AUTH_TOKEN_PATH": "/mine"}) == {"RAY_AUTH_MODE": "token"}
    assert authentication({"RAY_AUTH_MODE": "disabled"}) == {}

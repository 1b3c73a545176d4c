"""What each worker finds in its environment."""

import pytest

from app.domain.config import ClusterConfig, EndpointsConfig, RuntimeConfig
from app.scaleout.workers import environment, fleet, log_line
from app.settings import Settings, SettingsError


def settings(devices="cpu:2", port=8000, **changes):
    cluster = changes.pop("cluster", {})
    runtime = RuntimeConfig(devices=devices, **changes.pop("runtime", {}))
    return Settings(
        runtime=runtime,
        endpoints=EndpointsConfig(port=port),
        cluster=ClusterConfig(**cluster),
        worker_name="box",
        **changes,
    )


def env(settings, number=0, **inherited):
    found = environment(settings, fleet(settings)[number], "secret", inherited)
    return {name.removeprefix("INFERENCE_SERVER_"): value for name, value in found.items()}


def test_a_worker_for_each_device_on_a_port_of_its_own():
    workers = fleet(settings("1,0"))
    assert [(each.name, each.label, each.device, each.address) for each in workers] == [
        ("w0", "box-w0", "1", "127.0.0.1:8001"),
        ("w1", "box-w1", "0", "127.0.0.1:8002"),
    ]


def test_ports_begin_where_they_are_told_to():
    assert [each.port for each in fleet(settings(cluster={"base_port": 9000}))] == [9000, 9001]


@pytest.mark.parametrize("chosen", [{"port": 0}, {"cluster": {"base_port": 0}}])
def test_free_ports_are_found(chosen):
    ports = [each.port for each in fleet(settings(**chosen))]
    assert len(set(ports)) == 2
    assert min(ports) > 1024


@pytest.mark.parametrize(
    "chosen", [{"cluster": {"base_port": 7999}}, {"cluster": {"base_port": 65535}}, {"port": 65534}]
)
def test_ports_that_cannot_be_are_refused_by_name(chosen):
    with pytest.raises(SettingsError, match="CLUSTER_BASE_PORT"):
        fleet(settings(**chosen))


def test_a_worker_sees_its_own_device_and_no_other():
    found = env(settings("4,2"), 1)
    assert (found["CUDA_VISIBLE_DEVICES"], found["RUNTIME_DEVICE_ORDINAL"]) == ("2", "0")
    assert "RUNTIME_BACKEND" not in found


def test_ordinals_are_among_the_devices_that_are_visible():
    assert env(settings("0,1"), 1, CUDA_VISIBLE_DEVICES="5,MIG-a1")["CUDA_VISIBLE_DEVICES"] == "MIG-a1"
    with pytest.raises(SettingsError, match="device 1 is not among the 1 of CUDA_VISIBLE_DEVICES=5"):
        env(settings("0,1"), 1, CUDA_VISIBLE_DEVICES="5")


def test_workers_on_the_cpu_share_its_cores(monkeypatch):
    monkeypatch.setattr("app.scaleout.workers.usable_cores", lambda: 8)
    found = env(settings())
    assert (found["RUNTIME_BACKEND"], found["RUNTIME_INTRA_OP_THREADS"]) == ("cpu", "4")
    assert env(settings(runtime={"intra_op_threads": 3}))["RUNTIME_INTRA_OP_THREADS"] == "3"


def test_what_a_worker_finds_makes_it_one_worker():
    found = env(settings(drain_delay_seconds=5, shutdown_timeout_seconds=25), 1, INFERENCE_SERVER_LOG_FORMAT="json")
    assert found["LOG_FORMAT"] == "json"
    assert (found["RUNTIME_DEVICES"], found["ENDPOINTS_HOST"], found["ENDPOINTS_PORT"]) == ("", "127.0.0.1", "8002")
    assert (found["WORKER_NAME"], found["ENDPOINTS_ADMIN_TOKEN"]) == ("box-w1", "secret")
    assert float(found["SHUTDOWN_TIMEOUT_SECONDS"]) < 20


def test_its_environment_is_one_that_settings_read(monkeypatch):
    for name, value in environment(settings(), fleet(settings())[0], "secret", {}).items():
        monkeypatch.setenv(name, value)
    read = Settings.load()
    assert read.runtime.devices == ()
    assert read.endpoints.port == 8001


def test_a_line_tells_whose_it_is():
    assert log_line("w0", "ready\n") == "[w0] ready\n"
    assert log_line("w0", '{"message": "ready"}\n') == '{"from": "w0", "message": "ready"}\n'

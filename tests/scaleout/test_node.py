"""What is refused before anything starts, and what one worker never loads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.backends.cuda import physical_ordinal
from app.domain.config import ClusterConfig, RuntimeConfig, SchedulerConfig
from app.scaleout.node import check
from app.scaleout.proxy import program
from app.settings import Settings, SettingsError

ROOT = Path(__file__).parents[2]

PACKING = ClusterConfig(mode="lpt_packing")


def test_lpt_040_placing_models_needs_workers_without_shares():
    with pytest.raises(
        SettingsError, match=r"CLUSTER_MODE=lpt_packing needs .*SCHEDULER_DISCIPLINE=fifo or edf, not fair"
    ):
        check(Settings(cluster=PACKING))


@pytest.mark.parametrize("discipline", ["fifo", "edf"])
def test_lpt_040_fifo_and_edf_are_allowed(discipline):
    check(Settings(cluster=PACKING, scheduler=SchedulerConfig(discipline=discipline)))


@pytest.mark.parametrize("mode", ["round_robin", "least_outstanding"])
def test_the_other_modes_take_any_discipline(mode):
    check(Settings(cluster=ClusterConfig(mode=mode)))


def test_placing_models_does_not_go_with_operators_who_move_weights():
    with pytest.raises(SettingsError, match="MODEL_CONTROL_MODE=explicit"):
        check(Settings(cluster=PACKING, scheduler=SchedulerConfig(discipline="fifo"), model_control_mode="explicit"))


def test_a_proxy_that_is_not_there_is_named_and_where_one_is_to_be_had(monkeypatch):
    with pytest.raises(SettingsError, match="CLUSTER_HAPROXY=/nowhere: no such program"):
        program("/nowhere")
    monkeypatch.setattr("app.scaleout.proxy.shutil.which", lambda _: None)
    with pytest.raises(SettingsError, match=r"apt install haproxy; or pip install 'inference-server\[cluster\]'"):
        program(None)


def test_one_worker_loads_nothing_of_several():
    code = (
        "import sys; from app import cli; from app.main import create_app; from app.settings import Settings; "
        "create_app(Settings.load()); "
        "print(*sorted(name for name in sys.modules if name.split('.')[0] in ('ray', 'httpx') or 'scaleout' in name))"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_several_devices_without_the_extra_are_refused_in_a_line_that_names_it():
    code = "import sys; sys.modules['httpx'] = None; from app.cli import main; main(['serve'])"
    environment = {**os.environ, "INFERENCE_SERVER_RUNTIME_DEVICES": "cpu:2"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "inference-server: several devices need the extra: pip install 'inference-server[cluster]' (there is no httpx)"
    ]


@pytest.mark.parametrize(("devices", "backend", "ordinal"), [("3", "auto", 3), ("cpu:1", "cpu", 0), ("", "auto", 0)])
def test_one_device_is_served_by_the_process_itself(devices, backend, ordinal):
    runtime = Settings(runtime=RuntimeConfig(devices=devices)).of_one_device().runtime
    assert (runtime.backend, runtime.device_ordinal) == (backend, ordinal)


@pytest.mark.parametrize(
    ("visible", "ordinal", "told"), [(None, 1, "1"), ("5", 0, "5"), ("5, 6", 1, "6"), ("MIG-a", 0, "0"), ("", 0, "0")]
)
def test_a_device_is_called_what_it_is_called_where_all_are_visible(monkeypatch, visible, ordinal, told):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert physical_ordinal(ordinal) == told

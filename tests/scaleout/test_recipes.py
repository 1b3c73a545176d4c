"""The recipes are what the tools that read them take for valid, and agree with the image and with each other."""

import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from compose_spec import PyCompose

from app.scaleout.proxy import program
from app.settings import Settings, variables

ROOT = Path(__file__).parents[2]

RECIPES = ROOT / "app" / "scaleout" / "recipes"

#: Oldest and newest that the schemas at hand know.
KUBERNETES = ("1.25", "1.37")

MANIFESTS = [
    pytest.param(manifest, id=f"{path.stem}-{manifest['kind']}")
    for path in sorted((RECIPES / "kubernetes").glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]


def compose():
    return yaml.safe_load((RECIPES / "compose.yaml").read_text(encoding="utf-8"))


def pod():
    text = (RECIPES / "kubernetes" / "deployment.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("manifest", MANIFESTS)
def test_a_manifest_is_valid(manifest, version):
    kubernetes_validate.validate(manifest, version, strict=True)


def test_a_manifest_with_a_misspelt_key_would_be_noticed():
    deployment = yaml.safe_load((RECIPES / "kubernetes" / "deployment.yaml").read_text(encoding="utf-8"))
    wrong = {**deployment, "spec": {**deployment["spec"], "replcas": 2}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES[-1], strict=True)


def test_the_compose_file_is_valid():
    assert PyCompose.from_yaml(yaml.safe_dump(compose())).service_names() == ["proxy", "w0", "w1"]
    wrong = compose()
    wrong["services"]["w0"]["restrt"] = "always"
    with pytest.raises(ValueError, match="restrt"):
        PyCompose.from_yaml(yaml.safe_dump(wrong))


def test_the_compose_file_mounts_what_is_there():
    for service in compose()["services"].values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in compose()["volumes"] or (RECIPES / source).exists()


def test_settings_in_recipes_are_settings():
    names = {each["name"] for each in pod()["containers"][0]["env"]}
    names |= {name for service in compose()["services"].values() for name in service.get("environment", ())}
    assert names
    assert names <= set(variables(Settings))


def test_containers_are_given_the_time_that_a_drain_takes():
    settings = Settings()
    assert pod()["terminationGracePeriodSeconds"] > settings.shutdown_timeout_seconds
    grace = [service.get("stop_grace_period") for service in compose()["services"].values()]
    assert grace.count("30s") == 2


def test_every_worker_of_the_compose_file_is_behind_the_proxy():
    text = (RECIPES / "haproxy.cfg").read_text(encoding="utf-8")
    for name in compose()["services"].keys() - {"proxy"}:
        assert f"server {name} {name}:8000" in text


@pytest.mark.clients
def test_haproxy_takes_its_recipe():
    command = [program(None), "-c", "-f", str(RECIPES / "haproxy.cfg")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

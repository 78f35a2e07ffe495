"""compose.yaml as Compose reads it: the rights and settings of each service. Needs no engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.docker.containers import IMAGES, ROOT, compose

pytestmark = pytest.mark.docker
BACKENDS = {"tf": "tensorflow", "jax": "jax", "torch": "torch", "openvino": "openvino"}
MEASURING = {"tf-cpu", "tf-gpu", "jax-cpu", "jax-gpu", "torch-cpu", "torch-gpu", "openvino-cpu", "jax-tpu"}
ONLINE = {"dashboard", "uploader"}
OFFLINE = {*MEASURING, "report"}
VARIABLES = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "BIGQUERY_EMULATOR_HOST",
    "NO_GCE_CHECK",
    "HTTPS_PROXY",
    "NO_PROXY",
)
UNSET = dict.fromkeys(VARIABLES, "")
CLUSTER = {
    "ray-head": "jax-cpu-ray",
    "ray-jax": "jax-cpu-ray",
    "ray-tf": "tf-cpu-ray",
    "ray-torch": "torch-cpu-ray",
}
IMAGE_OF = {"report": "dashboard", **CLUSTER}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """Every service, by its name."""
    return active("*", **UNSET)


def active(*profiles: str, **environment: str) -> dict[str, Any]:
    """The services of these profiles and of none, as Compose reads them."""
    options = [f"--profile={profile}" for profile in profiles]
    done = compose(ROOT, *options, "config", "--format", "json", **environment)
    if done.returncode != 0 and "unknown command" in done.stderr + done.stdout:
        pytest.skip("no Compose plugin")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["services"]
    return found


def test_every_backend_and_device_has_its_own_service_and_image(services: dict[str, Any]) -> None:
    assert set(services) == {*OFFLINE, *ONLINE, *CLUSTER, "bigquery", "grafana"}
    built = {name: service for name, service in services.items() if name != "grafana"}  # an image of others
    assert {name: service["image"] for name, service in built.items()} == {
        name: f"{IMAGES}:{IMAGE_OF.get(name, name)}" for name in built
    }
    assert {name: service["build"]["args"]["SERVICE"] for name, service in built.items()} == {
        name: IMAGE_OF.get(name, name).removesuffix("-ray") for name in built
    }
    with_ray = {name for name, service in built.items() if service["build"]["args"]["EXTRAS"] == "ray"}
    assert with_ray == {*CLUSTER}
    assert {service["build"]["args"]["EXTRAS"] for name, service in built.items() if name not in CLUSTER} == {""}


def test_torch_cpu_and_the_nodes_of_a_cluster_have_one_base_and_the_others_the_newest() -> None:
    """Nodes of a cluster need one Python, and PyTorch's CPU build was run with that of Debian 12 alone."""
    names = {*CLUSTER, "torch-cpu"}
    for variables, newest, torch in (
        (dict.fromkeys(("BASE", "TORCH_BASE", "EMULATOR_BASE"), ""), "debian:trixie-slim", "debian:bookworm-slim"),
        ({"BASE": "own:13", "TORCH_BASE": "own:12", "EMULATOR_BASE": "own:13"}, "own:13", "own:12"),
    ):
        services = active("*", **UNSET, **variables)
        bases = {name: one["build"]["args"]["BASE"] for name, one in services.items() if "build" in one}
        assert bases == {name: torch if name in names else newest for name in bases}


@pytest.mark.parametrize("device", ["cpu", "gpu", "tpu"])
def test_a_service_that_measures_is_in_the_profile_of_its_device(device: str) -> None:
    assert {*active(device)} == {"dashboard", *(name for name in MEASURING if name.endswith(f"-{device}"))}


def test_only_the_dashboard_is_built_and_started_by_default() -> None:
    assert {*active()} == {"dashboard"}


@pytest.mark.parametrize("name", sorted(MEASURING))
def test_backend_and_device_are_in_a_services_environment_so_that_no_argument_loses_them(
    services: dict[str, Any], name: str
) -> None:
    short, _, device = name.partition("-")
    environment = services[name]["environment"]
    assert environment["KERAS_BENCHMARK_BACKENDS"] == BACKENDS[short]
    assert environment["KERAS_BENCHMARK_DEVICE"] == device


@pytest.mark.parametrize("name", sorted(MEASURING))
def test_a_gpu_service_has_all_gpus_and_uses_the_first_and_no_other_service_has_any(
    services: dict[str, Any], name: str
) -> None:
    is_gpu = name.endswith("-gpu")
    assert reserved(services[name]) == ([("nvidia", -1, ["gpu"])] if is_gpu else [])
    assert services[name]["environment"].get("CUDA_VISIBLE_DEVICES") == ("0" if is_gpu else None)


def reserved(service: dict[str, Any]) -> list[tuple[str, int, list[str]]]:
    """The devices that a service asks for; a count of -1 means all."""
    found = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
    return [(one["driver"], one["count"], one["capabilities"]) for one in found]


def test_only_the_tpu_service_runs_as_root(services: dict[str, Any]) -> None:
    root_services = {
        name for name, one in services.items() if "KERAS_BENCHMARK_KEEP_ROOT" in (one.get("environment") or {})
    }
    assert root_services == {name for name, one in services.items() if one.get("privileged")} == {"jax-tpu"}


@pytest.mark.parametrize("gpus", ["1", "0,1", "all", "GPU-8932f937,GPU-1f"])
@pytest.mark.parametrize("name", ["tf-gpu", "jax-gpu", "torch-gpu"])
def test_caller_selects_the_gpus_of_a_service(name: str, gpus: str) -> None:
    environment = active("gpu", GPU=gpus)[name]["environment"]
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["CUDA_DEVICE_ORDER"]) == (gpus, "PCI_BUS_ID")


def test_the_arguments_of_a_caller_follow_the_merge_of_the_report_service(services: dict[str, Any]) -> None:
    report = services["report"]
    assert (report["entrypoint"], report["command"]) == (["entrypoint", "runner", "report", "--merge"], None)
    assert "KERAS_BENCHMARK_BACKENDS" not in report["environment"]


@pytest.mark.parametrize("name", sorted({*OFFLINE, *ONLINE}))
def test_service_drops_unneeded_rights(services: dict[str, Any], name: str) -> None:
    service = services[name]
    assert (service["read_only"], service["init"]) == (True, True)
    assert service["cap_drop"] == ["ALL"]
    assert sorted(service["cap_add"]) == ["CHOWN", "KILL", "SETGID", "SETPCAP", "SETUID"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("privileged", False) is (name == "jax-tpu")
    assert (service["pids_limit"], service["shm_size"]) == (4096, str(1 << 30))
    assert service["tmpfs"] == ["/tmp:rw,nosuid,nodev,size=1g"]
    assert {one["target"] for one in service["volumes"] if not one.get("read_only")} == {"/work/results"}
    assert {one["target"] for one in service["volumes"] if one.get("read_only")} == {
        "/work/matrix.yaml",
        "/work/matrices",
        *(["/credentials.json"] if name in ONLINE else []),
    }


@pytest.mark.parametrize("name", sorted(OFFLINE))
def test_memory_and_swap_of_a_service_that_measures_are_limited_together(name: str) -> None:
    """Mutation: `memswap_limit` is missing, so that a cell may swap as much again."""
    limited, usual = active("*", **UNSET, MEMORY="8g")[name], active("*", **UNSET)[name]
    assert (limited["mem_limit"], limited["memswap_limit"]) == (str(8 << 30), str(8 << 30))
    assert {"mem_limit", "memswap_limit"} & set(usual) == set()


def test_uploader_dashboard_and_emulator_share_a_network_and_a_cluster_has_its_own(
    services: dict[str, Any],
) -> None:
    modes = {name: service.get("network_mode") for name, service in services.items()}
    online = (*ONLINE, *CLUSTER, "bigquery", "grafana")
    assert modes == dict.fromkeys(OFFLINE, "none") | {"jax-tpu": "host"} | dict.fromkeys(online)
    for name in online:
        assert set(services[name]["networks"]) == {"cluster" if name in CLUSTER else "default"}, name


@pytest.mark.parametrize("name", sorted(ONLINE))
def test_credentials_are_mounted_read_only_if_the_caller_names_a_file(services: dict[str, Any], name: str) -> None:
    named = active("*", **UNSET | {"GOOGLE_APPLICATION_CREDENTIALS": "/home/me/key.json"})[name]
    for service, source, target in (
        (services[name], "/dev/null", ""),
        (named, "/home/me/key.json", "/credentials.json"),
    ):
        [mount] = [one for one in service["volumes"] if one["target"] == "/credentials.json"]
        assert (mount["source"], mount["read_only"]) == (source, True)
        assert mount["bind"].get("create_host_path", False) is False
        assert service["environment"]["GOOGLE_APPLICATION_CREDENTIALS"] == target


@pytest.mark.parametrize("name", sorted(OFFLINE))
def test_measuring_and_reporting_services_have_no_credentials(name: str) -> None:
    service = active("*", **UNSET | {"GOOGLE_APPLICATION_CREDENTIALS": "/home/me/key.json"})[name]
    assert set(VARIABLES) & set(service["environment"]) == set()
    assert "/home/me/key.json" not in json.dumps(service)


@pytest.mark.parametrize("name", sorted(ONLINE))
def test_the_emulators_address_and_the_proxy_are_passed_on(name: str) -> None:
    given = {
        "BIGQUERY_EMULATOR_HOST": "http://bigquery:9050",
        "NO_GCE_CHECK": "true",
        "HTTPS_PROXY": "http://proxy:3128",
        "NO_PROXY": "bigquery",
    }
    environment = active("*", **UNSET | given)[name]["environment"]
    assert {variable: environment[variable] for variable in VARIABLES} == {
        "GOOGLE_APPLICATION_CREDENTIALS": "",
        **given,
    }


def test_caller_selects_what_the_dashboard_reads() -> None:
    for warehouse, source in (("", "local"), ("bigquery://my-project.data", "bigquery://my-project.data")):
        assert active(WAREHOUSE=warehouse)["dashboard"]["command"][-2:] == ["--from", source]


def test_dashboard_and_emulator_listen_on_this_machine_alone(services: dict[str, Any]) -> None:
    opened = {name: {port["host_ip"] for port in service.get("ports", [])} for name, service in services.items()}
    closed = {*OFFLINE, *CLUSTER, "uploader"}
    open_here = {key: {"127.0.0.1"} for key in ("dashboard", "bigquery", "grafana", "ray-head")}
    assert opened == {name: set() for name in closed} | open_here


def test_the_cluster_starts_by_its_profile_and_only_holders_of_the_token_use_it(services: dict[str, Any]) -> None:
    assert {*active("ray")} == {"dashboard", *CLUSTER}
    for name in CLUSTER:
        service = services[name]
        assert service["environment"]["RAY_AUTH_MODE"] == "token"
        assert service["environment"]["RAY_AUTH_TOKEN_PATH"] == f"/run/secrets/{service['secrets'][0]['source']}"
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert ("measuring_slot" in json.dumps(service["command"])) == (name != "ray-head")


def test_the_clusters_head_with_a_dashboard_is_another_image_and_serves_this_machine_alone() -> None:
    overlay = ("--file", str(ROOT / "docker" / "ray-dashboard.yaml"))
    done = compose(ROOT, *overlay, "--profile=ray", "config", "--format", "json", **UNSET)
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    assert {name: one["image"].partition(":")[2] for name, one in services.items() if name in CLUSTER} == {
        **CLUSTER,
        "ray-head": "ray-head",
    }
    head, usual = services["ray-head"], active("ray")["ray-head"]
    assert head["build"]["args"] == {**usual["build"]["args"], "SERVICE": "ray-head", "EXTRAS": ""}
    assert {(port["host_ip"], port["target"]) for port in head["ports"]} == {("127.0.0.1", 10001), ("127.0.0.1", 8265)}
    changed = {"image", "build", "command", "ports"}
    assert {key: head[key] for key in {*head} - changed} == {key: usual[key] for key in {*usual} - changed}


def test_grafana_starts_by_its_profile_alone_and_is_open_to_this_machine(services: dict[str, Any]) -> None:
    assert {*active("grafana")} == {"dashboard", "grafana"}
    assert {(port["host_ip"], port["target"]) for port in services["grafana"]["ports"]} == {("127.0.0.1", 3000)}


def test_emulator_starts_by_its_profile_alone_and_drops_unneeded_rights(services: dict[str, Any]) -> None:
    assert {*active("bigquery")} == {"dashboard", "bigquery"}
    emulator = services["bigquery"]
    assert [port["target"] for port in emulator["ports"]] == [9050]
    assert (emulator["read_only"], emulator["init"], emulator["cap_drop"]) == (True, True, ["ALL"])
    assert emulator["security_opt"] == ["no-new-privileges:true"]
    assert emulator.get("privileged", False) is False

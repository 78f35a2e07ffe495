"""docker/kuberay.yaml: against the published schema, and what a measurement needs of it. No Kubernetes is needed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCHEMA = Path(__file__).with_name("kuberay_schema.yaml")
BACKENDS = ("tf", "jax", "torch")
GROUPS = {f"{backend}-{device}" for backend in BACKENDS for device in ("cpu", "gpu")}
IMAGES = "keras-benchmark-matrix"
HEAD_IMAGE = f"{IMAGES}:ray-head"
MOUNTS = {"/tmp", "/dev/shm"}
# KubeRay adds suffixes to the name; it is a DNS label (RFC 1035) as well.
RAY_JOB_NAME = re.compile(r"[a-z]([-a-z0-9]{0,45}[a-z0-9])?")


@cache
def _definitions() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(SCHEMA.read_text(encoding="utf-8"))["definitions"]
    for one in _objects(found):
        if "properties" in one:
            one.setdefault("additionalProperties", False)
    return found


def _objects(value: Any, *, names: bool = True) -> Iterator[dict[str, Any]]:
    """Yield the schemas in a value; the keys of `properties` are names of fields."""
    if isinstance(value, dict):
        if not names:
            yield value
        for key, one in value.items():
            yield from _objects(one, names=not names and key == "properties")
    elif isinstance(value, list):
        for one in value:
            yield from _objects(one, names=False)


def faults(document: dict[str, Any]) -> list[str]:
    """Return what the schema forbids in a document, each with its place."""
    if document["kind"] not in _definitions():
        return ["kind"]
    schema = {"$ref": f"#/definitions/{document['kind']}", "definitions": _definitions()}
    jsonschema.Draft7Validator.check_schema(schema)
    return [f"{one.json_path}: {one.message}" for one in jsonschema.Draft7Validator(schema).iter_errors(document)]


@pytest.fixture
def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "docker" / "kuberay.yaml").read_text(encoding="utf-8")))


@pytest.fixture
def job(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """The RayJob; without the aliases of YAML, so that a change is one of its place alone."""
    [found] = [one for one in documents if one["kind"] == "RayJob"]
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def cluster(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["rayClusterSpec"]
    return found


def groups(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {group["groupName"]: group for group in cluster(job)["workerGroupSpecs"]}


def pods(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The specifications of all pods, by the name of their group."""
    templates = {name: group["template"] for name, group in groups(job).items()}
    templates |= {"head": cluster(job)["headGroupSpec"]["template"], "submitter": job["spec"]["submitterPodTemplate"]}
    return {name: template["spec"] for name, template in templates.items()}


def container(pod: dict[str, Any]) -> dict[str, Any]:
    [found] = pod["containers"]
    assert isinstance(found, dict)
    return found


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container(pod)["env"]}


def test_every_document_fits_the_published_schema(documents: list[dict[str, Any]]) -> None:
    assert {one["kind"] for one in documents} == {"RayJob", "PersistentVolumeClaim", "NetworkPolicy"}
    assert [fault for document in documents for fault in faults(document)] == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("spec.ttlSecondsAfterFinish", 5),
        ("spec.backoffLimit", "0"),
        ("spec.rayClusterSpec.headGroupSpec", None),
        ("spec.rayClusterSpec.authOptions.mode", "tokens"),
        ("spec.rayClusterSpec.headGroupSpec.rayStartParams.num-cpus", 0),
        ("spec.rayClusterSpec.workerGroupSpecs.0.minReplicas", None),
        ("spec.rayClusterSpec.workerGroupSpecs.0.gpus", 1),
        ("spec.rayClusterSpec.workerGroupSpecs.0.rayStartParams.labels", "machine=a"),
        ("spec.rayClusterSpec.workerGroupSpecs.0.template.spec.containers", None),
        ("spec.rayClusterSpec.workerGroupSpecs.0.template.spec.containers.0.name", None),
        ("spec.rayClusterSpec.workerGroupSpecs.0.template.spec.containers.0.name", "Ray_worker"),
        ("spec.rayClusterSpec.workerGroupSpecs.0.template.spec.containers.0.privileged", True),
        ("spec.rayClusterSpec.workerGroupSpecs.0.template.spec.containers.0.env.0.value", 1),
        ("spec.rayClusterSpec.workerGroupSpecs.0.template.spec.containers.0.readinessProbe.tcpSocket.port", None),
        ("spec.rayClusterSpec.workerGroupSpecs.0.template.spec.containers.0.resources.limits.memory", "16 GiB"),
        ("spec.rayClusterSpec.workerGroupSpecs.0.template.spec.volumes.0.name", None),
        ("spec.submitterPodTemplate.spec.restartpolicy", "Never"),
    ],
)
def test_a_field_that_is_unknown_missing_or_of_another_type_is_found(
    job: dict[str, Any], place: str, value: Any
) -> None:
    *parents, last = place.split(".")
    found: Any = job
    for name in parents:
        found = found[int(name)] if isinstance(found, list) else found[name]
    if value is None:
        del found[last]
    else:
        found[last] = value
    assert len(faults(job)) == 1


def test_a_document_of_another_kind_is_found(job: dict[str, Any]) -> None:
    assert faults({**job, "kind": "RayJobs"}) == ["kind"]


def test_each_backend_and_device_has_one_group_with_its_image(job: dict[str, Any]) -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
    assert len(cluster(job)["workerGroupSpecs"]) == len(GROUPS)
    assert {name: container(pods(job)[name])["image"] for name in groups(job)} == {
        name: f"{services[name]['image']}-ray" for name in GROUPS
    }
    nodes = {name: container(pods(job)[f"{name}-cpu"])["image"] for name in BACKENDS}
    assert nodes == {name: services[f"ray-{name}"]["image"] for name in BACKENDS}


def test_head_and_submitter_have_the_image_with_the_dashboard(job: dict[str, Any]) -> None:
    overlay = yaml.safe_load((ROOT / "docker" / "ray-dashboard.yaml").read_text(encoding="utf-8"))
    head = overlay["services"]["ray-head"]
    assert (head["image"], head["build"]["args"]["SERVICE"]) == (HEAD_IMAGE, "ray-head")
    assert {container(pods(job)[name])["image"] for name in ("head", "submitter")} == {HEAD_IMAGE}


def test_the_version_of_ray_is_that_of_every_image(job: dict[str, Any]) -> None:
    version = cluster(job)["rayVersion"]
    for name in ("ray", "ray-head"):
        lock = (ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8")
        assert re.findall(r"^ray(?:\[[a-z,]+\])?==([\w.]+)", lock, re.MULTILINE) == [version], name


def test_names_are_valid_and_used_by_what_refers_to_them(documents: list[dict[str, Any]], job: dict[str, Any]) -> None:
    [claim] = [one["metadata"]["name"] for one in documents if one["kind"] == "PersistentVolumeClaim"]
    assert RAY_JOB_NAME.fullmatch(job["metadata"]["name"])
    for pod in pods(job).values():
        volumes = {one["name"]: one for one in pod["volumes"]}
        assert {mount["name"] for mount in container(pod)["volumeMounts"]} == set(volumes)
    volumes = {one["name"]: one for one in pods(job)["head"]["volumes"]}
    assert volumes["results"]["persistentVolumeClaim"]["claimName"] == claim
    guide = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    assert f"kubectl create configmap {volumes['matrix']['configMap']['name']} --from-file=matrix.yaml" in guide


def test_the_job_reads_the_matrix_and_writes_results_where_they_are_mounted(job: dict[str, Any]) -> None:
    program, *options = shlex.split(job["spec"]["entrypoint"])
    flags = dict(zip(options[::2], options[1::2], strict=True))
    assert program == "runner"
    assert flags == {"--matrix": "/work/matrix.yaml", "--results": "/work/results", "--executor": "ray"}
    mounts = {one["mountPath"]: one for one in container(pods(job)["head"])["volumeMounts"]}
    assert set(mounts) == {*MOUNTS, flags["--matrix"], flags["--results"]}
    assert mounts[flags["--matrix"]]["readOnly"] is True


def test_each_worker_has_one_measuring_slot_and_the_head_has_none(job: dict[str, Any]) -> None:
    for name, group in groups(job).items():
        # KubeRay puts the value into a command of bash, as it is.
        [value] = shlex.split(group["rayStartParams"]["resources"])
        assert json.loads(value) == {"measuring_slot": 1}, name
    head = cluster(job)["headGroupSpec"]["rayStartParams"]
    assert (head["num-cpus"], head.get("resources")) == ("0", None)


def test_only_holders_of_the_token_use_the_cluster(job: dict[str, Any]) -> None:
    assert cluster(job)["authOptions"] == {"mode": "token"}
    assert cluster(job)["headGroupSpec"]["serviceType"] == "ClusterIP"
    for pod in pods(job).values():
        # KubeRay would leave values of ours.
        assert not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(environment(pod))


def test_only_nodes_of_the_cluster_reach_a_worker(documents: list[dict[str, Any]]) -> None:
    """The ports that backends open between the workers of a cell ask for no token."""
    [policy] = [one["spec"] for one in documents if one["kind"] == "NetworkPolicy"]
    assert policy["podSelector"] == {"matchLabels": {"ray.io/node-type": "worker"}}
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": {"ray.io/is-ray-node": "yes"}}}]}]


def test_workers_have_whole_cpus_of_their_own_and_keep_their_priority(job: dict[str, Any]) -> None:
    for name in GROUPS:
        pod = pods(job)[name]
        resources = container(pod)["resources"]
        assert resources["requests"] == resources["limits"], name
        assert resources["limits"]["cpu"].isdecimal(), name
        assert resources["limits"].get("nvidia.com/gpu") == (1 if name.endswith("gpu") else None)
        assert environment(pod)["RAY_worker_niceness"] == environment(pod)["RAY_memory_monitor_refresh_ms"] == "0"


def test_the_pods_of_a_machine_are_one_machine_in_the_records(job: dict[str, Any]) -> None:
    for name in GROUPS:
        host = environment(pods(job)[name])["KERAS_BENCHMARK_HOST"]
        assert host == {"fieldRef": {"fieldPath": "spec.nodeName"}}, name


def test_a_machine_has_one_pod_of_each_image_and_none_of_the_head(job: dict[str, Any]) -> None:
    def terms(name: str, kind: str) -> list[tuple[str, dict[str, str]]]:
        found = pods(job)[name]["affinity"].get(kind, {}).get("requiredDuringSchedulingIgnoredDuringExecution", [])
        return [(one["topologyKey"], one["labelSelector"]["matchLabels"]) for one in found]

    host = "kubernetes.io/hostname"
    for name in GROUPS:
        backend, _, device = name.partition("-")
        assert terms(name, "podAntiAffinity") == [(host, {"ray.io/group": name})]
        assert terms(name, "podAffinity") == ([(host, {"ray.io/group": f"tf-{device}"})] if backend != "tf" else [])
    assert terms("head", "podAntiAffinity") == [(host, {"ray.io/node-type": "worker"})]


def test_groups_with_gpus_start_only_if_they_are_scaled(job: dict[str, Any]) -> None:
    assert {name: group["replicas"] for name, group in groups(job).items()} == {
        name: 0 if name.endswith("gpu") else 1 for name in GROUPS
    }
    for name in GROUPS:
        on_gpu_nodes = "nvidia.com/gpu" in [one["key"] for one in pods(job)[name].get("tolerations", [])]
        assert on_gpu_nodes == ("nodeSelector" in pods(job)[name]) == name.endswith("gpu"), name


def test_no_probe_needs_the_agent_of_the_dashboard_or_starts_a_process(job: dict[str, Any]) -> None:
    """KubeRay adds its own probes, which need both, only where a container has none."""
    for name in GROUPS:
        port = groups(job)[name]["rayStartParams"]["node-manager-port"]
        for probe in ("readinessProbe", "livenessProbe"):
            assert container(pods(job)[name])[probe]["tcpSocket"] == {"port": int(port)}, name
    head = container(pods(job)["head"])
    [dashboard] = [one["containerPort"] for one in head["ports"] if one["name"] == "dashboard"]
    for probe in ("readinessProbe", "livenessProbe"):
        assert head[probe]["httpGet"]["port"] == dashboard


def test_every_pod_is_confined_as_the_services_of_compose_are(job: dict[str, Any]) -> None:
    for name, pod in pods(job).items():
        assert container(pod)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 10001)
        assert pod["automountServiceAccountToken"] is False
        writable = {one["name"]: one for one in pod["volumes"]}
        assert all("sizeLimit" in one["emptyDir"] for one in writable.values() if "emptyDir" in one), name
        assert environment(pod)["HOME"] == "/tmp"
    user = re.search(r"^USER (\d+):(\d+)", (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert user is not None
    assert user.groups() == ("10001", "10001")

"""The files for Kubernetes, as far as they can be checked without one."""

import copy
import functools
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from conservation import steps_of
from jobs import ROOT, free_port

from wbsp.ps.checkpoint import format as checkpoint

FOLDER = ROOT / "deploy/kubernetes"
VERSIONS = ["1.29", None]  # the oldest that docs/how-to/kubernetes.md names; the newest known
VARIABLES = {"WBSP_SERVER", "WBSP_WORKER_NUM", "WBSP_TOKEN_FILE"}


@pytest.fixture(scope="module", autouse=True)
def read_once():
    """kubernetes_validate reads its megabytes of schemas anew for each of some hundred checks."""
    utils = kubernetes_validate.utils
    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_versions", "schema_contents"):
            patch.setattr(utils, name, functools.cache(getattr(utils, name)))
        yield


def documents(text):
    return list(yaml.safe_load_all(text))


def plain():
    """What `kubectl apply -k deploy/kubernetes` applies, but for the image's name."""
    named = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    return [document for name in named for document in documents((FOLDER / name).read_text())]


def jobset():
    (document,) = documents((FOLDER / "jobset.yaml").read_text())
    return document


def kinds(resources):
    return sorted((resource["kind"], resource["metadata"]["name"]) for resource in resources)


def check(resource, version=None):
    """Raise ValidationError for a name or type that Kubernetes does not know."""
    kubernetes_validate.validate(
        resource, version or kubernetes_validate.latest_version(), strict=True)


def dropped(written, read, path=""):
    """Paths of the values in `written` that differ in `read`."""
    if isinstance(written, dict) and isinstance(read, dict):
        return [found for key in written for found in (
            dropped(written[key], read[key], f"{path}.{key}") if key in read
            else [f"{path}.{key}"])]
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        return [found for index, pair in enumerate(zip(written, read, strict=True))
                for found in dropped(*pair, f"{path}[{index}]")]
    return [] if written == read else [path]


def check_jobset(resource):
    """Raise ValueError for what the API of JobSet does not know, or not so."""
    # Takes seconds, which processes that only collect these tests need not spend.
    from kubeflow_trainer_api.models import JobsetV1alpha2JobSet

    read = JobsetV1alpha2JobSet.from_dict(copy.deepcopy(resource)).to_dict()
    if lost := dropped(resource, read):
        raise ValueError(f"unknown to JobSet: {', '.join(lost)}")
    for replicated in resource["spec"]["replicatedJobs"]:
        check({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": replicated["name"]},
               **replicated["template"]})


def places(node, path=()):
    """(path, value) of everything in a document."""
    yield path, node
    items = node.items() if isinstance(node, dict) else enumerate(
        node) if isinstance(node, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def changed(resource, path, change):
    """A copy in which `change(container, key)` was done to what lies at `path`."""
    resource = copy.deepcopy(resource)
    *way, key = path
    container = resource
    for step in way:
        container = container[step]
    change(container, key)
    return resource


def misspell(container, key):
    container[key + "s"] = container.pop(key)


def retype(container, key):
    container[key] = {"of": "another type"}


FREE = {"requests", "limits", "matchLabels", "selector", "labels"}  # maps with any keys


def broken(resource):
    """(what, copy) for each key of `resource`, in one element of each list: misspelled, and with a
    value of another type."""
    seen = {(), ("apiVersion",), ("kind",)}
    for path, value in places(resource):
        names = tuple(key for key in path if isinstance(key, str))
        if names in seen:
            continue
        seen.add(names)
        if not FREE & set(path[:-1]):
            yield f"misspelled {path}", changed(resource, path, misspell)
        if not isinstance(value, dict) and "resources" not in path:
            yield f"retyped {path}", changed(resource, path, retype)


def server_container(resources):
    (job,) = (found for found in resources if found["metadata"]["name"] == "wbsp-ps"
              and found["kind"] == "Job")
    return job["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_all_fields_of_the_files(version):
    resources = plain()
    assert kinds(resources) == [("Job", "wbsp-ps"), ("Job", "wbsp-worker"),
                                ("PersistentVolumeClaim", "wbsp-runs"), ("Service", "wbsp-ps")]
    for resource in resources:
        check(resource, version)


def test_jobset_knows_all_fields_of_its_file():
    check_jobset(jobset())


@pytest.mark.parametrize("resource", plain(), ids=lambda found: "-".join(kinds([found])[0]))
def test_a_broken_copy_is_noticed(resource):
    count = 0
    for what, copied in broken(resource):
        with pytest.raises(kubernetes_validate.ValidationError):
            check(copied)
            pytest.fail(f"passes: {what}")
        count += 1
    assert count >= 8


def test_a_broken_copy_of_the_jobset_is_noticed():
    count = 0
    for what, copied in broken(jobset()):
        try:
            check_jobset(copied)
        except (ValueError, kubernetes_validate.ValidationError):
            count += 1
        else:
            pytest.fail(f"passes: {what}")
    assert count > 80


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
def test_kubectl_renders_the_same_with_the_images_name(tmp_path):
    done = subprocess.run(["kubectl", "kustomize", FOLDER], capture_output=True, text=True,
                          env={**os.environ, "HOME": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("image: registry.example/wbsp:latest\n") == 2
    rendered = documents(done.stdout.replace("registry.example/wbsp:latest", "wbsp"))
    assert sorted(rendered, key=lambda found: kinds([found])) == sorted(
        plain(), key=lambda found: kinds([found]))
    for resource in documents(done.stdout):
        check(resource)


def test_both_variants_run_the_same():
    """The JobSet's Jobs are those of jobs.yaml, but for the server's name and what RUN is."""
    jobs = {resource["metadata"]["name"]: resource for resource in plain()
            if resource["kind"] == "Job"}
    for replicated in jobset()["spec"]["replicatedJobs"]:
        name = replicated["name"]
        written = {path: value for path, value in places(replicated["template"]["spec"])
                   if not isinstance(value, dict | list)}
        other = {path: value for path, value in places(jobs[f"wbsp-{name}"]["spec"])
                 if not isinstance(value, dict | list)}
        different = {path[-1] for path in written.keys() | other.keys()
                     if written.get(path) != other.get(path)}
        expected = {"image", "value"} | ({"completionMode", "completions", "parallelism",
                                          "fieldPath"} if name == "ps" else set())
        assert different == expected, name


def test_server_and_workers_have_matching_variables():
    for resources in ([resource["spec"] for resource in plain() if resource["kind"] == "Job"],
                      [found["template"]["spec"] for found in jobset()["spec"]["replicatedJobs"]]):
        ps, worker = resources
        said = [{entry["name"]: entry.get("value") for entry in
                 job["template"]["spec"]["containers"][0]["env"]} for job in (ps, worker)]
        assert said[0].keys() >= VARIABLES and VARIABLES - {"WBSP_WORKER_NUM"} == said[1].keys()
        assert said[0]["WBSP_SERVER"] == said[1]["WBSP_SERVER"]
        assert said[0]["WBSP_TOKEN_FILE"] == said[1]["WBSP_TOKEN_FILE"]
        assert int(said[0]["WBSP_WORKER_NUM"]) == worker["completions"] == worker["parallelism"]
        assert worker["completionMode"] == "Indexed", "which gives JOB_COMPLETION_INDEX"
        port = int(said[0]["WBSP_SERVER"].rpartition(":")[2])
        assert port == ps["template"]["spec"]["containers"][0]["ports"][0]["containerPort"]


def test_a_pod_gets_no_rights_that_it_does_not_need():
    for job in [*[resource["spec"] for resource in plain() if resource["kind"] == "Job"],
                *[found["template"]["spec"] for found in jobset()["spec"]["replicatedJobs"]]]:
        pod = job["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            assert container["securityContext"] == {"allowPrivilegeEscalation": False,
                                                    "capabilities": {"drop": ["ALL"]}}


def test_the_token_is_on_no_command_line():
    for path in (FOLDER / "kustomization.yaml", ROOT / "docs/how-to/kubernetes.md"):
        assert "--from-file=token" in path.read_text() and "--from-literal" not in path.read_text()


def test_the_image_begins_with_one_version_of_python():
    assert re.search(r"^ARG PYTHON=python:3\.\d+\.\d+-slim-\w+$",
                     (FOLDER / "Dockerfile").read_text(), re.MULTILINE)


def test_the_image_has_all_that_its_dockerfile_copies():
    lines = [line.split() for line in (FOLDER / "Dockerfile").read_text().splitlines()]
    named = [name for line in lines if line[:1] == ["COPY"] for name in line[1:-1]]
    assert "wbsp" in named and all((ROOT / name).exists() for name in named)


def test_the_servers_command_continues_where_a_drained_pod_was(jobs, tmp_path):
    """The command line of jobs.yaml: SIGTERM kills the server and does not end the run."""
    container, port = server_container(plain()), free_port()
    (tmp_path / "token").write_text("0123456789abcdef0123456789abcdef")
    said = {entry["name"]: entry.get("value") or "some-uid" for entry in container["env"]}
    said |= {"WBSP_SERVER": f"wbsp-ps:{port}", "WBSP_WORKER_NUM": "1",
             "WBSP_TOKEN_FILE": str(tmp_path / "token")}
    runs = str(tmp_path / "runs")
    command = [part.replace("$(RUN)", said["RUN"]).replace("/runs", runs)
               for part in container["command"]]

    def start():
        server = jobs.run("pod", *command, **said)
        server.until(f"listening on port {port}, waiting for 1 worker|resuming from version")
        return server

    first = start()
    assert first.find("no checkpoint found; starting a new run")
    worker = jobs.integer_worker(f"localhost:{port}", 0, steps=100, seconds=0.01,
                                 token_file=str(tmp_path / "token"))
    worker.until("step 30 done")
    first.signal(signal.SIGTERM)
    assert first.ends(10) == 128 + signal.SIGTERM
    second = start()
    assert second.find("resuming from version")
    worker.ends_well()
    second.ends_well()
    (path,) = Path(runs).glob("some-uid/pcc/run-001/checkpoint.safetensors")
    assert steps_of(checkpoint.load(path).state) == {0: 100}

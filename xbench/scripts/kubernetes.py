"""A manifest for plain Kubernetes: an Indexed Job with a pod per node, and a headless Service that names the pods.

It needs no operator. Pod i of Job NAME is reached as NAME-i.NAME, so pod 0 is torchrun's rendezvous; a pod's number is
JOB_COMPLETION_INDEX. A pod's disk is lost with the pod, so the record goes to pod 0's standard output, alone:
`kubectl logs` shows it.
"""

from __future__ import annotations

import json

from xbench.scripts import Launch, check, environment_comments, one_torchrun

PORT = 29500


def script(launch: Launch) -> str:
    """The text of the manifest."""
    name = launch.name
    lines = [
        f"# xbench {launch.command} on {launch.nodes} pods {launch.ranks_each}, written by `xbench script`",
        f"# with {launch.versions}.",
        *environment_comments(launch),
        "#     kubectl apply -f FILE",
        f"#     kubectl logs -f -l job-name={name},batch.kubernetes.io/job-completion-index=0",
        *_service(name),
        "---",
        *_job(launch),
    ]
    return "\n".join(lines) + "\n"


def _service(name: str) -> list[str]:
    """The headless Service that gives the Job's pods names."""
    return [
        "apiVersion: v1",
        "kind: Service",
        "metadata:",
        f"  name: {_text(name)}",
        "spec:",
        '  clusterIP: "None"',
        "  publishNotReadyAddresses: true",
        "  selector:",
        f"    job-name: {_text(name)}",
        "  ports:",
        "    - name: meeting",
        f"      port: {PORT}",
    ]


def _job(launch: Launch) -> list[str]:
    """The Indexed Job of one pod a node."""
    name = launch.name
    run = one_torchrun(launch, '"$JOB_COMPLETION_INDEX"', f"{name}-0.{name}", str(PORT))
    shell = ["set -eu", 'PYTHON="${PYTHON:-python3}"', *check(launch), f"exec {run}"]
    return [
        "apiVersion: batch/v1",
        "kind: Job",
        "metadata:",
        f"  name: {_text(name)}",
        "spec:",
        "  completionMode: Indexed",
        f"  completions: {launch.nodes}",
        f"  parallelism: {launch.nodes}",
        "  backoffLimit: 0",
        "  template:",
        "    spec:",
        f"      subdomain: {_text(name)}",
        "      restartPolicy: Never",
        "      affinity:",
        "        podAntiAffinity:",
        "          requiredDuringSchedulingIgnoredDuringExecution:",
        "            - topologyKey: kubernetes.io/hostname",
        "              labelSelector:",
        "                matchLabels:",
        f"                  job-name: {_text(name)}",
        "      containers:",
        "        - name: xbench",
        f"          image: {_text(launch.image or '')}",
        f"          command: {_text(['bash', '-c', chr(10).join(shell)])}",
        *_environment(launch),
        *_gpus(launch),
        "          volumeMounts:",
        "            - name: shm",
        "              mountPath: /dev/shm",
        "      volumes:",
        "        - name: shm",
        "          emptyDir:",
        "            medium: Memory",
    ]


def _text(value: object) -> str:
    """A value in YAML: JSON is YAML, and needs no further quoting."""
    return json.dumps(value)


def _environment(launch: Launch) -> list[str]:
    if not launch.environment:
        return []
    pairs = launch.environment.items()
    return ["          env:", *(f"            - {_text({'name': name, 'value': value})}" for name, value in pairs)]


def _gpus(launch: Launch) -> list[str]:
    if not launch.gpus:
        return []
    return ["          resources:", "            limits:", f"              nvidia.com/gpu: {launch.gpus}"]

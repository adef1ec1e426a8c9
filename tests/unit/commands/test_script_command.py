"""`xbench script`: scripts that a shell, Slurm and Kubernetes accept, and arguments that xbench accepts."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from xbench import scripts
from xbench.cli import main

INNER = ["compare", "resnet50", "--modes", "ddp,crossover:wfbp@b", "--quick", "--fabric", "cluster"]
HARD = {"NCCL_DEBUG": 'it\'s "$HOME" `x`\n2', "OMP_NUM_THREADS": "4"}


def launch(engine: str, **more: object) -> scripts.Launch:
    fields = {"nodes": 3, "ranks": 2, "environment": HARD, "written_with": {"Python": "3.11.7", "torch": "2.15.0"}}
    return scripts.Launch(engine, "compare", tuple(INNER[1:-2]), **fields | more)  # type: ignore[arg-type]


def bash(text: str) -> None:
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """A Python that says how it was called, and with which captured variables."""
    path = tmp_path / "python"
    path.write_text(
        '#!/usr/bin/env bash\n[ "$1" = -c ] && { echo 3.12.0 2.15.0; exit; }\nprintf "%s\\0" "$NCCL_DEBUG" "$@"\n'
    )
    path.chmod(0o755)
    return path


def test_the_torchrun_script_starts_what_it_says(stub: Path) -> None:
    text = scripts.written(launch("torchrun"))
    bash(text)
    place = {"PYTHON": str(stub), "PATH": "/usr/bin:/bin", "NODE_RANK": "1", "MASTER_ADDR": "node0"}
    done = subprocess.run(["bash"], input=text, text=True, capture_output=True, env=place)
    assert done.returncode == 0, done.stderr
    debug, *words = done.stdout.split("\0")[:-1]
    assert debug == HARD["NCCL_DEBUG"]
    assert words == [
        *["-m", "torch.distributed.run", "--nnodes", "3", "--nproc-per-node", "2", "--node-rank", "1"],
        *["--master-addr", "node0", "--master-port", "29500", "-m", "xbench"],
        *INNER,
    ]
    assert "this was written with Python and torch 3.11.7 2.15.0, and " in done.stderr
    assert done.stderr.strip().endswith("has 3.12.0 2.15.0")
    without = subprocess.run(["bash"], input=text, text=True, capture_output=True, env=place | {"NODE_RANK": ""})
    assert without.returncode != 0
    assert "the number of this node, from 0" in without.stderr


def test_the_slurm_script_asks_for_what_it_starts(stub: Path, tmp_path: Path) -> None:
    text = scripts.written(launch("slurm", time="1:30:00", gpus=8, partition="gpu", account="me"))
    bash(text)
    lines = text.splitlines()
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    asked = [line for line in lines[:first_command] if line.startswith("#SBATCH ")]
    assert asked == [
        "#SBATCH --job-name=xbench",
        "#SBATCH --nodes=3",
        "#SBATCH --ntasks-per-node=2",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --time=1:30:00",
        "#SBATCH --partition=gpu",
        "#SBATCH --account=me",
        "#SBATCH --output=xbench-%j.log",
        "#SBATCH --exclusive",
    ]
    assert not any(line.startswith("#SBATCH") for line in lines[first_command:])  # Slurm would not read them
    for name, body in {"scontrol": "echo n1; echo n2", "srun": 'echo "$MASTER_ADDR $MASTER_PORT $*"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    place = {"PYTHON": str(stub), "PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "123456"}
    done = subprocess.run(["bash"], input=text, text=True, capture_output=True, env=place | {"SLURM_JOB_NODELIST": "n"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"n1 23456 --kill-on-bad-exit=1 {stub} -m xbench {' '.join(INNER)}"


def test_the_kubernetes_manifest_is_a_service_and_an_indexed_job() -> None:
    text = scripts.written(launch("kubernetes", image="registry/xbench:1", gpus=4, name="cmp"))
    service, job = yaml.safe_load_all(text)
    assert (service["apiVersion"], service["kind"], service["metadata"]["name"]) == ("v1", "Service", "cmp")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": "cmp"}
    assert (job["apiVersion"], job["kind"], job["metadata"]["name"]) == ("batch/v1", "Job", "cmp")
    wanted = {"completionMode": "Indexed", "completions": 3, "parallelism": 3, "backoffLimit": 0}
    assert {key: job["spec"][key] for key in wanted} == wanted
    pod = job["spec"]["template"]["spec"]
    assert (pod["subdomain"], pod["restartPolicy"]) == (service["metadata"]["name"], "Never")
    (container,) = pod["containers"]
    assert container["image"] == "registry/xbench:1"
    assert {one["name"]: one["value"] for one in container["env"]} == HARD
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    interpreter, flag, shell = container["command"]
    assert (interpreter, flag) == ("bash", "-c")
    bash(shell)
    words = shlex.split(shell.splitlines()[-1])
    assert words[words.index("--node-rank") + 1] == "$JOB_COMPLETION_INDEX"
    assert words[words.index("--master-addr") + 1] == "cmp-0.cmp"
    assert words[-len(INNER) :] == INNER


@pytest.mark.parametrize("engine", scripts.ENGINES)
def test_an_awkward_argument_is_quoted(engine: str) -> None:
    path = "my dir/it's $x.py:make"
    made = scripts.Launch(engine, "profile", (path,), 2, 1, image="i")
    text = scripts.written(made)
    if engine == "kubernetes":
        text = list(yaml.safe_load_all(text))[1]["spec"]["template"]["spec"]["containers"][0]["command"][2]
    assert path in shlex.split(text.splitlines()[-1])


def test_what_changes_a_measurement_is_captured_and_nothing_else() -> None:
    environ = {
        "NCCL_IB_HCA": "mlx5", "GLOO_SOCKET_IFNAME": "eth0", "CUDA_VISIBLE_DEVICES": "0", "HOME": "/root",
        "AWS_SECRET": "x", "XBENCH_CACHE": "/c", "OMP_NUM_THREADS": "2", "NCCLX": "1", "TORCH_NCCL_BLOCKING_WAIT": "1",
    }  # fmt: skip
    assert list(scripts.captured(environ)) == [
        "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "OMP_NUM_THREADS", "TORCH_NCCL_BLOCKING_WAIT",
        "XBENCH_CACHE",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        *["XBENCH_CORES", "XBENCH_ROOTLESS"],  # of one run
        *["XBENCH_LINE", "XBENCH_BREAKS"],  # of the shell's completion
        *["XBENCH_UPDATE_GOLDEN", "XBENCH_GPU_DEVICE", "XBENCH_GPU_RESULTS"],  # of the tests
    ],
)
def test_what_tells_this_xbench_or_its_tests_something_does_not_travel(name: str) -> None:
    assert scripts.captured({name: "1"}) == {}


@pytest.mark.parametrize("engine", list(scripts.ENGINES))
def test_the_script_says_which_variables_it_took_and_holds_no_secret(
    engine: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in scripts.captured():
        monkeypatch.delenv(name)
    open_ones = {"NCCL_IB_HCA": "mlx5", "OMP_NUM_THREADS": "4", "UCX_IB_PKEY": "0x7fff"}
    secret = ["GLOO_API_TOKEN", "MKL_LICENSE_KEY", "NCCL_KEY", "OMP_PASSWORD_FILE", "UCX_SECRET"]
    for name, value in {**open_ones, **dict.fromkeys(secret, "hush")}.items():
        monkeypatch.setenv(name, value)
    image = ["--image", "a/b:1"] if engine == "kubernetes" else []
    assert main(["script", "--engine", engine, *image, "compare", "resnet18"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "# Set here as in the shell that wrote this: NCCL_IB_HCA, OMP_NUM_THREADS, UCX_IB_PKEY" in lines
    assert f"# Left out as secrets: {', '.join(secret)}" in lines
    assert not any("hush" in line for line in lines)


def test_a_script_that_took_nothing_says_nothing_of_it() -> None:
    assert scripts.environment_comments(scripts.Launch("slurm", "compare", (), 2, 1)) == []


def test_the_command_writes_a_script_to_stdout_or_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["script", "--engine", "slurm", "--nodes", "4", "--ranks-per-node", "2"]
    inner = ["compare", "resnet18", "--modes", "sequential,crossover"]
    assert main([*words, *inner]) == 0
    out = capsys.readouterr().out
    assert "#SBATCH --nodes=4" in out
    assert out.splitlines()[-1].endswith(f'"$PYTHON" -m xbench {" ".join(inner)} --fabric cluster')
    path = tmp_path / "job.sh"
    assert main([*words, "--output", str(path), *inner]) == 0
    assert path.read_text() == out


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ([], 1),
        (["--gpus-per-node", "8"], 8),
        (["--gpus-per-node", "8", "--ranks-per-node", "4"], 4),
        (["--gpus-per-node", "8", "--modes", "sequential,crossover"], 8),
        (["--modes", "sequential,crossover:processes=2"], 2),
        (["--gpus-per-node", "8", "--modes", "concurrent,crossover"], 16),
    ],
)
def test_a_rank_a_gpu_and_two_where_jobs_need_a_process_each(
    words: list[str], ranks: int, capsys: pytest.CaptureFixture[str]
) -> None:
    own = words[: words.index("--modes")] if "--modes" in words else words
    assert main(["script", "--engine", "slurm", *own, "compare", "resnet18", *words[len(own) :]]) == 0
    out = capsys.readouterr().out
    assert f"#SBATCH --ntasks-per-node={ranks}\n" in out
    assert f"on 2 nodes with {ranks} rank{'s' if ranks > 1 else ''} each," in out


def test_a_pod_s_record_goes_to_its_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["script", "--engine", "kubernetes", "--image", "i", "profile", "resnet18"]) == 0
    assert re.search(r"-m xbench profile resnet18 --json - --fabric cluster", capsys.readouterr().out)


@pytest.mark.parametrize("words", [["--json=out.json"], ["--json", "out.json"]])
def test_a_pod_s_record_goes_where_the_command_says(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["script", "--engine", "kubernetes", "--image", "i", "profile", "resnet18", *words]) == 0
    assert f"-m xbench profile resnet18 {' '.join(words)} --fabric cluster" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--engine", "slurm", "compare", "--modes", "wfpb"], "unknown mode 'wfpb'"),
        (["--engine", "slurm", "compare", "resnet51"], "unknown workload 'resnet51'"),
        (["--engine", "slurm", "compare", "--roundz", "2"], "has no option '--roundz'"),
        (["--engine", "slurm", "compare", "--rounds", "0"], "--rounds"),
        (["--engine", "slurm", "compare", "--fabric", "local:ranks=2"], "is of one machine"),
        (["--engine", "slurm", "compare", "--reference", "single", "--modes", "ddp"], "not among the modes"),
        (["--engine", "slurm", "--ranks-per-node", "1", "compare", "--modes", "concurrent"], "needs 2 ranks a device"),
        (["--engine", "slurm", "--ranks-per-node", "1", "compare", "--modes", "ddp,hsdp"], "needs two or more groups"),
        (["--engine", "slurm", "compare", "--modes", "ddp,fsdp", "--compress", "bf16"], "and not as bf16"),
        (["--engine", "slurm", "tunes", "resnet18"], "unknown command for a script 'tunes'"),
        (["--engine", "slurmm", "compare"], "slurmm"),
        (["--engine", "slurm", "--time", "soon", "compare"], "not a time limit"),
        (["--engine", "torchrun", "--partition", "gpu", "compare"], "--partition is Slurm's"),
        (["--engine", "slurm", "--partition", "a b", "compare"], "does not fit on a line of #SBATCH"),
        (["--engine", "slurm", "--name", "-x y", "compare"], "is no name for a job"),
        (["--engine", "slurm", "compare", "--until", "2%"], "--until starts the ranks again"),
        (["--engine", "kubernetes", "compare"], "needs an image"),
        (["--engine", "slurm", "--image", "i", "compare"], "--image is for Kubernetes"),
        (["--engine", "slurm", "--output", "nowhere/job.sh", "compare"], "--output"),
        (["--engine", "slurm"], "missing argument"),
        (["compare"], "--engine"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_input_is_one_sentence(refused: Callable[..., str], words: list[str], sentence: str) -> None:
    assert sentence in refused("script", *words)

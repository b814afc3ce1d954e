"""Data parallel runs as they are launched: torchrun, two machines, SLURM, a notebook; and faults.

A run that was killed, put back into the queue or spread over machines ends with the weights of one
that was not.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from project.commands.cli import main
from project.engine.checkpoint_io import load_checkpoint

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {
    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests/machinery/support'}",
    "OMP_NUM_THREADS": "1",
}
OPTIONS = ["--config", "synthetic", "--model", "MLP", "--model.hidden_sizes", "[32, 16]"]
OPTIONS += ["--data.train_size", "104", "--data.val_size", "0", "--data.test_size", "0"]
OPTIONS += ["--data.image_size", "8", "--data.batch_size", "8", "--data.augment", '{"crop": 2}']
OPTIONS += ["--monitor", "train/loss", "--trainer.max_epochs", "3", "--preflight", "false"]
OPTIONS += ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
OPTIONS += ["--trainer.enable_model_summary", "false"]  # 13 steps an epoch, dropout
FIT = [sys.executable, "-m", "project", "fit", *OPTIONS]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
DDP = ["--trainer.strategy", "ddp", "--trainer.devices", "2"]
LAST = Path("runs/synthetic/version_0/checkpoints/last.ckpt")
ON_CALL = "--trainer.callbacks+"  # followed by a callback
LIMIT_S = 120
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")  # states of a SLURM job

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and gloo of Linux")


def run(command: list[str], cwd: Path, **environment: str) -> tuple[int, str]:
    """Return exit code and output of a command; none of its processes is left."""
    environment |= {"PROJECT_TEST": str(cwd)}
    with (cwd / "log.txt").open("w+") as log:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=os.environ | ENVIRONMENT | environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(LIMIT_S)
        finally:
            left = processes(cwd)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        log.seek(0)
        output = log.read()
    assert not left, f"still running: {left}\n{output}"
    return code, output


def processes(folder: Path) -> list[int]:
    """All that `run` has started in a folder, at any depth, by their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"PROJECT_TEST={folder}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
        except OSError:  # it has ended, or is another user's
            continue
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Weights of a run on two processes that Lightning starts, and nothing interrupts."""
    folder = tmp_path_factory.mktemp("twin")
    code, output = run([*FIT, *DDP], folder)
    assert code == 0, output
    return load_checkpoint(folder / LAST)["state_dict"]


def check_same(folder: Path, twin: dict[str, torch.Tensor]) -> None:
    found = load_checkpoint(folder / LAST)["state_dict"]
    assert found.keys() == twin.keys()
    assert all(torch.equal(found[name], expected) for name, expected in twin.items())


# torchrun


@pytest.mark.slow
def test_kill_9_under_torchrun(twin: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """One process is killed in the second epoch; both continue from the end of the first."""
    torchrun = [*TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "1"]
    torchrun += ["--master-port", free_port(), "-m", "--"]
    fault = ["--ckpt_path", "last", ON_CALL, "rank_callbacks.Kill"]
    code, output = run([*torchrun, *FIT[2:], *DDP, *fault], tmp_path)
    assert code == 0, output
    assert output.count("Resuming runs/synthetic/version_0.") == 1
    assert "exitcode: -9" in output
    check_same(tmp_path, twin)


def test_ctrl_c_under_torchrun(tmp_path: Path) -> None:
    """The terminal signals torchrun, and that its processes, which save and end."""
    torchrun = [*TORCHRUN, "--nproc-per-node", "2", "--master-port", free_port(), "-m", "--"]
    slow = [ON_CALL, "rank_callbacks.Slow"]
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(run, [*torchrun, *FIT[2:], *DDP, *slow], tmp_path)
        wait_for(lambda: (tmp_path / LAST).exists() or ended.done())
        first = min(processes(tmp_path))
        os.killpg(first, signal.SIGINT)
        code, output = ended.result()
    assert code != 0
    assert "Saved after step" in output, output


def test_two_machines(twin: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """Two network namespaces, joined by a cable, with one process on each."""
    names = [f"project_{os.getpid()}_{i}" for i in range(2)]
    try:
        connect(names)
        commands = [
            [
                *("ip", "netns", "exec", name, *TORCHRUN, "--nnodes", "2", "--node-rank", str(i)),
                *("--nproc-per-node", "1", "--master-addr", "10.231.0.1", "--master-port", "29500"),
                *("-m", "--", *FIT[2:], "--trainer.num_nodes", "2", "--trainer.devices", "1"),
                *(
                    "--trainer.strategy",
                    "ddp",
                    "--trainer.default_root_dir",
                    str(tmp_path / "runs"),
                ),
            ]
            for i, name in enumerate(names)
        ]
        folders = [tmp_path / str(i) for i in range(2)]
        for folder in folders:
            folder.mkdir()
        with ThreadPoolExecutor() as pool:
            results = list(
                pool.map(lambda *args: run(*args, GLOO_SOCKET_IFNAME="cable"), commands, folders)
            )
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
    assert [code for code, _ in results] == [0, 0], results
    check_same(tmp_path, twin)


def connect(names: list[str]) -> None:
    """Create two network namespaces that reach each other and nothing else."""
    cable = "ip link add cable netns {} type veth peer name cable netns {}".format(*names)
    commands = [f"ip netns add {name}" for name in names] + [cable]
    for i, name in enumerate(names, start=1):
        commands += [f"ip -n {name} addr add 10.231.0.{i}/24 dev cable"]
        commands += [f"ip -n {name} link set {device} up" for device in ("lo", "cable")]
    for command in commands:
        try:
            subprocess.run(command.split(), check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", b"").decode().strip() or error
            pytest.skip(f"no network namespaces here: {command}: {reason}")


# SLURM


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A cluster of one node, and the environment to reach it."""
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/opt/slurm/bin"])
    needed = ("slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol")
    if missing := [name for name in needed if shutil.which(name, path=path) is None]:
        pytest.skip(f"no SLURM here, such as Debian's slurm-wlm: {', '.join(missing)} missing")
    if os.getuid():
        pytest.skip("a cluster can only be started by root")
    folder = tmp_path_factory.mktemp("slurm")
    conf = folder / "slurm.conf"
    host = socket.gethostname()
    conf.write_text(
        f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2
PartitionName=all Nodes=ALL Default=YES
"""
    )
    for name in ("state", "spool"):
        (folder / name).mkdir()
    environment = {"PATH": path, "SLURM_CONF": str(conf)}
    daemons = []
    try:
        for name in ("slurmctld", "slurmd"):
            command = [str(shutil.which(name, path=path)), "-D"]
            with (folder / f"{name}.out").open("w") as out:
                daemons.append(
                    subprocess.Popen(command, env=os.environ | environment, stdout=out, stderr=out)
                )
        for _ in range(100):
            if "idle" in slurm_says(environment, "sinfo", "--noheader"):
                break
            time.sleep(0.1)
        else:
            pytest.skip("SLURM does not start here: " + (folder / "slurmd.log").read_text()[-300:])
        yield environment
    finally:
        slurm_says(environment, "scancel", "--user", "root")
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(30)


def slurm_says(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(
        command, env=os.environ | ENVIRONMENT | environment, capture_output=True, text=True
    )
    return done.stdout


def test_slurm_requeues(
    slurm: dict[str, str], twin: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """The warning before the time limit, in the second epoch; the same job then finishes."""
    environment = slurm | {"PYTHON": sys.executable}
    script = ["sbatch", "--parsable", f"--chdir={tmp_path}", "--ntasks-per-node=2"]
    script += [str(ROOT / "scripts/slurm.sbatch"), *OPTIONS, ON_CALL, "rank_callbacks.Slow"]
    job = slurm_says(environment, *script).strip()
    log = tmp_path / f"slurm-{job}.log"
    wait_for((tmp_path / LAST).exists)
    slurm_says(environment, "scancel", "--signal=USR1", job)

    def state() -> str:
        query = ["squeue", "--noheader", "--states=all", "--job", job, "--format=%T"]
        return slurm_says(environment, *query).strip()

    wait_for(lambda: state() in ("PENDING", *ENDED))
    assert state() == "PENDING", log.read_text()
    # Sooner than the two minutes of SLURM, but not in the second that revokes the old credential.
    slurm_says(environment, "scontrol", "update", f"jobid={job}", "starttime=now+3")
    wait_for(lambda: state() in ENDED)
    output = log.read_text()
    assert output.count("Saved after step") == 1, output
    assert output.count("Resuming runs/synthetic/version_0.") == 1, output
    assert "Stopped by max_epochs after 3 epochs." in output, output
    assert not list(tmp_path.rglob("hpc_ckpt*")), "Lightning has saved too"
    check_same(tmp_path, twin)


@pytest.mark.parametrize("code", [0, 1, 138, 143])
def test_only_the_warning_puts_a_job_back(code: int, tmp_path: Path) -> None:
    """The script alone, with stand-ins for SLURM's commands."""
    for name in ("srun", "scontrol"):
        stand_in = tmp_path / name
        end = f"exit {code}" if name == "srun" else "exit 0"
        stand_in.write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n{end}\n')
        stand_in.chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    environment |= {"SLURM_NNODES": "3", "SLURM_NTASKS_PER_NODE": "4"}
    script = ["bash", str(ROOT / "scripts/slurm.sbatch"), "--config", "a config"]
    ended, _ = run(script, tmp_path, **environment)
    first, *others = (tmp_path / "calls").read_text().splitlines()
    assert "-m project fit --config a config" in first
    assert "--trainer.num_nodes 3 --trainer.devices 4" in first
    assert first.endswith("--ckpt_path last")
    assert others == (["scontrol requeue 7"] if code == 138 else [])
    assert ended == (0 if code == 138 else code)


# Faults


def errors(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("error: ")]


@pytest.mark.parametrize("fault", ["Raise", "Crash"])
def test_the_error_of_one_process_is_shown_and_ends_the_others(fault: str, tmp_path: Path) -> None:
    start = time.monotonic()
    code, output = run([*FIT, *DDP, ON_CALL, f"rank_callbacks.{fault}"], tmp_path)
    assert time.monotonic() - start < 60
    assert code != 0
    other = "error: process 0 has lost another one of the run, whose own error is the cause"
    message = {
        "Raise": "ValueError in {}: the disk of this machine is full",
        "Crash": "ZeroDivisionError in {}: a mistake in the code of process 1",
    }[fault]
    place = r"\S+rank_callbacks.py, line \d+"
    (error,) = [line for line in errors(output) if line != other]
    assert re.fullmatch(f"error: {message.format(place)}", error), error
    assert output.count("Traceback") == 1


def test_the_end_of_a_process_is_not_aborted(tmp_path: Path) -> None:
    """By gloo, whose threads let go of their last tensors only now."""
    script = (
        "import sys, torch, lightning.pytorch, project.engine.processes\n"
        "from torch import distributed\n"
        "store = distributed.FileStore('store', 2)\n"
        "rank = int(sys.argv[1])\n"
        "distributed.init_process_group('gloo', store=store, rank=rank, world_size=2)\n"
        "distributed.barrier()\n"
        "for _ in range(100):\n"
        "    distributed.all_reduce(torch.ones(1), async_op=True)\n"
    )
    command, environment = [sys.executable, "-c", script], os.environ | ENVIRONMENT
    processes = [
        subprocess.Popen([*command, str(rank)], cwd=tmp_path, env=environment) for rank in range(2)
    ]
    assert [process.wait(LIMIT_S) for process in processes] == [0, 0]


@pytest.mark.slow
def test_a_process_that_hangs_ends_the_run(tmp_path: Path) -> None:
    command = [*FIT, *DDP, ON_CALL, "rank_callbacks.Hang", "--max_wait_s", "10"]
    code, output = run(command, tmp_path)
    assert code == 1
    (error,) = errors(output)
    assert "process 0 waited in vain for another one" in error
    assert "--max_wait_s" in error
    assert "Traceback" not in output


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, output = run([*FIT, *DDP, "--max_wait_s", "20"], tmp_path, MASTER_PORT=port)
    assert code == 1
    assert f"error: port {port} is taken: set MASTER_PORT to a free one" in errors(output)


def test_a_first_process_that_is_not_there(tmp_path: Path) -> None:
    port = free_port()
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "1"}
    two = ["--trainer.strategy", "ddp", "--trainer.devices", "1", "--trainer.num_nodes", "2"]
    code, output = run([*FIT, *two, "--max_wait_s", "2"], tmp_path, **place)
    assert code == 1
    (error,) = errors(output)
    assert f"did not meet the others at 127.0.0.1:{port}" in error
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--trainer.accelerator", "cuda", "--trainer.devices", "64"], "64|CUDA|cuda"),
        (["--trainer.devices", "[7]"], "--trainer.devices: `devices` selected with"),
        (["--trainer.devices", "0"], "devices='?0"),
        (["--trainer.devices", "3", "--trainer.strategy", "ddp"], "use a multiple of 3"),
    ],
    ids=["GPUs", "list", "none", "batch"],
)
def test_devices_that_cannot_be_used(
    options: list[str],
    sentence: str,
    exit_code: Callable[[list[str]], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code([*FIT[3:], *options]) in (1, 2)
    (error,) = errors(capsys.readouterr().err)
    assert re.search(sentence, error), error


@pytest.mark.filterwarnings("ignore:Total length of `list` across ranks is zero")
def test_machines_without_a_common_folder(tmp_path: Path) -> None:
    """One process would resume and the other would start from scratch, so both refuse."""
    root = "--trainer.default_root_dir"
    main([*FIT[3:], "--trainer.max_epochs", "1", root, str(tmp_path / "first")])
    record = tmp_path / "first/synthetic/version_0/run.json"
    record.write_text(record.read_text().replace('"max_epochs"', '"SIGTERM"'))
    torchrun = [*TORCHRUN, "--nproc-per-node", "1", "--nnodes", "2", "--master-addr", "127.0.0.1"]
    torchrun += ["--master-port", free_port(), "--node-rank"]
    options = ["--ckpt_path", "last", "--trainer.num_nodes", "2", "--trainer.devices", "1"]
    options += ["--trainer.strategy", "ddp", root]
    commands = []
    for rank, name in enumerate(["first", "second"]):
        (tmp_path / name).mkdir(exist_ok=True)
        command = [*torchrun, str(rank), "-m", "--", *FIT[2:], *options, str(tmp_path / name)]
        commands.append((command, tmp_path / name))
    with ThreadPoolExecutor() as pool:
        results = list(pool.map(lambda arguments: run(*arguments), commands))
    for code, output in results:
        assert code == 1
        assert "error: process 0 starts at step 13" in output, output
        assert "where all machines see it" in output


# Notebooks


@pytest.mark.parametrize("strategy", ["ddp", "ddp_notebook"])
def test_in_a_notebook(strategy: str, twin: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """Spawned processes can't run a cell, and the error says which kind can."""
    pytest.importorskip("ipykernel")
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    from tests.template.test_notebooks import ThisInterpreter

    args = [*FIT[3:], "--trainer.strategy", strategy, "--trainer.devices", "2"]
    cell = nbformat.v4.new_code_cell(f"from project.commands.cli import main\nmain({args!r})")
    client = nbclient.NotebookClient(
        nbformat.v4.new_notebook(cells=[cell]),
        timeout=LIMIT_S,
        kernel_manager_class=ThisInterpreter,
        resources={"metadata": {"path": str(tmp_path)}},
    )
    environment = os.environ | ENVIRONMENT | {"IPYTHONDIR": str(tmp_path / "ipython")}
    if strategy == "ddp_notebook":
        client.execute(env=environment)
        check_same(tmp_path, twin)
        return
    with pytest.raises(nbclient.exceptions.CellExecutionError) as caught:
        client.execute(env=environment)
    assert "choose a notebook-compatible strategy" in caught.value.evalue
    assert "ddp_notebook" in caught.value.evalue

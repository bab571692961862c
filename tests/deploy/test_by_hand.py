"""Without a scheduler: the commands of docs/how-to/several-machines.md, with the script of
docs/tutorial/your-model.md."""

import signal

import pytest
from conservation import steps_of
from docs_code import commands_of, python_of
from jobs import free_port

from wbsp.ps.checkpoint import format as checkpoint


@pytest.mark.slow
@pytest.mark.long
def test_the_commands_train_the_script_unchanged(jobs):
    (jobs.folder / "train.py").write_text(python_of("tutorial/your-model.md"))
    commands = commands_of("how-to/several-machines.md", "By hand")
    commands = commands.replace(":2606", f":{free_port()}")
    assert "nohup" in commands and "WBSP_SERVER" in commands
    shell = jobs.run("shell", "bash", "-c", f"""
trap 'kill -KILL $(jobs -p); exit 143' TERM
{commands}
wait""")
    try:
        shell.ends_well()
    finally:
        if shell.process.poll() is None:
            shell.signal(signal.SIGTERM)
            shell.ends(10)
    server = (jobs.folder / "ps.log").read_text()
    assert "no checkpoint found; starting a new run" in server
    for index in range(2):
        assert "Epoch 5/5" in (jobs.folder / f"worker-{index}.log").read_text()
    assert (jobs.folder / "model.keras").exists()
    saved = checkpoint.load(jobs.folder / "runs/pcc/run-001/checkpoint.safetensors")
    assert sum(steps_of(saved.state).values()) == 1000

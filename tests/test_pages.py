"""Each block of README and the pages, pasted in its order as a reader would.

The reader's environment has no variable of wbsp; see `tests/helpers/pages.py`. README is tested in
every commit, the other pages in the night (WBSP_DOCS=1). `HOW` lists what a reader does in addition
to pasting, and the blocks that one machine cannot run, with the reason.
"""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass, field

import pytest
from jobs import ROOT
from pages import Block, Reader, blocks, pages, why_no_network

FIRST = "docs/tutorial/first-training.md"
ALWAYS = ("README.md",)
PATIENCE, LONG = 840.0, 7200.0  # seconds for a page of every commit, and for one of the night


@dataclass(frozen=True)
class Elsewhere:
    """A block that this test does not run, and the reason, or the test that runs it."""

    reason: str


@dataclass(frozen=True)
class Saved:
    """Python that the reader saves under this name, below what the page supposes, and runs."""

    name: str
    before: str = ""
    after: str = ""
    run: str = ""  # a command of the shell; none: a later block runs it
    needs: str = ""  # a package without which the block is left out


@dataclass(frozen=True)
class Pasted:
    """Lines of a shell.

    Attributes:
        words: what stands for something of the reader's, and what that is.
        before, after: what the reader does before and after, in the same terminal.
        terminal: it has a terminal of its own, in which the reader waits for this text.
        ends: such a command ends by itself, with exit code 0; otherwise the reader ends it at once.
    """

    words: dict[str, str] = field(default_factory=dict)
    before: str = ""
    after: str = ""
    terminal: str = ""
    ends: bool = True


SERVER = "listening on"  # what a server prints when workers may come
INSTALL = "tests/test_install.py types it in a new environment"
NO_CLUSTER = "needs a cluster; tests/deploy checks its files"
# Drawn images in the place and the form of CIFAR-10's: one file with six names.
CIFAR10 = """folder=~/.keras/datasets/cifar-10-batches-bin; mkdir -p $folder
python -c "import numpy as np; draw = np.random.default_rng(0)
records = draw.integers(0, 256, (10000, 3073), np.uint8); records[:, 0] %= 10
records.tofile('$folder/test_batch.bin')"
for k in 1 2 3 4 5; do ln $folder/test_batch.bin $folder/data_batch_$k.bin; done
"""
# The whole training takes a day on two cores: the reader looks at its beginning, and ends it.
BEGINNING = """for i in 0 1; do
    until grep -q "worker $i: step [1-9]" wk$i.log; do sleep 0.2; done
done
until grep -q "version [1-9]" ps.log; do sleep 0.2; done
kill -TERM $(jobs -p); wait || true; tail -n 3 ps.log wk0.log wk1.log
! grep Traceback ps.log wk0.log wk1.log
"""

# The script of the tutorial, for pages that suppose one.
OWN = "docs/tutorial/your-model.md"
TRAIN = f"cat >train.py <<'END'\n{blocks(OWN)[0].text}END\n"
TWO = TRAIN + "wbsp run --workers=2 --sync=pcc train.py\n"  # leaves runs/pcc/run-001
LOOP_OF_README = f"cat >loop.py <<'END'\n{blocks('README.md')[4].text}END\n"
MODEL = """import keras
import numpy as np
import wbsp

x = np.random.default_rng(0).normal(size=(6400, 32)).astype("float32")
y = x[:, :10].argmax(axis=1)
def build():
    return keras.Sequential([keras.Input((32,)), keras.layers.Dense(64, "relu"),
                             keras.layers.BatchNormalization(), keras.layers.Dense(10)])
model = build()
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
"""
TORCH = """import contextlib
import math
import torch
import wbsp

x = torch.randn(6400, 32)
y = x[:, :10].argmax(1)
model = torch.nn.Linear(32, 10)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
"""
BLOCK = """within = contextlib.ExitStack()
w = within.enter_context(wbsp.Worker(model, n=len(x), batch_size=64, epochs=2))
"""
LOOP = """for epoch in w.epochs():
    for xs, ys in w.batches(x, y):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(xs), ys)
        loss.backward()
        optimizer.step()
        scheduler.step()
        w.step(loss)
within.close()
assert optimizer.param_groups[0]["lr"] < 0.1 and w.done == 1
"""
SHARED = """hook = wbsp.SyncCallback()
data = hook.examples(lambda i: (x[i], y[i]), n=len(x), batch_size=64)
"""
PICTURES = """import numpy as np
import tensorflow as tf

def feature(kind, value):
    value = getattr(tf.train, kind.title() + "List")(value=[value])
    return tf.train.Feature(**{f"{kind}_list": value})

with tf.io.TFRecordWriter("train.tfrecord") as file:
    for k in range(20):
        picture = tf.io.encode_png(np.full((8, 8, 3), k, np.uint8)).numpy()
        file.write(tf.train.Example(features=tf.train.Features(feature={
            "image": feature("bytes", picture), "label": feature("int64", k)})).SerializeToString())
"""
TWO_PICTURES = """images, labels = examples([3, 17])
assert labels.numpy().tolist() == [3, 17] and (images[1].numpy() == 17).all()
"""
CLUSTER = """cat >my-cluster.toml <<'END'
batch_size = 64
[server]
bandwidth = "1Gbit"
[[workers]]
step_seconds = "50ms"
bandwidth = "1Gbit"
[[workers]]
step_seconds = "90ms"
bandwidth = "1Gbit"
END
"""
SITES = """cat >my-sites.toml <<'END'
[server]
bandwidth = "1Gbit"
[[sites]]
count = 2
bandwidth = "10Mbit"
latency = "50ms"
[[sites.workers]]
count = 2
step_seconds = "200ms"
bandwidth = "100Mbit"
END
"""

ADVICE = "docs/tutorial/which-model.md"


def toml_of(page: str) -> str:
    """The first file in TOML that a page shows."""
    found = re.search(r"^```toml\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert found, page
    return found[1]


def before_fit(page: str) -> str:
    """The first script of a page, down to the line before `fit`."""
    script, _, _ = blocks(page)[0].text.partition("model.fit(")
    return script


HOW: dict[str, dict[int, Elsewhere | Saved | Pasted]] = {
    "README.md": {
        1: Pasted(words={"git clone <this repository> wbsp && ": "", "cd wbsp": ":"}),
        2: Saved("train.py"),
        4: Elsewhere("needs two machines; tests/test_two_machines.py runs its lines on two hosts"),
        5: Saved("loop.py", run="wbsp run --workers=2 loop.py", needs="torch"),
        6: Pasted(before=CIFAR10, after=BEGINNING),
    },
    "CONTRIBUTING.md": {1: Elsewhere("scripts/test.sh makes the same environment"),
                        2: Elsewhere("runs this test")},
    "docs/contributing/nightly.md": {1: Elsewhere("takes a night")},
    "docs/README.md": {1: Elsewhere("tests/test_site.py builds the site")},
    "docs/explanation/simulation.md": {
        1: Pasted(words={"--runs=10000": "--runs=100"}),
        2: Pasted(words={"=2000": "=20"}),
    },
    "docs/how-to/any-loop.md": {
        1: Saved("loop.py", run="wbsp run --workers=2 loop.py", needs="torch"),
        2: Elsewhere("needs evaluate.py, which evaluation.md has, and runs"),
        3: Saved("cosine.py", before=TORCH + BLOCK, after=LOOP,
                 run="wbsp run --workers=2 cosine.py", needs="torch"),
        4: Elsewhere("a part of a script; tests/worker/test_rate.py"),
        5: Elsewhere("needs two processes a worker; tests/worker/test_ranks.py"),
        6: Elsewhere("needs a worker on Keras beside it; tests/worker/test_every_loop.py"),
        7: Elsewhere("a part of a script; tests/worker/test_trials.py"),
    },
    "docs/how-to/back-ends.md": {1: Elsewhere(INSTALL)},
    "docs/how-to/evaluation.md": {
        1: Saved("evaluate.py", run=TRAIN + "wbsp ps --worker_num=1 & python train.py & "
                 "python evaluate.py; wait"),
        2: Saved("evaluate.py", run=LOOP_OF_README + "wbsp ps --worker_num=1 & python loop.py & "
                 "python evaluate.py; wait", needs="torch"),
        3: Elsewhere("the same two commands as above, in two terminals"),
    },
    "docs/how-to/imagenet.md": {
        1: Elsewhere("needs ImageNet; tests/test_imagenet_launcher.py has drawn pictures")},
    "docs/how-to/kubernetes.md": {1: Elsewhere(NO_CLUSTER), 2: Elsewhere(NO_CLUSTER)},
    "docs/how-to/less-traffic.md": {
        1: Elsewhere("two ways in one block; tests/worker/test_local_runs.py")},
    "docs/how-to/new-model.md": {
        1: Saved("kasync.py"), 2: Saved("test_kasync.py"),
        3: Pasted(words={"pip install pytest hypothesis\n": ""}),
        5: Pasted(terminal=SERVER, ends=False),
        6: Pasted(before=CIFAR10, terminal=SERVER, ends=False),
    },
    "docs/how-to/own-task.md": {
        1: Elsewhere("tests/simulate/test_command.py"),
        **{block: Elsewhere("tests/simulate/workloads/test_own.py") for block in (2, 3, 4)},
    },
    "docs/how-to/pytorch.md": {
        1: Pasted(before=TRAIN),
        **{number: Elsewhere("tests/test_pytorch_recipes.py") for number in range(2, 8)},
    },
    "docs/how-to/ray.md": {
        1: Elsewhere("needs GPUs and a Ray cluster; tests/ray runs it on one of several nodes"),
        2: Elsewhere("tests/ray; examples/train_on_ray.py is a whole script")},
    "docs/how-to/resume.md": {
        1: Elsewhere("its first line ends by a death; tests/faults/test_server_kills.py")},
    "docs/how-to/run.md": {
        1: Pasted(before=TRAIN), 2: Pasted(before="mkdir package; cp train.py package\n"),
        3: Elsewhere("needs machines; tests/run/test_run_hosts.py"),
        4: Elsewhere("needs two machines; tests/run"),
        5: Elsewhere("needs two machines; tests/run"),
    },
    "docs/how-to/schedules.md": {
        1: Saved("schedule.py", before=MODEL + SHARED, run="wbsp run --workers=2 schedule.py"),
        2: Saved("cosine.py", before=MODEL + SHARED + """import math
model.compile(keras.optimizers.SGD(0.1), loss)
schedule = """, after="""model.fit(data, epochs=2, steps_per_epoch=hook.UNTIL_TOLD, verbose=0,
          callbacks=[hook, schedule])
assert float(model.optimizer.learning_rate) < 0.1 and hook.done == 1
""", run="wbsp run --workers=2 cosine.py"),
    },
    "docs/how-to/several-machines.md": {
        1: Pasted(before=TRAIN, after="wait; tail -n 3 ps.log worker-0.log worker-1.log"),
        2: Elsewhere("needs two machines; tests/test_two_machines.py runs it on two hosts"),
        3: Elsewhere(INSTALL),
    },
    "docs/how-to/shards.md": {1: Elsewhere("needs machines; tests/ps/sharding, tests/faults")},
    "docs/how-to/shared-data.md": {
        1: Saved("records.py", before=PICTURES, after=TWO_PICTURES, run="python records.py"),
        2: Saved("stream.py", before="import tensorflow as tf\n" + MODEL + "images, labels = x, y\n"
                 "model.compile('sgd', loss)\n",
                 run="wbsp ps --worker_num=1 & python stream.py; wait"),
    },
    "docs/how-to/simulate.md": {
        1: Pasted(words={"--model=cnn --dataset=cifar10": "--model=small --dataset=shapes10"}),
        2: Pasted(words={"--max_steps=16000": "--max_steps=160"}),
        3: Pasted(before=CIFAR10), 4: Pasted(before=CLUSTER),
        5: Elsewhere("tests/simulate/study/test_recorded.py"),
    },
    "docs/how-to/sites.md": {
        1: Elsewhere("needs machines; tests/faults/test_sites.py"),
        2: Elsewhere("takes long; lab/tests"), 3: Pasted(before=SITES),
    },
    "docs/how-to/slurm.md": {1: Elsewhere("needs Slurm; tests/deploy/test_slurm.py")},
    "docs/how-to/standby.md": {1: Elsewhere("tests/faults/test_standby.py")},
    "docs/how-to/watch.md": {
        1: Elsewhere("runs until it is ended; tests/watch"),
        2: Elsewhere("needs machines; tests/watch"),
        3: Elsewhere("runs until it is ended; tests/watch"),
        4: Elsewhere("needs an account; tests/watch/test_trackers.py"),
        5: Elsewhere("tests/watch/test_trackers.py"),
    },
    "docs/reference/files.md": {
        1: Saved("load.py", before=MODEL, run=TWO + "python load.py"),
        3: Elsewhere("tests/test_export.py"),
    },
    FIRST: {
        1: Saved("train.py"),
        2: Pasted(terminal=SERVER),
        4: Pasted(words={"wbsp watch": "wbsp watch --out=report.html"}),
        5: Saved("load.py", before="import keras\nimport wbsp\n" + re.search(
            r"^model = .*?(?=^model.compile)", blocks(FIRST)[0].text, re.DOTALL | re.MULTILINE)[0],
                 run="python load.py"),
    },
    "docs/tutorial/reproduce.md": {
        1: Pasted(before=CIFAR10, words={
            "scripts/run_h1.sh  ": "scripts/run_h1.sh wbsp --until=20s  ",
            "scripts/run_h1.sh pcc": "scripts/run_h1.sh pcc --until=20s",
            "scripts/run_h1.sh bsp": "scripts/run_h1.sh bsp --until=20s"}),
    },
    "docs/reference/advise.md": {1: Elsewhere("the same command as in the tutorial")},
    ADVICE: {1: Pasted(before=f"cat >my.toml <<'END'\n{toml_of(ADVICE)}END\n")},
    OWN: {
        1: Saved("train.py"),
        3: Saved("validated.py", before=before_fit(OWN) + "x_val, y_val = x[:640], y[:640]\n",
                 after="print(history.history)\n"),
        4: Pasted(words={"train.py": "validated.py"}, before="rm -r runs/auto\n"),
        5: Saved("load.py", before=MODEL, run="python load.py"),
        6: Pasted(words={"train.py": "validated.py"}),
    },
}


def script(page: str) -> str:
    """What the reader types in a terminal, from the page's first block to its last."""
    lines, waits = [], []
    for block in blocks(page):
        how = HOW.get(page, {}).get(block.number, Pasted())
        lines.append(f"echo '=== {page}, block {block.number}'")
        if isinstance(how, Elsewhere):
            lines.append(f"echo {how.reason!r}")
        elif re.search(r"\blab[/.]", block.text) and not (ROOT / "lab").exists():
            lines.append("echo 'this checkout has no lab/'")
        elif isinstance(how, Saved):
            if how.needs and importlib.util.find_spec(how.needs) is None:
                lines.append(f"echo '{how.needs} is not installed'")
                continue
            lines += [f"cat >{how.name} <<'END-OF-BLOCK'",
                      how.before + block.text + how.after + "END-OF-BLOCK", how.run]
        else:
            lines += typed(block, how, waits)
    return "\n".join([*lines, *waits, "echo '=== all blocks were run'", ""])


def typed(block: Block, how: Pasted, waits: list[str]) -> list[str]:
    """The lines of a block of the shell; `waits`: what the reader does at the end of the page."""
    text = block.text
    for word, typed in how.words.items():
        assert word in text, f"{block.page}, block {block.number} has no {word!r}"
        text = text.replace(word, typed)
    if not how.terminal:
        return [how.before, text, how.after]
    log, pid = f"terminal-{block.number}.log", f"terminal_{block.number}"
    command, end = text.strip(), f"kill -TERM ${pid}; wait ${pid} || true; cat {log}"
    if how.ends:
        code = f"terminal-{block.number}.code"
        command, end = f"({command}; echo $? >{code})", ""
        waits.append(f"until [ -e {code} ]; do kill -0 ${pid} 2>/dev/null; sleep 0.1; done\n"
                     f"cat {log}; [ $(cat {code}) = 0 ]")
    return [how.before, f">{log}; {command} >{log} 2>&1 &", f"{pid}=$!",
            f"until grep -q '{how.terminal}' {log}; do kill -0 ${pid}; sleep 0.1; done",
            how.after, end]


def test_every_special_block_exists():
    for page, hows in HOW.items():
        numbers = {block.number: block.kind for block in blocks(page)}
        assert set(hows) <= set(numbers), page
        for number, how in hows.items():
            assert isinstance(how, Elsewhere) or (
                isinstance(how, Saved) == (numbers[number] == "python")), (page, number)
            if isinstance(how, Elsewhere):
                assert all((ROOT / path).exists()
                           for path in re.findall(r"tests/[\w/.]*\w", how.reason)), how.reason


def test_python_of_a_page_is_saved_or_has_a_reason():
    for page in pages():
        for block in blocks(page):
            if block.kind == "python":
                assert block.number in HOW.get(page, {}), f"{page}, block {block.number}"


@pytest.mark.slow
@pytest.mark.timeout(LONG + 60)
@pytest.mark.parametrize("page", [
    pytest.param(page, marks=[] if page in ALWAYS else pytest.mark.skipif(
        not os.environ.get("WBSP_DOCS"), reason="takes long: set WBSP_DOCS=1"))
    for page in pages() if blocks(page)])
def test_a_reader_pastes_the_blocks_of_a_page(jobs, page):
    if reason := why_no_network():
        pytest.skip(reason)
    reader = Reader(jobs)
    terminal = reader.runs("terminal", script(page), reader.clones())
    code = terminal.ends(PATIENCE if page in ALWAYS else LONG)
    assert code == 0 and "=== all blocks were run" in terminal.text, terminal.text
    assert "Traceback" not in terminal.text, terminal.text
    if page == FIRST:
        shares = dict(re.findall(r"^worker (\d) made (\d+) of \d+ steps$", terminal.text,
                                 re.MULTILINE))
        slow, fast = sorted(map(int, shares.values()))
        assert slow + fast == 1000 and fast > 2 * slow
        assert "stopped: all 5 epochs are trained" in terminal.text

"""ImageNet end to end, on drawn pictures: the four networks, and `runimagenetgpu.py`'s processes.

Most real processes take minutes on two cores, and run where the environment variable WBSP_IMAGENET
is set: all four networks, and what goes wrong in mid-training.
"""

import json
import os

import forked
import keras
import numpy as np
import pytest
from jobs import ROOT, ServerJob, free_port
from small_imagenet import CLASSES, COUNTS, draw, write_records

import data
import models
from data import imagenet
from models import training

LAUNCHER = ROOT / "runimagenetgpu.py"
PATIENT = "--connect_timeout=600"
LEAST = {name: least for name, (_, least) in models.SIDES.items()}
processes = pytest.mark.skipif(not os.environ.get("WBSP_IMAGENET"),
                               reason="WBSP_IMAGENET asks for processes that take minutes")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    home = tmp_path_factory.mktemp("drawn")
    draw(home)
    return home


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.long) if name != "alexnet" else name
    for name in models.IMAGENET])
def test_a_network_trains_on_pictures_for_a_few_steps(drawn, name):
    """Step by step without a graph, which takes longer to make than two steps."""
    side = LEAST[name]
    network = models.build(name, 1, 0.001, "imagenet", side, len(CLASSES))
    (penalty, *_) = network.losses  # of the dense layers alone
    assert len(network.losses) == sum(isinstance(layer, keras.layers.Dense)
                                      for layer in network.layers) and float(penalty) > 0
    training.compile(network, name, dataset="imagenet", jit_compile=False)
    network.run_eagerly = True
    before = [variable.numpy() for variable in network.trainable_variables]
    look = imagenet.Look(side)
    batches = data.train_dataset("imagenet", 4, 1, 0, drawn, look)
    losses = network.fit(batches, steps_per_epoch=2, verbose=0, shuffle=False).history["loss"]
    assert np.isfinite(losses).all()
    assert all((now.numpy() != then).any()
               for now, then in zip(network.trainable_variables, before, strict=True))


def test_fewer_than_five_classes_can_be_evaluated(drawn):
    network = models.build("alexnet", 1, 0.0, "imagenet", 57, len(CLASSES))
    training.compile(network, "alexnet", dataset="imagenet", jit_compile=False)
    scores = network.evaluate(data.test_dataset("imagenet", 6, drawn, imagenet.Look(57)),
                              verbose=0, return_dict=True)
    assert scores["top5"] == 1 and 0 <= scores["accuracy"] <= 1


# The launcher.


def ps(jobs, port, home, *flags):
    server = jobs.start("ps", LAUNCHER, "--job_name=ps", f"--port_base={port}", "--worker_num=2",
                        f"--data_dir={home}", "--check_period=1", "--heterogeneity=none", PATIENT,
                        *flags, kind=ServerJob, fork=forked.WBSP, CUDA_VISIBLE_DEVICES="")
    server.address, server.cwd = f"localhost:{port}", jobs.folder
    return server


def worker(jobs, port, index, home, *flags):
    return jobs.start(f"wk{index}", LAUNCHER, "--job_name=worker", f"--worker_index={index}",
                      f"--port_base={port}", f"--data_dir={home}", "--batch_size=4", PATIENT,
                      *flags, fork=forked.KERAS, CUDA_VISIBLE_DEVICES="")


@pytest.mark.parametrize("flags, says", [
    (["--data_dir=absent"], "no train set of ImageNet in absent: put class folders there (imagen"),
    (["--class_num=1000"], "train has 4 class folders, not --class_num=1000: leave the flag out"),
    (["--model=cnn"], "imagenet has no model 'cnn': choose one of alexnet, vgg16, resnet50, inc"),
    (["--model=inception_v3", "--image_size=64"],
     "inception_v3 needs images of at least 75 pixels a side, not --image_size=64"),
])
def test_a_first_mistake_is_one_line_and_exit_code_1(jobs, drawn, flags, says):
    server = ps(jobs, free_port(), drawn, *flags)
    assert server.ends() == 1
    (line,) = server.lines
    assert line.startswith("runimagenetgpu: ") and says in line


@processes
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", models.IMAGENET)
def test_a_run_from_its_start_to_the_model_it_leaves(jobs, drawn, name):
    """One worker reads class folders and the other, too; the model takes what the set has."""
    port = free_port()
    flags = [f"--model={name}", f"--image_size={LEAST[name]}", "--epochs=4", "--test_images=7"]
    jobs_of_run = [ps(jobs, port, drawn, *flags), *(
        worker(jobs, port, index, drawn) for index in range(2))]
    for job in jobs_of_run:
        job.ends_well(800)
    server, *workers = jobs_of_run
    for index, job in enumerate(workers):
        assert job.find(f"worker {index}: training {name} on imagenet under pcc")
    summary = json.loads((server.folder / "summary.json").read_text())
    assert summary["total"]["samples"] >= 4 * COUNTS["train"] * len(CLASSES)
    assert 0 <= summary["accuracy"] <= 1
    assert {event["worker"] for event in server.events("accept")} == {0, 1}
    run = json.loads((server.folder / "run.json").read_text())
    assert (run["class_num"], run["train_size"]) == ("4", "24")
    model = keras.models.load_model(server.folder / "model.keras")
    assert model.output_shape == (None, 4)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_worker_with_other_or_damaged_data_ends_with_one_line_and_may_be_started_again(
        jobs, drawn, tmp_path):
    good, bad, other = (tmp_path / name for name in ("good", "bad", "other"))
    write_records(drawn / "imagenet", good)
    for path in write_records(drawn / "imagenet", bad).glob("train-*"):
        damaged = bytearray(path.read_bytes())
        damaged[-200] ^= 1
        path.write_bytes(damaged)
    draw(other)
    port = free_port()
    server = ps(jobs, port, good, "--class_num=4", "--image_size=57", "--epochs=2",
                "--test_images=4")
    stranger, unlucky = worker(jobs, port, 0, other), worker(jobs, port, 1, bad)
    for job in (stranger, unlucky):
        assert job.ends(400) == 1
        job.was_clean()
    (line,) = stranger.find("^runimagenetgpu: ")
    assert "has other class folders (4) than the server's training set, which has 4 classes" in line
    assert unlucky.find(r"worker 1: a file of TFRecords is damaged \(corrupted record at")
    workers = [worker(jobs, port, index, good) for index in range(2)]
    for job in (*workers, server):
        job.ends_well(400)

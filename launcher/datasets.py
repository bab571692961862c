"""Settings of a run, beside its flags, that its data set decides: of ImageNet classes, and the size
of images; of stdlib which text it is."""

import data
import models
from data import imagenet, stdlib
from launcher.flags import FLAGS, given
from models import gpt
from wbsp.runlog.console import say


def dataset_settings(dataset):
    """Return name -> text, from the server's disk. Raises ValueError or OSError."""
    if dataset == "stdlib":
        models.check(FLAGS.model, dataset)
        return {"text": stdlib.text().name}
    return _imagenet_settings() if dataset == "imagenet" else {}


def _imagenet_settings():
    size = models.check(FLAGS.model, "imagenet", FLAGS.image_size)
    train, test = (imagenet.find(FLAGS.data_dir, split) for split in ("train", "test"))
    classes = train.class_num(given("class_num"))
    if test.class_num(given("class_num")) != classes:
        raise ValueError(f"{train.path} has {classes} classes, {test.path} "
                         f"{test.class_num(given('class_num'))}: give --class_num, the classes of "
                         "TFRecords")
    return {"class_num": str(classes), "class_names": train.class_names, "image_size": str(size),
            "augment": str(FLAGS.augment), "train_size": str(train.size)}


def look_of(run):
    """Return the form of examples in this run; None if the data set defines it."""
    if run["dataset"] == "stdlib":
        form = gpt.shape(run["model"])
        assert form is not None, "no other model reads text"
        return stdlib.Look(form.context)
    if run["dataset"] != "imagenet":
        return None
    return imagenet.Look(int(run["image_size"]), run["augment"] == "True", int(run["class_num"]),
                         say)


def network_of(run):
    """Build this run's network. Raises ValueError if there is no such one."""
    size = classes = None
    if run["dataset"] == "imagenet":
        size, _, classes, _ = look_of(run)
    return models.build(run["model"], int(run["seed"]), float(run["weight_decay"]), run["dataset"],
                        size, classes)


def train_size(run):
    """Return the number of training examples; of ImageNet from the server: counting is slow.

    Raises ValueError unless this worker's training set has the run's classes, or is the run's text;
    OSError without one.
    """
    if run["dataset"] == "stdlib":
        stdlib.check(run["text"])
        return data.size("stdlib", look=look_of(run))
    if run["dataset"] != "imagenet":
        return data.size(run["dataset"])
    train = imagenet.find(FLAGS.data_dir, "train")
    if train.class_names != run["class_names"]:
        raise ValueError(f"{train.path} has other class folders ({len(train.classes)}) than the "
                         f"server's training set, which has {run['class_num']} classes: labels are "
                         "indices of their sorted names, which must be equal everywhere")
    return int(run["train_size"])

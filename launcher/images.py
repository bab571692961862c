"""Settings of a run on ImageNet beside its flags: classes, and the size of images."""

import data
import models
from data import imagenet
from launcher.flags import FLAGS, given
from wbsp.runlog.console import say


def imagenet_settings():
    """Return name -> text, from the server's disk. Raises ValueError or OSError."""
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
    """Return the form of images in this run; None if the data set defines it."""
    if run["dataset"] != "imagenet":
        return None
    return imagenet.Look(int(run["image_size"]), run["augment"] == "True", int(run["class_num"]),
                         say)


def train_size(run):
    """Return the number of training examples; of ImageNet from the server: counting is slow.

    Raises ValueError unless this worker's training set has the run's classes, OSError without one.
    """
    if run["dataset"] != "imagenet":
        return data.size(run["dataset"])
    train = imagenet.find(FLAGS.data_dir, "train")
    if train.class_names != run["class_names"]:
        raise ValueError(f"{train.path} has other class folders ({len(train.classes)}) than the "
                         f"server's training set, which has {run['class_num']} classes: labels are "
                         "indices of their sorted names, which must be equal everywhere")
    return int(run["train_size"])

"""Claims of the papers that no run of this report can show, and what it would take to run them."""

from __future__ import annotations

from wbsp.figures.table import markdown

_IMAGENET = ("ImageNet: 1.28 million images, 140 GB; pipeline and networks are "
             "[here](../../docs/how-to/imagenet.md)")

# paper and claim; made with; what it would take. Rates of a V100 are what is usual in float32.
_ROWS = [
    ["WBSP: time to target up to 60 % less, 91 % of the time computing",
     "V100s; AlexNet, VGG-16, ResNet-50, Inception-v3 on ImageNet",
     f"{_IMAGENET}; a GPU a worker. ResNet-50: 90 epochs at 400 images/s are 80 hours of a V100; "
     "5 models under 3 seeds 1,200 hours"],
    ["WBSP: the same", "AlexNet on CIFAR-10, 117,187 steps of all workers at rate 0.001",
     "time: the network is here (`--model=alexnet`), but a run is 300 epochs: a GPU, or days of a "
     "few cores"],
    ["WBSP: the same", "CNN on CIFAR-10, 39,062 steps of all workers, with the rate's two cuts",
     "time: at [140 ms a step](results-2026-11-27.md#what-the-hook-costs-a-training-step) of two "
     "cores 1.5 hours a run, 70 for 5 models, 3 sleeps and 3 seeds; `core` has the beginning of "
     "it, [long trainings](long-runs.md) the network `small`"],
    ["ElasticBSP: 1.77 times faster to BSP's accuracy, and 12.6 % higher accuracy",
     "VGG-16 on ImageNet, 4 workers",
     f"{_IMAGENET}; 4 GPUs and a network for updates of 553 MB. 90 epochs at 230 images/s are 140 "
     "hours of a V100 a run"],
    ["LB-BSP: up to 54 % faster than BSP in GPU clusters",
     "CifarNet and ResNet-32 on CIFAR-10, Inception-V3 on ImageNet [summaries]",
     "GPUs of unequal kinds: how a step's time and memory grow with its batch is what is claimed; "
     "for Inception-V3 also " + _IMAGENET],
    ["LB-BSP: up to 38.7 % faster than BSP in CPU clusters", "machines that others use as well",
     "several machines, and a record of the load on them; here the load is a description"],
    ["NBSync: 1.43 to 2.79 times as fast, to the same accuracy", "data centers in a WAN",
     "machines at several sites, or lines of their own limits; and the text of the paper, for its "
     "networks and data"],
    ["SaPS: numbers, and which SGD variants it beats", "not known: only the abstract is open",
     "the text of the paper"],
]


def table() -> str:
    """Return a Markdown table of the claims."""
    return markdown(["claimed", "made with", "what it would take"], _ROWS)

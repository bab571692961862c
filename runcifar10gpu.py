"""Train CIFAR-10 with one parameter server and unequal workers: one process is one job.

    CUDA_VISIBLE_DEVICES= nohup python -u runcifar10gpu.py --job_name=ps --worker_num=2 \
        --base_dir=wbsp/ --port_base=2606 >ps.log 2>&1 &
    CUDA_VISIBLE_DEVICES=0 nohup python -u runcifar10gpu.py --job_name=worker --worker_index=0 \
        --base_dir=wbsp/ --port_base=2606 >wk0.log 2>&1 &

Odd workers sleep half a second before each step, as published (H1); --heterogeneity=none trains
without sleeps. The last part of --base_dir names the synchronization model. What concerns the whole
run is told to the server; workers take it over, and are refused if they were told otherwise.
"""

from absl import flags

import launcher.flags
from launcher.main import run

flags.adopt_module_key_flags(launcher.flags)
flags.FLAGS.set_default("heterogeneity", "H1")

if __name__ == "__main__":
    run()

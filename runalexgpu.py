"""Train AlexNet on CIFAR-10 with one parameter server and unequal workers: one process is one job.

    CUDA_VISIBLE_DEVICES= nohup python -u runalexgpu.py --job_name=ps --port_base=2606 \
        >ps.log 2>&1 &
    CUDA_VISIBLE_DEVICES=0 nohup python -u runalexgpu.py --job_name=worker --worker_index=0 \
        --port_base=2606 >wk0.log 2>&1 &

The flags are those of runcifar10gpu.py, the defaults those of the published runner for AlexNet:
eight workers under optimized WBSP, of which the odd ones sleep half a second before each step.
"""

from absl import flags

import launcher.flags
from launcher.main import run

flags.adopt_module_key_flags(launcher.flags)
for name, value in {"model": "alexnet", "base_dir": "pcc/", "worker_num": 8,
                    "heterogeneity": "H1"}.items():
    flags.FLAGS.set_default(name, value)

if __name__ == "__main__":
    run()

"""What the runners (`runcifar10gpu.py`, `runalexgpu.py`, `runimagenetgpu.py`) share: one process is
one job of a run.

They differ in defaults alone. The last part of --base_dir names the synchronization model. What
concerns the whole run is told to the server; workers take it over, and are refused if they were
told otherwise.
"""

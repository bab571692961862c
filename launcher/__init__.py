"""What `runcifar10gpu.py` and `runimagenetgpu.py` share: one process is one job of a run.

The two differ in defaults alone. The last part of --base_dir names the synchronization model. What
concerns the whole run is told to the server; workers take it over, and are refused if they were
told otherwise.
"""

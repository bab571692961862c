"""The common parts of the runners `runcifar10gpu.py`, `runalexgpu.py` and `runimagenetgpu.py`: one
process is one job of a run.

The runners differ only in defaults. The last part of --base_dir names the synchronization model.
Settings of the whole run are given to the server; workers adopt them, and are refused if they were
given others.
"""

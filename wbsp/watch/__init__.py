"""A page that shows runs, during training and afterwards: `python -m wbsp.watch RUN_DIR`.

It reads what runs leave in their folders, and nothing else. Of a run whose folder is not here, a
process beside its server hands out the files (`remote.py`); the server's event loop and the workers
do not know of it. Needs plotly, the package's extra `watch`, whose JavaScript becomes part of the
page; importing this package alone does not.
"""

"""A page that shows runs, during training and afterwards: `python -m wbsp.watch RUN_DIR`.

It reads only the folders of runs. If a run's folder is not on this machine, a file server beside
the run's server sends the files (`remote.py`); the server's event loop and the workers take no part
in that. Needs plotly, the package's extra `watch`, whose JavaScript becomes part of the page;
importing this package alone does not.
"""

"""A page that shows runs, during training and afterwards: `python -m wbsp.watch RUN_DIR`.

It reads only the folders of runs; servers and workers take no part in that. Needs plotly, whose
JavaScript becomes part of the page; importing this package alone does not.
"""

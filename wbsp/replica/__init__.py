"""A live model as one flat vector, for whoever trains or evaluates it: one file a back end."""

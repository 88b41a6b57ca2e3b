"""The kinds of data sets that `dataset.name` names. Each registers the fields of its configs, and loads the data."""

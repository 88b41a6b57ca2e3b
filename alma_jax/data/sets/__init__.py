"""The kinds of data sets for `dataset.name`. Each registers its fields and loads its data."""

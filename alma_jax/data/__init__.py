"""Data: from files to arrays, and from arrays to the stream of mega-batches.

  sets/             the kinds of data sets, a class for each name of `dataset.name`; datasets.py checks their arrays
  examples.py       the reader of labelled examples in files and folders, for every command; it reads folders.py,
                    image_file.py, unpacking.py (how much a file may hold), form.py and labels.py
  text_files.py     the reader of texts in files and folders, for every command
  text.py           texts as token ids (tokens.py) and windows
  task_streams.py   streams of tasks, drawn from task_sources.py or listed by a file (task_file.py)
  feed.py           the entries of a live stream, as they arrive (inbox.py) and are read (live_entries.py)
  megabatches.py    which examples a mega-batch holds; memory.py: what a stage is trained on; schedule.py: when
  normalization.py  constants of channels and columns
  tfds_folder.py    TFDS data sets on disk, and their download
  cache.py          arrays on disk, for the next start
"""

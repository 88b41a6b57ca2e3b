"""Data: from files to arrays, and from arrays to the stream of mega-batches.

  examples.py       the reader of labelled examples in files and folders, for every command
  text_files.py     the reader of texts in files and folders, for every command
  folders.py        which files of a folder are examples, for images and for text
  datasets.py       classification data sets; each kind of name is a module of sets/
  text.py           texts as token ids and windows; reads text_source.py, documents.py and tokens.py
  megabatches.py    which examples each mega-batch of a stream holds, as indices into the training set
  memory.py         what each stage is trained on: new examples, and what a memory keeps of earlier ones
  schedule.py       the adaptive schedule; the others are sections of the config
  feed.py           the mega-batches of a live stream, which arrive in a folder
  task_streams.py   streams of tasks by name
  augment.py        random flips and crops
  tfds_folder.py    TFDS data sets on disk; downloads them (connection.py)
  cache.py          arrays on disk, for the next start
"""

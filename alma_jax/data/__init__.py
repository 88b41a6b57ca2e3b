"""Data: from files to arrays, and from arrays to the stream of mega-batches.

  examples.py       the reader of labelled examples in files and folders, for every command
  text_files.py     the reader of texts in files and folders, for every command
  folders.py        which files of a folder are examples, for images and for text
  datasets.py       classification data sets by name; each kind is a module: digits, tfds_images, example_files
  text.py           texts as token ids and windows; reads text_source.py, documents.py and tokens.py
  stream.py         mega-batches and stages, as indices into the training set
  augment.py        random flips and crops
  tfds_folder.py    TFDS data sets on disk; downloads them (connection.py)
  cache.py          arrays on disk, for the next start
"""

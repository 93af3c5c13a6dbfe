"""From files and matrices to CSR partitions; nothing here depends on Dask.

- `blocks`: files cut into blocks of whole lines, headers, gzip streams
- `parse`: text to CSR arrays and the errors of malformed text; `scan` is its compiled half
- `formats`: kinds of files (`npz` is one); tables are Arrow batches, of which `tables` makes rows
- `rows`: operations on the rows of partitions and of users' matrices
- `order`: a seeded permutation, computed for any part of it
- `reading`: from a source's files to blocks and from blocks to shuffled partitions
- `side_files`: names of columns, weights of rows; `text`: documents to TF-IDF rows
- `settings`: `[data]` and `[text]` of a run file, dataset cards
- `synthetic`, `inspection`: data sets that are generated, and what is found in files

Import from the modules: settings and synthetic data need not wait for a compiler.
"""

"""From text files of sparse rows to CSR partitions; only the ingest pipeline knows of Dask."""

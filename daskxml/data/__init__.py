"""From text files of sparse rows to CSR partitions.

Import from the modules, so that a reader of cards need not wait for a compiler:

- `blocks`: `plan_blocks`, `read_header`, `Block`, `Header`; `streams` reads what cannot be cut
- `parse`: `parse_block`, `parse_bytes`, `scan_block`, `Dialect`, `detect_feature_base`;
  `scanning` and `words` are its compiled half, `faults` its messages, `parse_naive` its twin
- `rows`: `take_rows`, `slice_rows`, `split_rows`, `concatenate`, `unit_rows`, `label_counts`,
  `to_scipy`, `from_scipy`
- `order`: `shuffled_positions`, `shuffled_sources`, `derive_key`
- `inspection`: `inspect_file`, `Inspection`; `census` counts for it
- `ingest` (the only one that knows of Dask), `synthetic`, `cards`
"""

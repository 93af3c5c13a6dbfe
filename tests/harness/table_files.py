"""The same rows as a file of every format, for tests that compare what is read."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp

Rows = list[tuple[list[int], list[int], list[float]]]  # labels, ids and values of each row


def pairs(ids: list[int], values: list[float]) -> str:
    return " ".join(f"{i}:{v!r}" for i, v in zip(ids, values, strict=True))


def as_text(rows: Rows) -> str:
    lines = [f"{','.join(map(str, labels))} {pairs(i, v)}" for labels, i, v in rows]
    return "".join(line + "\n" for line in lines)


def as_table(rows: Rows) -> pa.Table:
    labels, ids, values = ([row[i] for row in rows] for i in range(3))
    kinds = {"labels": pa.list_(pa.int32()), "indices": pa.large_list(pa.uint32())}
    schema = pa.schema({"id": pa.int64(), **kinds, "values": pa.list_(pa.float32())})
    columns = {"id": list(range(len(rows))), "labels": labels, "indices": ids, "values": values}
    return pa.table(columns, schema=schema)


def write_parquet(path: Path, rows: Rows) -> None:
    pq.write_table(as_table(rows), path, row_group_size=3)


def write_parquet_texts(path: Path, rows: Rows) -> None:
    columns = {
        "labels": [",".join(map(str, labels)) for labels, _, _ in rows],
        "features": [pairs(ids, values) for _, ids, values in rows],
    }
    schema = pa.schema({"labels": pa.string(), "features": pa.large_string()})
    pq.write_table(pa.table(columns, schema=schema), path, row_group_size=4)


def write_arrow(path: Path, rows: Rows) -> None:
    table = as_table(rows)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, 3)


def write_arrow_stream(path: Path, rows: Rows) -> None:
    table = as_table(rows)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, 3)


def write_json(path: Path, rows: Rows) -> None:
    names = ("labels", "indices", "values")
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))


def write_json_objects(path: Path, rows: Rows) -> None:
    """Features as an object, which cannot hold an id twice."""
    lines = []
    for labels, ids, values in rows:
        features = {str(i): v for i, v in zip(ids, values, strict=True)}
        lines.append(json.dumps({"title": "x", "features": features, "labels": labels}))
    path.write_text("\n\n".join(lines))


def write_csv(path: Path, rows: Rows) -> None:
    lines = [f'"{",".join(map(str, la))}",{pairs(ids, values)}' for la, ids, values in rows]
    path.write_text("\r\n".join(["labels,features", *lines]))


def write_csv_lists(path: Path, rows: Rows) -> None:
    lines = ["indices\tid\tlabels\tvalues"]
    for labels, ids, values in rows:
        texts = (
            " ".join(map(str, ids)),
            "7",
            ",".join(map(str, labels)),
            " ".join(map(repr, values)),
        )
        lines.append("\t".join(texts))
    path.write_text("\n".join(lines) + "\n")


def write_npz(path: Path, rows: Rows, *, compressed: bool = False) -> None:
    def save(name: str, ids: list[list[int]], values: list[list[float]]) -> None:
        indptr = np.append(0, np.cumsum([len(row) for row in ids]))
        flat = np.array([i for row in ids for i in row], np.int32)
        data = np.array([v for row in values for v in row], np.float32)
        matrix = sp.csr_array((data, flat, indptr), shape=(len(rows), int(flat.max(initial=0)) + 1))
        sp.save_npz(path.with_name(name), matrix, compressed=compressed)

    save(path.name, [ids for _, ids, _ in rows], [values for _, _, values in rows])
    labels = [labels for labels, _, _ in rows]
    save(path.name.replace("X", "Y"), labels, [[1.0] * len(row) for row in labels])


def write_npz_compressed(path: Path, rows: Rows) -> None:
    write_npz(path, rows, compressed=True)


WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    "lists.parquet": write_parquet,
    "texts.parquet": write_parquet_texts,
    "file.arrow": write_arrow,
    "stream.arrow": write_arrow_stream,
    "lists.jsonl": write_json,
    "objects.jsonl": write_json_objects,
    "texts.csv": write_csv,
    "lists.tsv": write_csv_lists,
    "X.npz": write_npz,
    "small-X.npz": write_npz_compressed,
}

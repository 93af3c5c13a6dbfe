"""Texts to tags on a Dask cluster: documents, rows, two trainings, and predictions of raw text."""

import json
import sys
from pathlib import Path

from dask.distributed import Client

import daskxml

KINDS = {"apple": "fruit", "pear": "fruit", "plum": "fruit", "van": "vehicle", "bus": "vehicle"}
COLOURS = ["red", "green", "yellow"]
SETTINGS = {
    "model": {"hidden": [16]},
    "strategy": {"batch_max": 16, "megabatch_batches": 8, "lr": 4.0},
    "training": {"megabatches": 30},
}


def write_documents(path: Path) -> None:
    """Write a document with its tags on each line."""
    pairs = [(thing, colour) for thing in KINDS for colour in COLOURS] * 8
    with path.open("w") as file:
        for number, (thing, colour) in enumerate(pairs):
            row = {"text": f"A {colour} {thing}, No. {number}", "labels": [KINDS[thing], colour]}
            file.write(json.dumps(row) + "\n")


def without_numbers(texts, labels):
    """Called on a worker for each partition of documents."""
    return [" ".join(w for w in text.split() if not w.isdecimal()) for text in texts], labels


def tell(event):
    """Print which rows were made."""
    for stage in event.get("stages", ()):
        print(f"{stage['name']}: {stage['rows']} rows, {stage['outcome']}")


def main(client: Client, folder: Path) -> daskxml.Model:
    """Train twice on the same rows, and tell what was done once."""
    write_documents(folder / "train.jsonl")
    with daskxml.Pipeline(folder / "tags", client=client, on_event=tell) as pipe:
        texts = pipe.map(without_numbers, pipe.read_texts(str(folder / "train.jsonl")))
        kept, held = pipe.split(texts, share=0.2)
        rows = pipe.vectorize(kept, ngram_range=(1, 2), min_df=2)
        tests = pipe.vectorize(held, like=rows, name="vectorize the others")
        small = pipe.train(SETTINGS, rows, tests, name="small")
        wide = pipe.train(SETTINGS, rows, tests, name="wide", overrides=["model.hidden=[64]"])
        for run in (small, wide):
            print(run.name, f"P@1 {pipe.evaluate(run, tests).result()['P@1']:.3f}")
        model = wide.result().model
    print(model.predict_text(["some green pear"], k=2))
    return model


if __name__ == "__main__":
    with Client(n_workers=2, threads_per_worker=1) as own:
        main(own, Path(sys.argv[1]))

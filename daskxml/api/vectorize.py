"""Documents to TF-IDF rows on a cluster, in one call."""

from __future__ import annotations

from typing import Any

from distributed import Client

from daskxml.api.pipeline import Pipeline
from daskxml.api.stages import Rows


def vectorize(
    documents: Any,
    labels: Any = None,
    *,
    client: Client,
    like: Rows | None = None,
    column: str = "text",
    **settings: Any,
) -> Rows:
    """Make TF-IDF rows of documents, which stay on the workers.

    Parameters
    ----------
    documents, labels, column
        As for `Pipeline.read_texts`.
    client
        Of the cluster.
    like, **settings
        As for `Pipeline.vectorize`.

    Returns
    -------
    Rows that `daskxml.train` and `DaskXMLClassifier.fit` take, as long as the
    client is open. Models that are trained on them predict texts.

    Raises
    ------
    InputError, ConfigError
        With a message of one line: what is wrong, where, and what to do.

    Examples
    --------
    ::

        train = daskxml.vectorize("train.jsonl", client=client, ngram_range=(1, 2), min_df=2)
        test = daskxml.vectorize("test.jsonl", client=client, like=train)
        run = daskxml.train("best", client=client, train=train, test=test)
        run.model.predict_text(["a red car"])
    """
    with Pipeline(client=client) as pipe:
        texts = pipe.read_texts(documents, labels, column=column)
        if like is None:
            settings["column"] = column
        rows = pipe.vectorize(texts, like, **settings)
        rows.made()
        return rows

"""What a request may hold, and its rows as a matrix."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import scipy.sparse
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from daskxml.cli.serving.models import ServedModel
from daskxml.core.errors import InputError
from daskxml.models.rankings import empty_rows


class Row(BaseModel):
    """The features of one row, by ids or by names, and their values."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ids: list[Annotated[int, Field(ge=0)]] | None = Field(
        None, description="Features by number, from 0 on."
    )
    names: list[str] | None = Field(
        None, description="Features by name, in place of `ids`; unknown ones are an error."
    )
    values: list[FiniteFloat] | None = Field(
        None, description="A value for each; 1 if left out. Those of a feature given twice add up."
    )


class Query(BaseModel):
    """Rows or texts, and how many labels of each are wanted."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"rows": [{"ids": [3, 17], "values": [0.5, 2]}], "k": 2}]},
    )

    rows: list[Row] | None = Field(None, min_length=1)
    text: list[str] | None = Field(
        None, min_length=1, description="Documents in place of `rows`, for a model of texts."
    )
    k: int = Field(5, ge=1, description="Labels of each row.")
    explain: int = Field(
        0, ge=0, le=100, description="Number of features to report for each label."
    )


class Labels(BaseModel):
    """The best labels of a row, best first."""

    labels: list[str | int] = Field(description="Names where the model has them, else ids.")
    ids: list[int] = Field(description="Numbers of the labels, from 0 on.")
    scores: list[float] = Field(description="Probabilities.")
    explanations: list[list[tuple[str | int, float]]] | None = Field(
        None, description="For each label: features, and what each adds to the label's logit."
    )


class Answer(BaseModel):
    """The labels of each row, and which model found them."""

    predictions: list[Labels]
    model: str = Field(description="The first digits of the model's SHA-256.")


class Problem(BaseModel):
    """What is wrong with a request."""

    error: str


def matrix_of(query: Query, served: ServedModel, most_nonzeros: int) -> scipy.sparse.csr_matrix:
    """Return the rows of a query, ``(rows, features)`` float32.

    Raises
    ------
    InputError
        If a row has no or too many features, unknown ones, or another number of values; or a
        text no word that the model knows.
    ConfigError
        If there are texts, but the model was not trained on such.
    """
    if (query.rows is None) == (query.text is None):
        raise InputError("give either rows or text")
    if query.text is not None:
        return _rows_of_texts(query.text, served, most_nonzeros)
    lengths, columns, values = [0], [], []
    for number, row in enumerate(query.rows or ()):
        try:
            ids = _columns(row, served)
            held = [1.0] * len(ids) if row.values is None else row.values
            if len(held) != len(ids):
                raise InputError(f"{len(ids):,} features have {len(held):,} values")
        except InputError as error:
            raise InputError(f"row {number}: {error.message}") from None
        columns += ids
        values += held
        lengths.append(len(columns))
        if len(columns) > most_nonzeros:
            raise InputError(f"more than {most_nonzeros:,} features in all rows: send fewer rows")
    shape = len(lengths) - 1, served.model.spec.features
    with np.errstate(over="ignore"):
        data = np.array(values, np.float32)
    if not np.isfinite(data).all():  # refused here: other requests may be in the same batch
        first = int(np.searchsorted(lengths, np.argmin(np.isfinite(data)), side="right")) - 1
        raise InputError(f"row {first}: a value is too large for float32")
    indices = np.array(columns, np.int32), np.array(lengths, np.int32)
    return scipy.sparse.csr_matrix((data, *indices), shape)


def _rows_of_texts(
    texts: list[str], served: ServedModel, most_nonzeros: int
) -> scipy.sparse.csr_matrix:
    matrix = served.model.text_rows(texts)
    if matrix.nnz > most_nonzeros:
        raise InputError(f"more than {most_nonzeros:,} words in all texts: send fewer texts")
    if empty_rows(matrix):
        number = int(np.argmin(np.diff(matrix.indptr)))
        raise InputError(f"text {number}: it has no word that the model knows")
    return matrix


def _columns(row: Row, served: ServedModel) -> list[int]:
    """Return the numbers of a row's features."""
    if (row.ids is None) == (row.names is None):
        raise InputError("give its features either as ids or as names")
    features = served.model.spec.features
    if row.ids is not None:
        if row.ids and max(row.ids) >= features:
            raise InputError(f"feature {max(row.ids)}: the model has 0 to {features - 1}")
        found = row.ids
    else:
        if not served.feature_ids:
            raise InputError("the model has no names of features: give ids")
        try:
            found = [served.feature_ids[name] for name in row.names or ()]
        except KeyError as error:
            raise InputError(f"the model has no feature of the name {error.args[0]!r}") from None
    if not found:
        raise InputError("it has no features")
    return found

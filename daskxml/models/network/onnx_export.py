"""A trained network as an ONNX graph, for runtimes without Python or daskxml."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daskxml.core.errors import ConfigError, ModelError
from daskxml.models.trained import Model

if TYPE_CHECKING:
    import onnx

_OPSET = 18
_PROTOBUF_BYTES = 2**31 - 2**20  # a protobuf message is smaller than 2 GiB


def export_onnx(model: Model, path: str | Path) -> Path:
    """Write a network as an ONNX graph that ranks the labels of sparse rows.

    The weights of a row's features are gathered and summed; no row becomes dense.

    ============  ====================  ====================================================
    input         shape and type        meaning
    ============  ====================  ====================================================
    ``ids``       ``(rows, n)`` int64   features, from 0 on; shorter rows are padded with 0
    ``values``    ``(rows, n)`` float   their values, which the graph scales; 0 where padded
    ``k``         ``(1,)`` int64        labels of each row, at most all
    ============  ====================  ====================================================

    It gives ``labels`` int64 and ``scores`` float, ``(rows, k)`` each: the best labels of each row,
    best first, ties to the lowest id, and their probabilities. Names of features and labels are in
    the graph's metadata as JSON, ``feature_names`` and ``label_names``.

    Parameters
    ----------
    model
        A network.
    path
        Of the file. Weights of 2 GiB and more lie beside it, in ``PATH.data``.

    Raises
    ------
    ConfigError
        If the model is of label trees or a mixture, or the package onnx is missing.
    ModelError
        If the file cannot be written.
    """
    network = _checked(model)
    try:
        import onnx
    except ImportError as error:
        raise ConfigError("ONNX needs its package: pip install 'daskxml[onnx]'") from error
    built = _Graph()
    rows = built.scaled_rows() if model.header.normalize == "l2" else "values"
    names = [f"hidden{layer}" for layer in range(len(network.hidden))] + ["output"]
    last = ""
    for layer, name in enumerate(names):
        weight, bias = (np.asarray(model.parameters[f"{name}.{it}"]) for it in ("weight", "bias"))
        weight = weight.T if name == "output" else weight
        summed = built.gathered(rows, weight) if layer == 0 else built.node("MatMul", last, weight)
        last = built.node("Add", summed, bias)
        if name != "output":
            last = built.node("Relu" if network.activation == "relu" else "Sigmoid", last)
    built.node("TopK", last, "k", outputs=("logits", "labels"), axis=1)
    if network.loss == "softmax":
        all_scores = built.node("Softmax", last, axis=1)
    else:
        all_scores = built.node("Sigmoid", last)
    built.node("GatherElements", all_scores, "labels", outputs=("scores",), axis=1)
    described = built.model(model)
    path = Path(path)
    try:
        if sum(array.nbytes for array in model.parameters.values()) < _PROTOBUF_BYTES:
            onnx.save(described, path)
        else:
            location = f"{path.name}.data"
            onnx.save(described, path, save_as_external_data=True, location=location)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written ({error.strerror or error})") from error
    return path


def _checked(model: Model) -> Any:
    try:
        return model.network
    except ConfigError:
        kind = "label trees" if model.spec.kind == "tree" else "a mixture"
        raise ConfigError(
            f"{kind}: ONNX has no operator that descends a tree by a beam; export a network"
        ) from None


class _Graph:
    """Nodes and constants of a graph, as they are added."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def node(self, kind: str, *inputs: Any, outputs: tuple[str, ...] = (), **options: Any) -> str:
        """Add a node; return the name of its first output."""
        from onnx import helper

        names = [it if isinstance(it, str) else self._constant(it) for it in inputs]
        outputs = outputs or (f"{kind.lower()}_{len(self._nodes)}",)
        self._nodes.append(helper.make_node(kind, names, outputs, **options))
        return outputs[0]

    def scaled_rows(self) -> str:
        """Divide each row's values by their norm, unless that is 0."""
        squares = self.node("ReduceSumSquare", "values", np.array([1]), keepdims=1)
        is_empty = self.node("Equal", squares, np.float32(0))
        norm = self.node("Sqrt", self.node("Where", is_empty, np.float32(1), squares))
        return self.node("Div", "values", norm)

    def gathered(self, values: str, weight: Any) -> str:
        """Sum the rows of ``weight (features, units)`` of each row's features, times its values."""
        rows = self.node("Gather", weight, "ids", axis=0)  # (rows, n, units)
        factors = self.node("Unsqueeze", values, np.array([1]))  # (rows, 1, n)
        return self.node("Squeeze", self.node("MatMul", factors, rows), np.array([1]))

    def model(self, trained: Model) -> onnx.ModelProto:
        """Return the whole, checked."""
        import onnx
        from onnx import TensorProto, helper

        described = helper.make_tensor_value_info
        inputs = [
            described("ids", TensorProto.INT64, ["rows", "n"]),
            described("values", TensorProto.FLOAT, ["rows", "n"]),
            described("k", TensorProto.INT64, [1]),
        ]
        outputs = [
            described("labels", TensorProto.INT64, ["rows", "k"]),
            described("scores", TensorProto.FLOAT, ["rows", "k"]),
        ]
        graph = helper.make_graph(self._nodes, "daskxml", inputs, outputs, self._constants)
        opset = [helper.make_opsetid("", _OPSET)]
        made = helper.make_model(graph, opset_imports=opset, producer_name="daskxml")
        made.ir_version = helper.find_min_ir_version_for(opset)
        names = {
            kind: json.dumps(getattr(trained.header, kind))
            for kind in ("feature_names", "label_names")
            if getattr(trained.header, kind)
        }
        helper.set_model_props(made, names)
        if sum(array.nbytes for array in trained.parameters.values()) < _PROTOBUF_BYTES:
            onnx.checker.check_model(made)
        return made

    def _constant(self, value: Any) -> str:
        from onnx import numpy_helper

        name = f"constant_{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

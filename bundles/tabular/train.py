"""Make this bundle's `model.onnx` and `sample.npz`: `pip install scikit-learn==1.9.1 skl2onnx==1.20.0`, then run it.

With a path as its argument it also writes what scikit-learn itself answers for some of the rows, as JSON.
"""

import json
import sys
from pathlib import Path

import numpy as np
from skl2onnx import to_onnx
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import GradientBoostingClassifier

here = Path(__file__).parent
data = load_breast_cancer()
rows = data.data.astype(np.float32)  # what a client sends; trees compare it as it is

model = GradientBoostingClassifier(random_state=0).fit(rows, data.target)
# zipmap=False: probabilities as a tensor instead of a sequence of maps.
onnx_model = to_onnx(model, rows[:1], options={"zipmap": False})
(here / "model.onnx").write_bytes(onnx_model.SerializeToString(deterministic=True))

some = rows[::57]
np.savez(here / "sample.npz", X=some)
if len(sys.argv) > 1:
    expected = {"X": some, "label": model.predict(some), "probabilities": model.predict_proba(some)}
    Path(sys.argv[1]).write_text(json.dumps({name: values.tolist() for name, values in expected.items()}) + "\n")

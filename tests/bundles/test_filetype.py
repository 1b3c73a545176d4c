"""The `filetype` bundle against the Python interface of the package that its model comes from."""

import gzip
import io
import json
import lzma
import pickle
import py_compile
import sqlite3
import subprocess
import sys
import tarfile
import wave
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.repository.hooks import HookContext

# The package is asked in a process of its own: the server and its tests never import it.
ASK = """
import json, sys
from magika import Magika
magika = Magika()
for path in json.load(sys.stdin):
    result = magika.identify_path(path)
    print(json.dumps([str(result.output.label), result.score]))
"""

TEXTS = {
    "page.html": "<!DOCTYPE html>\n<html><head><title>A page</title></head><body><p>Some words.</p></body></html>\n"
    * 2,
    "style.css": "body { margin: 0; font-family: serif }\n.box > a:hover { color: #369; padding: 1px 2px }\n" * 3,
    "table.csv": "name,age,town\n" + "".join(f"person {i},{20 + i},town {i % 3}\n" for i in range(30)),
    "table.tsv": "name\tage\ttown\n" + "".join(f"person {i}\t{20 + i}\ttown {i % 3}\n" for i in range(30)),
    "note.xml": '<?xml version="1.0" encoding="UTF-8"?>\n<notes><note id="1">text</note><note id="2"/></notes>\n',
    "readme.md": "# Title\n\nSome *text* with a [link](http://example.org).\n\n* one\n* two\n\n```\ncode\n```\n",
    "setup.ini": "[main]\nname = value\nother = 3\n\n[paths]\nhome = /home/user\n",
    "project.toml": '[project]\nname = "thing"\nversion = "1.0"\ndependencies = ["numpy>=2", "onnx"]\n\n[tool.x]\n',
    "deploy.yaml": "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n    - name: a\n",
    "data.json": json.dumps({"items": [{"id": i, "name": f"item {i}"} for i in range(20)]}, indent=2),
    "lines.jsonl": "".join(json.dumps({"id": i, "text": "word " * i}) + "\n" for i in range(20)),
    "run.sh": '#!/bin/bash\nset -euo pipefail\nfor file in "$@"; do\n  echo "$file" | tr a-z A-Z\ndone\n',
    "script.js": "const f = (a, b) => a + b;\nmodule.exports = { f };\nconsole.log(f(1, 2), document.title);\n",
    "main.c": '#include <stdio.h>\n\nint main(int argc, char **argv) {\n  printf("%d\\n", argc);\n  return 0;\n}\n',
    "Main.java": "public class Main {\n  public static void main(String[] args) {\n    System.exit(1);\n  }\n}\n",
    "main.go": 'package main\n\nimport "fmt"\n\nfunc main() {\n\tfmt.Println("hello")\n}\n',
    "main.rs": 'use std::io;\n\nfn main() {\n    let x: Vec<u32> = Vec::new();\n    println!("{:?}", x);\n}\n',
    "query.sql": "SELECT name, count(*) FROM people WHERE age > 30 GROUP BY name ORDER BY 2 DESC;\n" * 2,
    "Makefile": "all: main.o\n\tcc -o main main.o\n\nmain.o: main.c\n\tcc -c main.c\n\n.PHONY: all\n",
    "Dockerfile": 'FROM python:3.11\nRUN pip install numpy\nCOPY . /app\nWORKDIR /app\nCMD ["python", "-m", "app"]\n',
    "drawing.svg": '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><circle cx="4" cy="4" r="3"/></svg>\n',
    "change.diff": "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n-a = 1\n+a = 2\n b = 3\n",
    "paper.tex": "\\documentclass{article}\n\\begin{document}\n\\section{One}\nText $x^2$.\n\\end{document}\n",
    "film.srt": "1\n00:00:01,000 --> 00:00:02,000\nHello.\n\n2\n00:00:03,000 --> 00:00:04,000\nGoodbye.\n",
    "mail.eml": "From: a@example.org\nTo: b@example.org\nSubject: Hello\nDate: Mon, 1 Jan 2024 10:00:00 +0000\n\nA.\n",
    "prose.txt": "It was a quiet morning, and nobody in the village had noticed the man who sat by the well.\n" * 5,
    "umlauts.txt": "Fünf große Bären äßen übermütig Öl. " * 10,
    "letters.txt": "qwertzuiop asdf lkj mnb " * 3,
}

PDF = b"""%PDF-1.4
1 0 obj <</Type /Catalog /Pages 2 0 R>> endobj
2 0 obj <</Type /Pages /Kids [] /Count 0>> endobj
xref
0 3
0000000000 65535 f
0000000009 00000 n
0000000056 00000 n
trailer <</Size 3 /Root 1 0 R>>
startxref
107
%%EOF
"""

WASM = bytes.fromhex("0061736d0100000001070160027f7f017f030201000707010361646400000a09010700200020016a0b")

# What is too short for the model, or is so once the white space is gone, and what only just is not.
EDGES = {
    "empty": b"",
    "one byte": b"a",
    "seven letters": b"abcdefg",
    "seven bytes": b"\xff\xfe\x00\x01\x02\x03\x04",
    "eight letters": b"abcdefgh",
    "eight bytes": b"\xff\xfe\x00\x01\x02\x03\x04\x05",
    "white space": b" \t\r\n\x0b\x0c" * 20,
    "much white space": b"\n" * 10_000,
    "seven letters in space": b"   abcdefg   ",
    "eight letters in space": b"   abcdefgh   ",
    "seven bytes in space": b"\n\n\xff\xfe\xff\xfe\xff\xfe\xff",
    "word after a block of space": b" " * 4096 + b"int main(void) { return 0; }",
    "word at the end of a block of space": b" " * 4090 + b"abcdefghijkl",
    "character cut at the end of the block": b" " * 4095 + "ä".encode() + b"text" * 20,
    "a block of zeros": bytes(4096),
    "exactly a kilobyte": b"0123456789abcdef" * 64,
    "a kilobyte and one": b"0123456789abcdef" * 64 + b"!",
    "text between white space": b"\n" * 3000 + b"def f(x):\n    return x + 1\n\n" * 40 + b"\n" * 3000,
    "text before a block of space": b"def f(x):\n    return x + 1\n\n" * 40 + b"\n" * 5000,
}


def _saved(image: Image.Image, kind: str) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def _archives() -> dict[str, bytes]:
    zipped, tarred = io.BytesIO(), io.BytesIO()
    text = "".join(TEXTS.values()).encode()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("texts.txt", text)
    with tarfile.open(fileobj=tarred, mode="w") as tape:
        info = tarfile.TarInfo("texts.txt")
        info.size = len(text)
        tape.addfile(info, io.BytesIO(text))
    return {
        "a.zip": zipped.getvalue(),
        "a.tar": tarred.getvalue(),
        "a.gz": gzip.compress(text, mtime=0),
        "a.xz": lzma.compress(text),
    }


def _sound() -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes((np.sin(np.arange(8000) / 9) * 9000).astype("<i2").tobytes())
    return stream.getvalue()


def _database(path: Path) -> bytes:
    database = sqlite3.connect(path)
    database.execute("create table people (name text, age int)")
    database.executemany("insert into people values (?, ?)", [(f"person {i}", i) for i in range(50)])
    database.commit()
    database.close()
    return path.read_bytes()


def _bytecode(path: Path) -> bytes:
    py_compile.compile(json.__file__, str(path), doraise=True)
    return path.read_bytes()


def _arrays() -> dict[str, bytes]:
    one, many = io.BytesIO(), io.BytesIO()
    np.save(one, np.arange(500.0))
    np.savez(many, a=np.arange(50.0), b=np.arange(9))
    return {"array.npy": one.getvalue(), "arrays.npz": many.getvalue()}


def _binaries(tmp: Path) -> dict[str, bytes]:
    random = np.random.default_rng(0)
    image = Image.fromarray(random.integers(0, 256, (40, 60, 3), dtype=np.uint8))
    images = {f"image.{kind}": _saved(image, kind) for kind in ("png", "jpeg", "gif", "bmp", "tiff", "webp", "ico")}
    numpy_dir = Path(np.__file__).parent
    library = next(iter(sorted(numpy_dir.glob("_core/_multiarray_umath*.so"))))
    return {
        **images,
        **_archives(),
        **_arrays(),
        "sound.wav": _sound(),
        "people.sqlite": _database(tmp / "people.sqlite"),
        "library.so": library.read_bytes(),
        "module.py": (numpy_dir / "_core" / "numeric.py").read_bytes(),
        "module.pyc": _bytecode(tmp / "module.pyc"),
        "object.pickle": pickle.dumps({"a": list(range(100)), "b": "text"}),
        "random.bin": random.bytes(5000),
        "page.pdf": PDF,
        "code.wasm": WASM,
    }


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    """File contents of many kinds, by what they are."""
    texts = {name: text.encode() for name, text in TEXTS.items()}
    return texts | _binaries(tmp_path_factory.mktemp("made")) | EDGES


@pytest.fixture(scope="module")
def expected(contents, tmp_path_factory):
    """The package's own label and score of each of the contents."""
    folder = tmp_path_factory.mktemp("files")
    paths = []
    for number, content in enumerate(contents.values()):
        paths.append(str(folder / str(number)))
        Path(paths[-1]).write_bytes(content)
    asked = subprocess.run(
        [sys.executable, "-c", ASK], input=json.dumps(paths), capture_output=True, text=True, check=True, timeout=120
    )
    answers = [json.loads(line) for line in asked.stdout.splitlines()]
    return dict(zip(contents, answers, strict=True))


@pytest.fixture(scope="module")
def answer(serve, as_bytes):
    served = serve("filetype")
    return lambda *contents: served(content=as_bytes(contents))


def test_label_and_score_are_those_of_the_package(answer, contents, expected):
    assert len(contents) >= 60
    outputs = {name: answer(content) for name, content in contents.items()}
    labels = {name: output["label"][0].decode() for name, output in outputs.items()}
    assert labels == {name: label for name, (label, _) in expected.items()}
    scores = [output["score"][0] for output in outputs.values()]
    np.testing.assert_allclose(scores, [score for _, score in expected.values()], rtol=1e-4, atol=1e-6)


def test_contents_are_of_many_kinds_and_meet_every_rule(expected):
    labels = {label for label, _ in expected.values()}
    assert len(labels) >= 40
    assert {"empty", "txt", "unknown", "python", "png", "elf"} <= labels


def test_rows_of_a_batch_are_answered_as_each_alone(answer, contents):
    names = ["empty", "module.py", "seven bytes", "image.png", "white space", "data.json"]
    together = answer(*[contents[name] for name in names])
    for row, name in enumerate(names):
        alone = answer(contents[name])
        assert together["label"][row] == alone["label"][0]
        np.testing.assert_allclose(together["score"][row], alone["score"][0], rtol=1e-4)


@pytest.fixture(scope="module")
def label_of(load):
    """The label that `postprocess` makes of one class with one score; the model is left out."""
    hooks = load("filetype").hooks
    package = load("filetype").model_file.parent
    classes = json.loads((package / "config.min.json").read_text())["target_labels_space"]

    def label(name, score):
        context = HookContext("filetype", state={"settled": np.full(1, None, dtype=np.object_)})
        scores = np.zeros((1, len(classes)), dtype=np.float32)
        scores[0, classes.index(name)] = score
        outputs = hooks.postprocess({"target_label": scores}, context)
        assert outputs["score"].tolist() == [np.float32(score)]
        return outputs["label"][0]

    return label


@pytest.mark.parametrize(
    ("name", "score", "label"),
    [
        ("png", 0.5, b"png"),
        ("png", 0.49, b"unknown"),
        ("python", 0.5, b"python"),
        ("python", 0.49, b"txt"),
        ("markdown", 0.76, b"markdown"),
        ("markdown", 0.74, b"txt"),
        ("latex", 0.96, b"latex"),
        ("latex", 0.94, b"txt"),
        ("randombytes", 0.99, b"unknown"),
        ("randombytes", 0.3, b"unknown"),
        ("randomtxt", 0.99, b"txt"),
        ("randomtxt", 0.3, b"txt"),
    ],
)
def test_thresholds_and_overwritten_labels_are_respected(label_of, name, score, label):
    assert label_of(name, score) == label


def test_no_rows_give_no_rows(load, as_bytes):
    hooks = load("filetype").hooks
    context = HookContext("filetype")
    assert hooks.preprocess({"content": as_bytes([])}, context)["bytes"].shape == (0, 2048)
    outputs = hooks.postprocess({"target_label": np.empty((0, 214), dtype=np.float32)}, context)
    assert (outputs["label"].shape, outputs["score"].shape) == ((0,), (0,))

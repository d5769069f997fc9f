"""The programs on a page, which a reader copies."""

import re

import pytest
from conftest import ROOT

PAGE = (ROOT / "docs/in-your-own-program.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("console")
@pytest.mark.parametrize("number", range(5))
def test_a_program_of_ones_own_prints_what_the_page_says(number, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    program = re.split(r"\n## ", PAGE)[1:][number]
    program = "\n".join(line[4:] for line in program.splitlines() if line[:4] in ("", "    "))
    if "onnx" in program:
        pytest.importorskip("onnxruntime")
    exec(program, {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"\)  # (.*)", program)


def test_what_stands_beside_the_book_is_there():
    page = (ROOT / "docs/beside-the-book.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .+ \| (.+) \| `(\w\S+\.py)` \|$", page, re.MULTILINE)
    assert len(rows) > 20
    for here, file in rows:
        source = (ROOT / file).read_text(encoding="utf-8")
        names = re.findall(r"`(?:PlayEvents\.)?([\w.]+)", here)
        assert [name for name in names if not re.search(rf"\b{name}\b", source)] == [], file

"""The programs, names and links on the pages."""

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


def anchors(page):
    """The names by which links reach the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_links_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "results").rglob("*.md")]
    pages += [ROOT / "pong_emulator/README.md", ROOT / "weights/README.md"]
    assert len(pages) > 50
    broken = []
    for page in pages:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            whole = target.exists() and (not anchor or anchor in anchors(target))
            broken += [f"{page}: {link}"] * (not whole and not link.startswith("https://"))
    assert broken == []


def test_every_folder_of_results_is_in_a_list():
    for page in [ROOT / "results/README.md", *(ROOT / "results").glob("*/README.md")]:
        text = page.read_text(encoding="utf-8")
        folders = [folder.name for folder in page.parent.iterdir() if folder.is_dir()]
        assert [folder for folder in folders if f"{folder}/" not in text] == [], page

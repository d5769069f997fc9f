"""Programs, names and links on the pages, and their figures, against the kept runs."""

import math
import re
from collections import defaultdict
from functools import cache
from itertools import chain
from operator import attrgetter
from pathlib import Path
from statistics import mean, median

from benchmarks.breakdown import ACTIVITIES
from benchmarks.records import Record, read_records, readme_fps
from benchmarks.report import spread
from benchmarks.table import BASELINE, BOOK, changed
from lib.training.options import ReplayOptions

import pytest
from conftest import ROOT, read_csv, read_events

ZEN3, ZEN4, ZEN5 = (ROOT / f"results/epyc-zen{number}-2core" for number in (3, 4, 5))
XEON, H100 = ROOT / "results/xeon-amx-2core", ROOT / "results/xeon-h100-16core"
H200 = ROOT / "results/xeon-h200-16core"
RESULTS, CHAPTER = ROOT / "results/README.md", ROOT / "results/chapter.md"
DEAD = ZEN4 / "dead-units/README.md"
EARLIER, TECHNIQUES = ROOT / "results/earlier-runs.md", ROOT / "results/techniques.md"
FPS = ZEN4 / "ladder-amp/runs.csv"
SHIPPED = ZEN3 / "solved/runs", ZEN4 / "solved-09/runs"
TO_17 = [place / "solved/runs" for place in (XEON, ZEN5, ZEN4)]
LADDER = (*BOOK, "05_vector_env", "06_compiled_update", "09_many_machines")
NAMES = {"04_new_wrappers_n_env": "04, environments", "04_new_wrappers_parallel": "04, parallel"}
SPEEDRUNS = {"07": "07_speedrun", "08": "08_recompiled_pong"}
RECORDS = ["08", "07", "08 at 421866b", "07 at 421866b", "08 at 20c42e4", "08 at 09cda7a"]
RECORDS += ["07 at 09cda7a", "08 at 9c649c3"]


@cache
def runs(*folders: Path) -> dict[str, list[Record]]:
    """The runs below the folders, by their rung; of 04 those that begin as the chapter's do."""
    found = defaultdict(list)
    for record in (record for folder in folders for record in read_records(folder)):
        if not record.script.startswith("04") or not record.settings["noop_max"]:
            found[record.script].append(record)
    return found


def table(page: str | Path, heading: str) -> dict[str, list[str]]:
    """The cells of the table below a heading, by its first column, without links and bold type."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", (ROOT / page).read_text(encoding="utf-8"))
    text = text.replace("**", "").split(f"\n## {heading}\n")[1]
    lines = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("| ")]
    cells = ([cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines)
    return {name: others for name, *others in cells}


def one_line(page: Path) -> str:
    """A page whose lines may break anywhere."""
    return " ".join(page.read_text(encoding="utf-8").split())


def fps(script: str, column: str = "fps", file: Path = FPS, seeds: int = 5) -> float:
    """In bfloat16, alone; or another column: ``fps_to_01``, by those of 01 of the same hour."""
    found = [float(line[column]) for line in read_csv(file) if line["script"] == script]
    assert len(found) == seeds
    return median(found)


def frames(script: str) -> list[float]:
    """Frames to 17 of all runs, of which one may never have learned."""
    return [one.to_bar[0] if one.solved else math.inf for one in runs(*TO_17)[script]]


def minutes(script: str) -> list[float]:
    """Minutes to 17 of the runs as they ship, from the FPS of runs that were alone."""
    return [one.to_bar[0] / fps(script) / 60 for one in runs(*SHIPPED)[script]]


def span(values: list[float], form: str) -> str:
    """The smallest and the largest of the finite ones."""
    least, most = (f(filter(math.isfinite, values)) for f in (min, max))
    return form.format(least) + f" to {form.format(most)}" * (least != most)


def change(figure: float, baseline: float) -> str:
    return f"{100 * (figure / baseline - 1):+.0f} %"


@pytest.mark.parametrize("script", LADDER[1:])
def test_the_ladder(script: str) -> None:
    told, *to_17 = table("README.md", "The ladder")[f"{script}.py"][1:]
    assert told == f"{fps(script):.0f}" == f"{readme_fps()[script]:.0f}"
    reached = [one.to_bar[0] for one in runs(*SHIPPED)[script]]
    forms = (([each / 1e6 for each in reached], "{:.2f}"), (minutes(script), "{:.0f}"))
    assert to_17 == [span(values, form) if values else "" for values, form in forms]
    needed, base = frames(script), [each / fps(BASELINE) for each in frames(BASELINE)]
    found = [each / fps(script) for each in needed]
    pairs = zip(found, filter(math.isfinite, base), strict=False)
    changes = [change(*pair) for pair in pairs]
    assert table(EARLIER, "Frames and minutes")[f"{script}.py"][:3] == [
        span([each / 1e6 for each in needed], "{:.2f}") + ", one never" * needed.count(math.inf),
        span([each / 60 for each in found], "{:.0f}"),
        ", ".join(changes) * (script != BASELINE),
    ]


def beside(figure: float, baseline: float) -> str:
    """A figure and its change against that of 01."""
    return f"{figure:.0f}" + f" ({change(figure, baseline)})" * (figure != baseline)


@pytest.mark.parametrize("script", BOOK)
def test_beside_the_chapter(script: str) -> None:
    cells = table("README.md", "Beside the chapter")[f"{script}.py"]
    # As the second edition prints them; the docstring of the rung has them, too.
    rung = (ROOT / f"{script}.py").read_text(encoding="utf-8")
    changes = re.findall(r" \([+-][\d.]+ %\)", rung) or ["", ""]
    book = [f"{pair[0]}{change}" for pair, change in zip(BOOK[script], changes, strict=True)]
    reached = map(beside, minutes(script), minutes(BASELINE))
    assert cells == [book[0], beside(fps(script), fps(BASELINE)), book[1], next(reached, "")]
    assert table(EARLIER, "Frames and minutes")[f"{script}.py"][-1] == book[1]
    third = table(CHAPTER, "The third edition")[NAMES.get(script, script[:2])]
    assert third == [f"{figure}" for _, figure in BOOK[script]]


def test_longer_runs_make_the_fps_of_shorter_ones() -> None:
    long = ZEN4 / "ladder-amp-long/runs.csv"
    *found, cluster = (fps(rung, file=long, seeds=2) / fps(rung) for rung in LADDER)
    told = f"made {min(found):.2f} to {max(found):.2f} times these FPS, and 09 {cluster:.2f} times"
    assert told in one_line(CHAPTER)


def at_17(script: str) -> list[str]:
    """The cells of a rung, which begins its games as the chapter does: frames, samples, games."""
    cells = table(EARLIER, "By seed")
    (name,) = [name for name in cells if name.split(", two")[0] == NAMES.get(script, script[:2])]
    return cells[name]


def test_the_frames_to_17() -> None:
    for script, records in runs(*TO_17).items():
        told = [f"{one.to_bar[0]:,.0f}" if one.solved else "never" for one in records]
        assert at_17(script)[:3] == told + [""] * (3 - len(records))
        if script == BASELINE:
            words = "needed {1} frames with one seed and {0} with another; with a third it {2}"
            assert words.format(*told) in one_line(RESULTS)


def test_runs_in_readme_have_the_settings_that_ship() -> None:
    others = ZEN4 / "thousands/runs", ZEN4 / "held-out/runs"
    for found in (runs(*TO_17), runs(*SHIPPED, *others)):
        for one in chain.from_iterable(found.values()):
            assert changed(one).keys() <= {"amp"}


def test_the_runs_with_other_seeds() -> None:
    page = (ZEN4 / "solved/README.md").read_text(encoding="utf-8").replace("**", "")
    dead = [f"{runs(TO_17[2])[script][1].frames:,}" for script in LADDER[1:4]]
    assert "stopped them after {}, {} and {} frames".format(*dead) in one_line(EARLIER)
    assert all(f"never: stopped after {frames}" in page for frames in dead)


SOLVED = [(ZEN4 / "solved", 11), (ZEN3 / "solved", 9), (ZEN4 / "solved-09", 1)]


@pytest.mark.parametrize(("place", "count"), SOLVED)
def test_the_games_of_a_page(place: Path, count: int) -> None:
    """Of both 04 there are also games as trained."""
    page = (place / "README.md").read_text(encoding="utf-8").replace("**", "")
    games = (place / "games.txt").read_text(encoding="utf-8")
    means = re.findall(r"30 games, mean (.*), standard deviation .*, (.* to .*)", games)
    assert len(means) == count
    assert all(f"{float(mean):.1f} ({bounds})" in page for mean, bounds in means)
    for one in chain.from_iterable(runs(place / "runs").values()):
        assert not one.solved or f"{one.to_bar[0]:,.0f}" in page
        rewards = one.evaluation  # by 05, 06 and 09 themselves
        assert not rewards or f"{mean(rewards):.1f} ({span(rewards, '{:.0f}')})" in page


def test_what_a_player_process_brings() -> None:
    told = re.findall("makes (.{3}) times the FPS of .*? needed (.{3}) times", one_line(RESULTS))
    fps, frames = readme_fps(), {name: runs(*SHIPPED)[name][0].to_bar[0] for name in LADDER[2:6]}
    assert told == [
        (f"{fps[other] / fps[one]:.1f}", f"{frames[other] / frames[one]:.1f}")
        for one, other in (LADDER[2:4], LADDER[4:6])
    ]


def networks(file: str = "alive") -> dict[tuple[str, ...], dict[int, dict[str, str]]]:
    """Looks at networks after so many updates, by rung, Adam's epsilon and seed."""
    found = defaultdict(dict)
    for look in read_csv(ZEN4 / f"dead-units/{file}.csv"):
        if look.get("precision") != "float32":
            found[look["script"], look["adam_epsilon"], look["seed"]][int(look["updates"])] = look
    return found


def died(looks: dict[int, dict[str, str]]) -> list[int]:
    """The updates after which no gradient came to the convolutions."""
    return [updates for updates, look in looks.items() if float(look["gradient"]) == 0]


def differ(looks: dict[int, dict[str, str]]) -> list[int]:
    """The updates after which states had different values."""
    return [updates for updates, look in looks.items() if float(look["spread"]) >= 0.01]


def test_the_networks_that_die() -> None:
    alive, dead = defaultdict(list), defaultdict(list)
    for (*settings, seed), looks in networks().items():
        alive[*settings].append(looks[3_000]["alive"])
        dead[*settings] += [seed] * bool(died(looks))
    text = DEAD.read_text(encoding="utf-8")
    rows = [
        f" | {', '.join(units)} | {', '.join(dead[settings]) or 'none'} |"
        for settings, units in alive.items()
        if len(units) == 10
    ]
    assert (len(rows), [row for row in rows if row not in text]) == (5, [])
    (run,) = read_records(ZEN4 / "dead-units/runs")
    assert f"avg_reward of {run.avg_reward:.1f} after {run.frames:,} frames" in text
    assert [len(dead[script, "1e-08"]) for script in (BASELINE, "ptan")] == [5, 2]
    assert "five of ten networks of `01`" in one_line(RESULTS)
    assert "Of ten networks made of ptan's parts, two died" in one_line(RESULTS)
    for page in ("beside-the-book", "when-a-run-fails"):
        assert "ive of ten networks](" in one_line(ROOT / f"docs/{page}.md")


def test_networks_live_without_the_mean() -> None:
    text, left = one_line(DEAD), []
    for (script, epsilon, seed), looks in networks("centred").items():
        assert (float(epsilon), died(looks)) == (ReplayOptions().adam_epsilon, [])
        last = max(looks)
        units = f"{looks[3_000]['alive']} | {looks[last]['alive']} after {last:,}"
        assert f"| {script[:2]} | {seed} | {units} | {differ(looks)[0]:,} |" in text
        left += [int(looks[last]["alive"])] * (script == BASELINE)
    assert len(left) == 10
    assert f"have {span(left, '{}')} of their 64 units after 10,000 updates" in text


def test_when_networks_die_or_learn_to_tell_states_apart() -> None:
    seen, text, larger = networks(), one_line(DEAD), "0.00015"
    usual = [looks for name, looks in seen.items() if name[:2] == (BASELINE, "1e-08")]
    for page, when, told in ((RESULTS, died, ""), (DEAD, differ, " with 1e-8")):
        first = span([when(looks)[0] for looks in usual if when(looks)], "{:,}")
        assert f"after {first} updates{told}" in one_line(page)
    apart = [differ(seen[BASELINE, larger, seed])[0] for seed in "014"]
    told = "after {:,}, {:,} and {:,} with 1.5e-4 (seeds 0, 1, 4)"
    assert told.format(*apart) in text
    others = [*list(BOOK)[2:5], "05_vector_env", "04_new_wrappers_parallel"]
    slower, sooner = (
        "{:,}, {:,} and {:,}".format(*(differ(seen[script, e, "0"])[0] for script in others[:3]))
        for e in (larger, "1e-08")
    )
    assert f"it is {slower} updates instead of {sooner}" in text

    def units(script: str, epsilon: str, seed: str, updates: int) -> int:
        return int(seen[script, epsilon, seed][updates]["alive"])

    after = [units(script, larger, "0", 7_000) for script in others]
    assert "they have {}, {} and {} units, 05 has {} and 04 parallel {}.".format(*after) in text
    left = span([units(BASELINE, "1e-08", seed, 10_000) for seed in "23589"], "{}")
    assert f"{left} after 10,000 updates" in text
    last = [units(BASELINE, larger, seed, 15_000) for seed in "14"]
    assert "seeds 1 and 4 have {} and {} after 15,000".format(*last) in text
    terminal = (ZEN4 / "dead-units/terminal.txt").read_text(encoding="utf-8")
    assert terminal.count("frame limit reached after 90,") == 2  # 06 and 09
    assert "died" not in terminal


def test_the_games_after_no_ops() -> None:
    """Those played by ``play.py``, or by 05 and 09 themselves."""
    text = (XEON / "solved/games.txt").read_text(encoding="utf-8")
    games = {
        script: [int(score) for score in re.findall(r"score +(-?\d+)", lines)]
        for script, lines in re.findall(r": (\w+) after(.*?)30 games", text, re.DOTALL)
    }
    for script, records in runs(TO_17[1]).items():
        games.setdefault(script, [reward for record in records for reward in record.evaluation])
    assert [len(rewards) for rewards in games.values()] == [30] * 8
    for script, rewards in games.items():
        assert at_17(script)[4] == f"{mean(rewards):.1f} ({span(rewards, '{:.0f}')})"


def of(name: str) -> list[Record]:
    """The runs of a record."""
    rung, _, commit = name.partition(" at ")
    elsewhere = {"09cda7a": ZEN5 / "held-out", "9c649c3": ZEN3 / "held-out"}
    folder = elsewhere.get(commit, ZEN4 / "held-out" / commit)
    return runs(folder / "runs")[SPEEDRUNS[rung]]


def ratio(name: str, other: str, value: attrgetter) -> str:
    """A record's median by another's."""
    return f"{median(map(value, of(name))) / median(map(value, of(other))):.2f}"


def until(name: str) -> tuple[str, str]:
    """Minutes to 17 and minutes until the agent has won, of a record: median and range."""
    records = of(name)
    return spread([one.to_bar[1] for one in records]), spread([one.minutes for one in records])


@pytest.mark.parametrize("name", RECORDS)
def test_the_record(name: str) -> None:
    records = of(name)
    solved = f"{sum(record.solved for record in records)} of {len(records)}"
    frames = spread([record.to_bar[0] for record in records], 0)
    page, (until_17, until_won) = "results/record.md", until(name)
    known = table(page, "The record") | table(page, "Without AVX-512") | table(page, "History")
    assert known[name][1:] == [solved, until_17, frames, until_won]


@pytest.mark.parametrize("name", SPEEDRUNS)
def test_the_speedruns_in_the_ladder(name: str) -> None:
    records, cells = of(name), table("README.md", "The ladder")[f"{SPEEDRUNS[name]}.py"]
    middle_fps = f"{median(record.fps for record in records):,.0f}"
    frames_to_17 = span([record.to_bar[0] / 1e6 for record in records], "{:.2f}")
    assert cells[1:] == [middle_fps, frames_to_17, until(name)[0]]


def test_thousands_of_games_on_a_cpu() -> None:
    page = "results/epyc-zen4-2core/thousands/README.md"
    cells, found = table(page, "Four seeds"), {}
    for run in runs(ZEN4 / "thousands/runs")["10_thousands_of_games"]:
        updates = read_events(run.folder).Scalars("outcome/updates")[0].value
        steps = f"{run.to_bar[0] / run.settings['envs']:,.0f}"
        games = f"{mean(run.evaluation):.1f} ({min(run.evaluation):.0f} to 21)"
        found[f"{run.seed}"] = [steps, f"{updates:,.0f}", f"{run.to_bar[0]:,.0f}", games]
    assert len(found) == 4
    assert {seed: cells[seed] for seed in found} == found
    middle = median(run.to_bar[0] / 32 for run in of("08"))
    assert f"08 needs {middle:,.0f} steps" in one_line(ROOT / page)


def test_the_headline_and_the_lines_of_the_terminal() -> None:
    """They are those of a run in the middle, of ten."""
    readme = one_line(ROOT / "README.md").replace("**", "")
    until_17, until_won = (told.replace(" (", " minutes (") for told in until("08"))
    assert f"reaches 17 after {until_17}" in readme
    assert f"After {until_won}, the saved agent has won 64 of 64 new games" in readme
    without_avx512 = until("08 at 9c649c3")[1].replace(" (", " minutes (")
    assert f"without AVX-512, the agent has won after {without_avx512}" in readme
    page = (ROOT / "docs/reading-a-run.md").read_text(encoding="utf-8")
    sample = re.search(r"\n\n    (avg_reward 17 .*?)\n\n", page, re.DOTALL)[1].split("\n    ")
    records = sorted(of("08"), key=attrgetter("minutes"))
    (record,) = (one for one in records[4:6] if f"{one.frames:,}" in sample[0])
    assert sample[0].endswith(f" and {60 * record.to_bar[1]:,.0f} seconds")
    output = (ZEN4 / "held-out/output.txt").read_text(encoding="utf-8")
    assert "".join(f"08-{record.seed}: {line}\n" for line in sample) in output
    solved = re.search("`(solved in .*?)`", page)[1]
    assert f"08-{record.seed}: {solved}\n" in output


def test_the_update_takes_nearly_everything() -> None:
    told = ("breakdown-amp", RESULTS), ("breakdown-amp", TECHNIQUES), ("breakdown", TECHNIQUES)
    for folder, page in told:
        shares: dict[str, float] = defaultdict(float)
        for line in read_csv(ZEN4 / folder / "breakdown.csv"):
            if line["who"] == "main process" and line["part"] in ACTIVITIES["learns"][1]:
                shares[line["rung"]] += float(line["share"].rstrip("%"))
        assert span([shares[script] for script in BOOK], "{:.0f}") + " %" in one_line(page)


def test_the_findings_of_the_record() -> None:
    text, speed, pair = one_line(RESULTS), attrgetter("fps"), ("08 at 421866b", "08 at 20c42e4")
    values = attrgetter("minutes"), speed, lambda one: one.to_bar[0]
    minutes, faster, frames = (ratio(*pair, value) for value in values)
    told = f"against 20c42e4, in turns: {minutes} times the minutes, with {faster} times the FPS"
    record = one_line(ROOT / "results/record.md")
    assert f"{told} and {frames} times the frames to 17" in record
    assert f"They make {ratio('08 at 9c649c3', '08', speed)} of the FPS of the Zen 4" in record
    assert [record.solved for record in of("07") + of("08") + of(pair[1])] == [True] * 30
    until_17, until_won = (middle.split()[0] for middle in until("08"))
    told = f"reaches 17 after {until_17} minutes, and after {until_won} minutes its agent has won"
    assert told in text
    xeon = XEON / "speedrun-fps/runs.csv"
    larger = [fps(SPEEDRUNS[name], file=xeon, seeds=3) for name in ("08", "07")]
    findings = table("results/tried.md", "What helped")
    (line,) = (line for line in findings if line.startswith("The emulator is worth"))
    pairs = ("08", "07"), ("08 at 09cda7a", "07 at 09cda7a")
    emulator = [ratio(*pair, speed) for pair in pairs]
    assert re.findall(r"\d\.\d\d", line) == [*emulator, f"{larger[0] / larger[1]:.2f}"]
    assert f"worth {emulator[0]} times the FPS of ALE's" in line
    assert f"makes {emulator[0]} times the FPS of `07`" in text


def test_what_contradicts_the_chapter_is_in_the_linked_tables() -> None:
    text = CHAPTER.read_text(encoding="utf-8").split("## Claims and m")[1]
    claims = re.findall(r"^\| (.+?) \| .+? \| (.+?) \| \[.+\]\((.+)\) \|$", text, re.MULTILINE)
    assert len(claims) == 9
    both = {"(04 against 02)": [], "(04 against 03)": []}
    for file, seeds in ((ZEN5 / "ladder-fps/runs.csv", 3), (FPS, 5)):
        two, three, *four = (fps(script, file=file, seeds=seeds) for script in list(BOOK)[2:])
        for gains, new, old in zip(both.values(), four, (two, three), strict=True):
            gains.append(change(new, old))
    rows = table(CHAPTER, "What cheaper wrappers bring")
    assert {name: row[1:] for row, name in ((rows[r], r[-15:]) for r in rows if "04" in r)} == both
    told = "cheaper wrappers bring {} FPS (Zen 5, float32) or {} (Zen 4, `--amp`)"
    assert told.format(*both["(04 against 02)"]) in one_line(RESULTS)
    for claim, here, link in claims:
        found = (ROOT / "results" / link).read_text(encoding="utf-8")
        found += "".join(f"| {both[name][0]} |" for name in both if name in claim)
        changes = re.findall(r"[+-]\d+ %", here)
        assert changes
        assert [change for change in changes if f"| {change} |" not in found] == [], claim


def test_what_gpus_showed() -> None:
    rungs = table("docs/gpu.md", "What GPUs showed")
    ours = {"04_new_wrappers_n_env": "04`, environments"}
    found, first = {}, {}
    for place, records in ((found, runs(H200)), (first, runs(H100))):
        for script, (record, *_) in records.items():
            place[ours.get(script, script[:2])] = record
    first["08"] = min(runs(H100)["08_recompiled_pong"], key=attrgetter("fps"))
    for record in runs(H200)["10_thousands_of_games"]:
        found["10" + " --envs 4096" * (record.settings["envs"] == 4096)] = record
    del found["04"]  # parallel: its time was over after 100 updates
    assert set(rungs) == {"rung", *found}
    for column, records in enumerate((found, first)):
        assert [n for n in records if rungs[n][column] != f"{records[n].fps:,.0f}"] == []
    seconds = 60 * found["10"].to_bar[1]
    for name in ("08", "10", "10 --envs 4096"):
        (reached, to_17), record = found[name].to_bar, found[name]
        told = f"17 after {reached:,.0f} frames and {60 * to_17:.0f} seconds, 64 of 64 games won"
        assert rungs[name][2].startswith(f"{told} after {60 * record.minutes:.0f}"), told
        assert "left_out" not in record.machine
    told = f"On an H200, `10_thousands_of_games.py --cuda` reached 17 after {seconds:.0f} seconds"
    assert told in one_line(ROOT / "README.md")
    fps_06, fps_01 = (f"{found[rung].fps:,.0f}" for rung in ("06", "01"))
    told = f"[{fps_06} FPS](docs/gpu.md#what-gpus-showed) with `06` in bfloat16, "
    told += f"{fps_01} with `01`"
    assert told in one_line(ROOT / "README.md")
    assert f"`06` made {fps_06} FPS and `01` {fps_01}" in one_line(CHAPTER)


def test_single_techniques_and_emulators_are_in_their_tables() -> None:
    text, page = one_line(TECHNIQUES), one_line(ROOT / "docs/beside-the-book.md")
    section = text.split("## Single techniques")[1].split("## ptan")[0]
    measured = defaultdict(list)
    for folder in ("techniques", "techniques-avx2"):
        for line in read_csv(ZEN4 / folder / "techniques-cpu.csv"):
            work = line["work"].rpartition(" (")[0]
            measured[f"{work} | {line['way']}"].append(line["gain"])
            if work == "a transition's RSS" and folder == "techniques":
                assert f"{float(line['measured'].replace(',', '')):,.0f}" in section
    told = re.findall(r"\| ([^|]+? \| [^|]+?) \| (\d[^|]+?) \| (\d[^|]+?) (?=\|)", section)
    assert len(told) == 13
    assert [cells for name, *cells in told if measured[name] != cells] == []
    assert f"makes it [{measured[told[0][0]][0][:4]} times as fast]" in one_line(RESULTS)
    gains = re.findall(r"([\d.]+) times (\([\d.]+ to [\d.]+\))", page)
    (fused, layout) = (measured[name] for name, *_ in told[3:5])
    assert [" ".join(gain) for gain in gains] == [*fused, layout[0]]
    peers = (ZEN4 / "peers/peers.md").read_text(encoding="utf-8")
    (times,) = re.findall(r"1 environment, update of 32 \| ptan .*? \| .*? \| ([\d.]+)", peers)
    for place in (page, one_line(ROOT / f"{BASELINE}.py")):
        assert f"{float(times):.1f} times the FPS of " in place
    console = (XEON / "console/console.md").read_text(encoding="utf-8")
    words = text.split("## The emulator")[1].split("([table]")[0]
    steps = re.findall(r"\d+,\d{3}", words.replace("1,024 games", "").replace("1,024, both", ""))
    assert len(steps) == 6
    assert [number for number in steps if f" {number} (" not in console] == []


PROGRAMS = (ROOT / "docs/in-your-own-program.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("console")
@pytest.mark.parametrize("number", range(5))
def test_a_program_of_ones_own_prints_what_the_page_says(number, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    program = re.split(r"\n## ", PROGRAMS)[1:][number]
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


def test_links_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "results").rglob("*.md")]
    pages += [ROOT / "pong_emulator/README.md", ROOT / "weights/README.md"]
    text, broken = {page: page.read_text(encoding="utf-8") for page in pages}, []
    assert len(pages) > 50
    for page in pages:
        for link in re.findall(r"\]\((?!https://)([^)\s]+)\)", text[page]):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            headings = re.findall(r"^#+ (.*)$", text[target], re.MULTILINE) if anchor else []
            names = [re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings]
            broken += [f"{page}: {link}"] * (not target.exists() or anchor not in ("", *names))
    assert broken == []


def test_every_folder_of_results_is_in_a_list():
    for page in [ROOT / "results/README.md", *(ROOT / "results").glob("*/README.md")]:
        text = page.read_text(encoding="utf-8")
        folders = [folder.name for folder in page.parent.iterdir() if folder.is_dir()]
        assert [folder for folder in folders if f"{folder}/" not in text] == [], page

"""The roofline picture: positions, labels without overlaps, and that it is self-contained."""

from __future__ import annotations

import html
import itertools
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from keras_matrix.analysis.comparison.table import CellSummary, summarise
from keras_matrix.analysis.roofline import Roofline, roofline
from keras_matrix.dashboards.charts import roofline as pictures
from keras_matrix.dashboards.charts.picture import Dot, Picture, Segment, Word
from keras_matrix.dashboards.charts.roofline import NARROW, WIDE, Box, Spot, draw, place, scenes
from keras_matrix.dashboards.charts.stored_charts import rates, scatter
from keras_matrix.dashboards.report.roofline_page import Heading, cell_table, own_table, render_page, render_svg
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.instruments.work import Work, work_key
from keras_matrix.records.schema import Resolved
from keras_matrix.records.text import percentage
from keras_matrix.runner.cli.compare.roofline import lines
from tests.conftest import make_record, make_settings
from tests.dashboards.charts.drawn import drawn
from tests.synthetic_peaks import GIGA, gemm, make_peaks, stream

HOSTILE = "<img src=x onerror=alert(1)>"
SVG = "{http://www.w3.org/2000/svg}"
HEADING = Heading("Run of today", "a CPU", "Peaks measured today.")


def cell(backend: str, batch_size: int, step_time_s: float, cpus: int = 2) -> CellSummary:
    settings = make_settings(backend=backend, batch_size=batch_size)
    resolved = Resolved(50, 32, "fork", "float32", cpus=cpus)
    return summarise([make_record(step_time_s, repeat, settings=settings, resolved=resolved) for repeat in range(3)])


def found(works: int = 6, name: str = "mnist_mlp", cpus: int = 2) -> Roofline:
    """Return a roofline of some works on three backends, with close intensities and rates."""
    cells = [
        (f"{name} batch_size={8 << number}", cell(backend, 8 << number, 0.004 * 1.7**number * (1 + slot / 3), cpus))
        for number in range(works)
        for slot, backend in enumerate(TRAINING_BACKENDS)
    ]
    count = Work("mnist_mlp", {}, 8_000_000, 4_000_000, 4_000_000, 0, 4_000_000, 784, 4880)
    return roofline(cells, {work_key("mnist_mlp", {}): count}, make_peaks())


def drawing(one: Roofline, size: pictures.PictureSize = WIDE) -> Picture:
    (scene,) = scenes(one)
    return draw(scene, size)


@pytest.mark.parametrize("size", [WIDE, NARROW])
@pytest.mark.parametrize("works", [1, 6, 12])
def test_labels_cover_no_label_or_point_and_are_within_the_picture(size: pictures.PictureSize, works: int) -> None:
    one = drawing(found(works), size)
    labels = drawn(one, Word, "backend", "peak", "work")
    boxes = [Spot(float(label.x), float(label.y), label.anchor).box(label.text) for label in labels]
    assert [pair for pair in itertools.combinations(boxes, 2) if pair[0].meets(pair[1])] == []
    points = [Box(dot.x - 4, dot.y - 4, dot.x + 4, dot.y + 4) for dot in drawn(one, Dot)]
    assert [(b, p) for b in boxes for p in points if b.meets(p)] == []
    whole = Box(0, 0, size.width, size.height)
    assert all(box.within(whole) for box in boxes)


def test_terminal_and_page_show_the_same_figures_of_every_cell() -> None:
    """Mutation: a renderer shows the cell's share of its own product in place of that of the peak."""
    shown = found()
    assert len(shown.shares) == 18
    terminal, page = lines(shown, make_peaks()), html.unescape(render_page(shown, HEADING)).replace("\u00a0", " ")
    rows = re.findall(r"<tr>(.*?)</tr>", page, flags=re.DOTALL)
    for share in shown.shares:
        values = [percentage(value) for value in (share.share_of_peak, share.share_of_own_gemm, share.mfu)]
        values += [f"[{share.low * 100:.1f} {share.high * 100:.1f}]"] if share.low and share.high else []
        for texts in (terminal, rows):
            named = [
                text for text in texts if re.search(rf"{share.title}\b(?!\d)", text) and f"{share.backend}" in text
            ]
            assert named, (share.title, share.backend)
            assert any(all(value in text for value in values) for text in named), (values, named)


def test_every_cell_is_a_point_and_every_work_and_roof_is_named() -> None:
    one = drawing(found())
    assert len([dot for dot in drawn(one, Dot) if " on " in dot.tip]) == 18
    labels = {role: [word.text for word in drawn(one, Word, role)] for role in ("work", "peak", "backend")}
    assert sorted(labels["work"]) == sorted(f"mnist_mlp batch_size={8 << number}" for number in range(6))
    assert sorted(labels["peak"]) == [
        "bfloat16 945 GFLOP/s, torch",
        "float32 400 GFLOP/s, tensorflow",
        "memory 20.0 GB/s",
    ]
    assert labels["backend"] == list(TRAINING_BACKENDS)


def test_faster_cell_is_higher_and_higher_intensity_is_further_right() -> None:
    one = drawing(found(2))
    points = {dot.tip.split(":")[0]: dot for dot in drawn(one, Dot) if " on " in dot.tip}
    small, large = points["mnist_mlp batch_size=8 on jax"], points["mnist_mlp batch_size=16 on jax"]
    assert small.x < large.x
    assert points["mnist_mlp batch_size=8 on torch"].y > small.y


def test_a_ridge_is_where_the_slope_meets_its_roof() -> None:
    roofs = drawn(drawing(found()), Segment, "roof")
    flat, slope = roofs[:-1], roofs[-1]
    top = min(flat, key=lambda line: line.y1)
    assert (slope.x2, slope.y2) == (top.x1, top.y1)
    assert slope.x1 < slope.x2
    assert slope.y1 > slope.y2
    for line in flat:
        share = (line.y1 - slope.y1) / (slope.y2 - slope.y1)
        assert line.x1 == pytest.approx(slope.x1 + share * (slope.x2 - slope.x1), abs=0.2)


def test_each_number_of_cpus_has_a_separate_picture() -> None:
    both = found(1)
    alone = found(1, cpus=1)
    mixed = replace(both, shares=both.shares + alone.shares)
    assert [scene.title for scene in scenes(mixed)] == ["On 1 CPU", "On 2 CPUs"]


def test_machine_is_drawn_without_cells_and_nothing_without_peaks() -> None:
    assert [len(scene.roofs) for scene in scenes(roofline([], {}, make_peaks()))] == [2]
    assert scenes(roofline([], {}, None)) == []
    with pytest.raises(ValueError, match="no peak was measured"):
        render_svg(roofline([], {}, None))


def test_svg_is_well_formed_and_loads_nothing() -> None:
    text = render_svg(found(name=HOSTILE))
    root = ET.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert {child.tag for child in root.iter()} == {
        f"{SVG}{name}" for name in ("svg", "title", "style", "defs", "circle", "path", "rect", "line", "use", "text")
    }
    outside = [v for child in root.iter() for k, v in child.attrib.items() if k.endswith("href") and v[0] != "#"]
    assert outside == []
    assert re.findall(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text) == []


def test_page_escapes_hostile_names_and_has_no_script() -> None:
    html = render_page(found(name=HOSTILE), HEADING)
    assert HOSTILE not in html
    assert "<script" not in html
    assert "Content-Security-Policy" in html
    assert re.findall(r"(?:src|href)=\"(?!#|data:,)", html) == []
    assert html == render_page(found(name=HOSTILE), HEADING)


def test_page_without_pictures_says_so() -> None:
    html = render_page(roofline([], {}, None), HEADING)
    assert "No peak was measured" in html
    assert "measure them there with: runner roofline" in html


def test_tables_have_figures_with_units_and_dashes_for_unknown_values() -> None:
    rows = cell_table(found(1).shares).rows
    assert rows[1][:5] == [
        "mnist_mlp batch_size=8",
        "jax",
        "192,000,000",
        "36.0 GFLOP/s",
        "400 GFLOP/s",
    ]
    assert rows[1][8] == "-"
    assert ["cpu", "float32", "torch", "2", "199 GFLOP/s"] in [row[:5] for row in own_table(found(1).own).rows]


def test_label_takes_its_first_free_spot_or_none() -> None:
    frame, spots = Box(0, 0, 200, 100), [Spot(10, 20), Spot(10, 60)]
    assert place([("one", spots), ("two", spots), ("three", spots)], [], frame) == [*spots, None]
    assert place([("one", spots)], [Box(0, 0, 200, 30)], frame) == [spots[1]]
    assert place([("longer than the frame is wide", spots)], [], Box(0, 0, 50, 100)) == [None]


def test_tables_name_the_backend_of_a_gpu_peak() -> None:
    one = replace(found(1).shares[0], peak_of="jax, best of 3 backends")
    assert cell_table([one]).rows[0][4] == f"{pictures.rate(one.peak_flop_per_s)} (jax, best of 3 backends)"
    text = "\n".join(lines(Roofline((one,), (), (), (), ()), None))
    assert "(jax, best of 3 backends)" in text


def test_dashboard_draws_the_same_scatter_with_a_stroke_from_each_cell_to_its_roof() -> None:
    row = {"work": HOSTILE, "work_id": "w", "cell_id": "c", "backend": "jax", "share_of_peak": 0.25, "mfu": None}
    known = {**row, "achieved_flop_per_s": 1e9, "intensity_flop_per_byte": 2.0, "roof_flop_per_s": 4e9}
    rows = [known, {**known, "intensity_flop_per_byte": None}, {**known, "achieved_flop_per_s": None}]
    [picture] = scatter(rows)
    dots = drawn(picture.wide, Dot)
    assert [dot.tip for dot in dots] == [f"{HOSTILE} on jax: 1.00 GFLOP/s, 25.0 % of the peak", "jax"]
    [reach] = drawn(picture.wide, Segment, "reach")
    [cap] = drawn(picture.wide, Segment, "cap")
    assert (reach.slot, cap.slot) == (1, 1)
    assert (reach.y1, reach.y2) == (dots[0].y, cap.y1)
    assert cap.y1 < dots[0].y
    assert [figure for _, _, figure, _ in rates(rows)] == ["1.00 GFLOP/s, 25.0 % of the peak"] * 2
    assert scatter(rows[1:]) == []


def test_several_gpus_have_their_own_picture_with_the_roofs_of_all_together() -> None:
    gemms = [gemm("jax", "float32", 10_000.0, device="gpu")]
    peaks = make_peaks(gemms=gemms, streams=[stream("jax", "triad", 1_000.0, device="gpu")])
    cells = [summarise([make_record(0.01, settings=make_settings(device="gpu", devices=n))]) for n in (1, 2)]
    work = Work("mnist_mlp", {}, 8_000_000, 4_000_000, 4_000_000, 0, 4_000_000, 784, 4880)
    shown = scenes(roofline([("a work", cell) for cell in cells], {work_key("mnist_mlp", {}): work}, peaks))
    assert [scene.title for scene in shown] == [
        "On the GPU",
        "On 2 GPUs: the roofs are those of all together, 2 times one's",
    ]
    assert [scene.roofs[0].best_flop_per_s for scene in shown] == [10_000 * GIGA, 20_000 * GIGA]
    assert [scene.slope and scene.slope.best_byte_per_s for scene in shown] == [1_000 * GIGA, 2_000 * GIGA]
    assert [len(scene.points) for scene in shown] == [1, 1]

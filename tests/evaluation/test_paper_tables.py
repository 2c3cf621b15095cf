"""The published numbers agree with the paper's text."""

import pytest

from deepmatching.evaluation.paper_tables import COLUMNS, FOLDERS, METHODS, PAPER, comparison_table
from deepmatching.evaluation.report import print_table


def test_every_published_number_has_a_row_a_column_and_a_folder() -> None:
    for table, datasets in PAPER.items():
        for dataset, rows in datasets.items():
            assert dataset in FOLDERS and set(rows) <= {row.key for row in METHODS[table]}
            assert all(len(numbers) <= len(COLUMNS[table]) for numbers in rows.values())


def test_the_papers_gains_are_those_it_states() -> None:
    """Its text: +0.13 acc@10 by exponents, +0.47 by CNN features; +0.64 on Sintel final, +0.44 on KITTI."""
    table1 = PAPER["table1"]["sintelmini"]
    assert round(table1["b"][2] - table1["a"][2], 2) == 0.13  # type: ignore[operator]
    assert round(table1["c"][2] - table1["a"][2], 2) == 0.47  # type: ignore[operator]
    for name, gain in (("sintel-final", 0.64), ("kitti2012", 0.44)):
        rows = PAPER["table2"][name]
        assert round(rows["vgg"][2] - rows["hog"][2], 2) == gain  # type: ignore[operator]
    # "EPE-NOC of 1.43 compared to 1.51 for HOG, and Err-NOC falls from 7.84% to 7.41%"
    kitti = PAPER["table2"]["kitti2012"]
    assert (kitti["vgg"][6:], kitti["hog"][6:]) == ((1.43, 7.41), (1.51, 7.84))


def test_flownet_s_and_c_are_two_rows_with_the_papers_numbers() -> None:
    """S+v: 6.50 on KITTI and 4.76 on Sintel final; C+v: 3.57 on Sintel clean; EPE of the flow is the fifth column."""
    rows = [(name, key, row[4]) for name, of in PAPER["table2"].items() for key, row in of.items() if "flownet" in key]
    s_v = [("kitti2012", "flownet-s", 6.50), ("sintel-final", "flownet-s", 4.76)]
    assert rows == [*s_v, ("sintel-clean", "flownet-c", 3.57)]
    labels = {row.key: row.label for row in METHODS["table2"]}
    assert (labels["flownet-s"], labels["flownet-c"]) == ("FlowNet S+v", "FlowNet C+v")


def test_the_names_of_the_data_sets_head_their_rows(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(comparison_table("table2", METHODS["table2"], list(PAPER["table2"]), {}, masks=True, protocol="none"))
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert all([name] in words for name in PAPER["table2"])

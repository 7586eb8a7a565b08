"""Which hosts and slots a hostfile gives, and what DeepSpeed would refuse or drop in one."""

import os

import pytest

from toolkit.errors import Place, UserError
from toolkit.setup.hostfile import read_hostfile


def test_hosts_slots_and_lines(write):
    hosts = read_hostfile(write("hosts", "# two machines\n\nworker-0 slots=4\n  10.0.0.2\tslots=8  # the large one\n"))
    assert hosts.slots == {"worker-0": 4, "10.0.0.2": 8}
    assert (hosts.lines, hosts.total) == ({"worker-0": 3, "10.0.0.2": 4}, 12)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a slots=2\na slots=2\n", ["hosts: line 2: 'a': stands twice, at lines 1 and 2; keep one"]),
        ("worker-0\n", ["hosts: line 1: 'worker-0': not of the form NAME slots=N; write worker-0 slots=8"]),
        ("a slots=two\n", ["hosts: line 1: 'a slots=two': not of the form NAME slots=N; write worker-0 slots=8"]),
        (
            "a slots=4 max_slots=8\n",
            ["hosts: line 1: 'a slots=4 max_slots=8': not of the form NAME slots=N; write worker-0 slots=8"],
        ),
        (
            "a slots=" + "9" * 5000,
            [f"hosts: line 1: 'a slots={'9' * 288}...: not of the form NAME slots=N; write worker-0 slots=8"],
        ),
        ("a slots=0\n", ["hosts: line 1: 'a slots=0': a host has 1 or more slots; give its ranks, or remove the line"]),
        ("\n# nothing\n", ["hosts: '': no host stands in it; write a line for each: worker-0 slots=8"]),
        (
            "\ufeffa slots=2\n",
            [
                "hosts: line 1: '\\ufeffa slots=2': the byte-order mark would be part of the host's name; save it "
                "without one"
            ],
        ),
        (
            "a slots=2\nb\na slots=3\n",
            [
                "hosts: line 2: 'b': not of the form NAME slots=N; write worker-0 slots=8",
                "hosts: line 3: 'a': stands twice, at lines 1 and 3; keep one",
            ],
        ),
    ],
)
def test_what_is_refused_with_its_line(write, text, lines):
    with pytest.raises(UserError) as caught:
        read_hostfile(write("hosts", text))
    assert list(caught.value.lines) == lines


def test_a_bad_line_has_its_place(write):
    with pytest.raises(UserError) as caught:
        read_hostfile(write("hosts", "a slots=1\nb slots\n"))
    (line,) = caught.value.lines
    assert isinstance(line.where, Place)
    assert (line.where.file, line.where.line) == ("hosts", 2)


def test_a_missing_file_names_path_and_folder(write):
    with pytest.raises(UserError) as caught:
        read_hostfile("nowhere")
    right = f"nowhere: 'no such file': searched from {os.getcwd()}; give the path of a hostfile"
    assert caught.value.lines == (right,)


def test_what_is_not_text_is_refused(tmp_path):
    (tmp_path / "hosts").write_bytes(b"\xff\xfea")
    with pytest.raises(UserError, match="hosts: 'unreadable': 'utf-8' codec.*; save it as UTF-8 text"):
        read_hostfile(str(tmp_path / "hosts"))


def test_no_other_character_ends_a_line(tmp_path):
    (tmp_path / "hosts").write_text("a slots=2\x0cb slots=3\n")
    with pytest.raises(UserError, match="not of the form NAME slots=N"):
        read_hostfile(str(tmp_path / "hosts"))

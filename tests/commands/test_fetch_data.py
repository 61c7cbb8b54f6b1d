"""A data set is fetched whole or not at all, from a server on this machine.

The public addresses are not asked here.
"""

import gc
import gzip
import shutil
import threading
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from fl_dpbayes.commands import fetch_data
from fl_dpbayes.config.sources import BuiltIn
from fl_dpbayes.data.records import load_unscaled


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path, data_folder: Path, monkeypatch) -> Path:
    """What the server holds of the four hospitals' files, one of them packed."""
    folder = tmp_path / "served"
    shutil.copytree(data_folder / "heart-disease", folder)
    (folder / "processed.va.data.gz").write_bytes(
        gzip.compress((folder / "processed.va.data").read_bytes())
    )
    server = HTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    heart = fetch_data.SETS["heart"]
    names = {path: Path(path).name + ".gz" * ("va" in path) for path in heart.files}
    files = {path: f"http://127.0.0.1:{server.server_port}/{name}" for path, name in names.items()}
    monkeypatch.setitem(fetch_data.SETS, "heart", heart._replace(files=files))
    yield folder
    server.shutdown()
    server.server_close()


def test_a_data_set_is_fetched_once_with_its_licence_and_read(served, command, tmp_path) -> None:
    data = tmp_path / "data"
    status, said, error = command("data", "fetch", "heart", "--data-dir", data)
    assert status == 0, error
    assert "Licence: CC BY 4.0" in said
    assert "4 files fetched" in said
    assert len(load_unscaled(BuiltIn(kind="heart", folder=data), "train").scaled()) == 740
    kept = {path: path.stat().st_mtime_ns for path in data.rglob("*.data")}
    (data / "heart-disease" / "processed.va.data").unlink()
    assert "1 files fetched" in " ".join(
        command("data", "fetch", "heart", "--data-dir", data)[1].split()
    )
    assert "already" in command("data", "fetch", "heart", "--data-dir", data)[1]
    assert sum(path.stat().st_mtime_ns == kept[path] for path in kept) == 3
    assert [path.name for path in data.iterdir()] == ["heart-disease"]


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["absent", "cut", "other"])
def test_what_is_absent_or_another_file_leaves_nothing(served, refusal, tmp_path, harm) -> None:
    path = served / "processed.cleveland.data"
    content = path.read_bytes()
    path.unlink()
    if harm != "absent":
        path.write_bytes(content[:-200] if harm == "cut" else content.replace(b"63.0", b"36.0", 1))
    said = refusal("data", "fetch", "heart", "--data-dir", tmp_path / "data")
    assert ("cannot be had" if harm == "absent" else "is damaged or another file") in said
    assert "nothing was kept" in said
    assert said.count("\n") == 1
    # A connection that was left open is told when it is collected.
    gc.collect()
    assert not list((tmp_path / "data").iterdir())


def test_a_link_that_leads_nowhere_is_kept(served, refusal, tmp_path) -> None:
    link = tmp_path / "data" / "heart-disease" / "processed.va.data"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "a disk that is not mounted")
    assert "processed.va.data does not exist" in refusal(
        "data", "fetch", "heart", "--data-dir", tmp_path / "data"
    )
    assert link.is_symlink()


def test_an_unknown_or_shipped_name_and_a_missing_folder_are_told(refusal, monkeypatch) -> None:
    monkeypatch.delenv("FL_DPBAYES_DATA", raising=False)
    assert "no data set 'hart'; choose one of mnist, pneumonia, heart" in refusal(
        "data", "fetch", "hart"
    )
    assert "comes with this package" in refusal("data", "fetch", "stroke")
    assert "give --data-dir DIR, or set FL_DPBAYES_DATA" in refusal("data", "fetch", "heart")

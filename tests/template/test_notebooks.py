"""The notebooks run from top to bottom without warnings, and are committed without outputs."""

import os
import re
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
jupyter_client = pytest.importorskip("jupyter_client")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NEED_FASHION_MNIST = {"01_first_run"}  # the others make their images
SMALL = {
    "TRAIN_SIZE": 1000,
    "VAL_SIZE": 500,
    "MLP_EPOCHS": 2,
    "STRIPES_SIZE": 800,
    "RESNET_EPOCHS": 3,
    "SEEDS": 3,
    "NOISE_EPOCHS": 4,
}

notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


class ThisInterpreter(jupyter_client.AsyncKernelManager):
    """Starts the Python that runs the tests, whatever kernels are registered on the machine."""

    @property
    def kernel_spec(self) -> jupyter_client.kernelspec.KernelSpec:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return jupyter_client.kernelspec.KernelSpec(argv=argv, language="python")


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def sections(notebook):
    """Return the code of each numbered section, by its title."""
    code, title = {}, None
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            titles = re.findall(r"^## (.*)", cell.source, re.MULTILINE)
            title = titles[-1] if titles else title
        elif title and title[0].isdigit():
            code[title] = code.get(title, "") + cell.source + "\n"
    return code


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.slow
@notebooks
def test_runs_quietly(path, request, tmp_path):
    env = os.environ | {f"PROJECT_NOTEBOOK_{name}": str(value) for name, value in SMALL.items()}
    if path.stem in NEED_FASHION_MNIST:
        env["PROJECT_NOTEBOOK_DATA"] = str(request.getfixturevalue("fashion_mnist_root"))
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env["OMP_NUM_THREADS"] = "1"  # more are no faster at these sizes, and far slower on busy cores
    env["IPYTHONDIR"] = str(tmp_path / "ipython")  # no start-up files and no history of the user
    (tmp_path / "work").mkdir()
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=120,  # seconds a cell
        kernel_manager_class=ThisInterpreter,
        resources={"metadata": {"path": str(tmp_path / "work")}},
    )
    client.execute(env=env)  # raises CellExecutionError, with the traceback of the cell

    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    noise = [output.text for output in outputs if output.get("name") == "stderr"]
    assert not noise
    assert any("image/png" in output.get("data", {}) for output in outputs)


@notebooks
def test_is_committed_without_outputs(path):
    for cell in code_cells(nbformat.read(path, as_version=4)):
        assert not cell.outputs, f"nbstripout {path}"
        assert cell.execution_count is None, f"nbstripout {path}"


@notebooks
def test_each_section_asserts_what_it_says(path):
    code = sections(nbformat.read(path, as_version=4))
    assert len(code) >= 6
    for title, source in code.items():
        assert re.search(r"^\s*assert ", source, re.MULTILINE), title

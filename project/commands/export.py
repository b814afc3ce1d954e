"""Write a run's best network as one file that runs without this package and without the data.

Its input `images` is uint8 (N, C, H, W) for any N: pixels of the run's image size, which the file
normalises by itself. Its output `logits` is float32 (N, classes). The file's metadata hold class
names, image size, mean and std. It is compared with the checkpoint before it is written. An example
of its use is in docs/export.md.
"""

import io
import json
import logging
from contextlib import redirect_stderr
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from ..engine.checkpoint_io import load_checkpoint
from ..engine.keyed import generator
from ..engine.photos import preprocessing
from ..engine.transforms import PixelScale
from ..engine.weights import check_fits
from ..runs.errors import UsageError
from ..runs.files import NotRegularError, check_regular, write_whole
from ..runs.folder import BEST, read_config
from ..runs.record import read_record
from .links import OF_DATA, add_links
from .parser import Parser
from .table import OptionParser

FILES = {"onnx": "model.onnx", "torch": "model.pt2"}
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-4  # of the largest logit; another order of summation changes it by 1e-6
BATCH_SIZES = (2, 1, 33)  # the first one is traced, all are compared
MEANING = {"input": "images, uint8 (N, C, H, W), not normalised", "output": "logits, float32"}


class DataFacts:
    """The facts about its data that a model is told, as the run's data module has them.

    Args:
        class_names: Names of the classes, in the order of their labels.
        in_channels: 3 for colour, 1 for grey.
        image_size: Height and width of the images, in pixels.
    """

    def __init__(self, class_names: list[str], in_channels: int, image_size: int) -> None:
        self.class_names, self.num_classes = class_names, len(class_names)
        self.in_channels, self.image_size = in_channels, image_size
        self.num_features = in_channels * image_size**2


def build_model(run: Path, facts: dict[str, Any]) -> L.LightningModule:
    """Return the model that a run's config names, with the arguments given there."""
    parser = Parser(exit_on_error=False)
    parser.add_class_arguments(DataFacts, "data")
    parser.add_subclass_arguments(L.LightningModule, "model", required=True)
    add_links(parser, OF_DATA)
    known = {name: facts[name] for name in ("class_names", "in_channels", "image_size")}
    given = {"data": known, "model": read_config(run).get("model")}
    model: L.LightningModule = parser.instantiate_classes(parser.parse_object(given)).model
    return model


def load_network(run: Path, checkpoint: dict[str, Any], facts: dict[str, Any]) -> nn.Module:
    """Return the network of a checkpoint, in float32 on the CPU, with its normalisation."""
    model = build_model(run, facts)
    check_fits(run / BEST, checkpoint, model)
    model.load_state_dict(checkpoint["state_dict"])
    model.to(memory_format=torch.contiguous_format)  # else torch.export.save warns of the weights
    return nn.Sequential(PixelScale(facts["mean"], facts["std"]), model).eval()


def to_bytes(network: nn.Module, images: Tensor, onnx: bool, metadata: dict[str, Any]) -> bytes:
    """Return the content of a network's file, for any number of such images."""
    batch = {0: torch.export.Dim.DYNAMIC}
    with redirect_stderr(io.StringIO()):  # torch prints the whole program if it fails
        program = torch.export.export(network, (images,), dynamic_shapes=(batch,))
    if onnx:
        names: Any = {"input_names": ["images"], "output_names": ["logits"]}
        made: Any = torch.onnx.export(program, **names, verbose=False)
        made.model.metadata_props.update({k: json.dumps(v) for k, v in metadata.items()})
        return made.model_proto.SerializeToString()
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={"metadata.json": json.dumps(metadata)})
    return buffer.getvalue()


def run_file(content: bytes, images: Tensor, onnx: bool) -> Tensor:
    """Return the logits that a file computes."""
    if not onnx:
        return torch.export.load(io.BytesIO(content)).module()(images)
    session = import_module("onnxruntime").InferenceSession(content)
    return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


@torch.no_grad()
def export(run: Path, onnx: bool) -> tuple[bytes, str]:
    """Return the content of a run's file, and how far its logits are from the checkpoint's."""
    path = run / BEST
    checkpoint = load_checkpoint(path)
    facts = preprocessing(path, checkpoint)
    shape = (sum(BATCH_SIZES), facts["in_channels"], facts["image_size"], facts["image_size"])
    images = torch.randint(256, shape, dtype=torch.uint8, generator=generator(0))
    batches = images.split(BATCH_SIZES)
    logging.getLogger("torch.fx").setLevel(logging.ERROR)
    try:
        network = load_network(run, checkpoint, facts)
        content = to_bytes(network, batches[0], onnx, MEANING | facts)
        written = torch.cat([run_file(content, batch, onnx) for batch in batches])
    except Exception as error:  # the exporters raise errors of any kind
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"the network of {path} can't be exported: {reason}") from error
    logits = network(images)
    difference, bound = (written - logits).abs().max(), TOLERANCE * logits.abs().max()
    found = f"its logits differ by {difference:.1e} from the checkpoint's, {bound:.1e} is allowed"
    if not difference <= bound:
        raise ValueError(f"{path} was not exported: {found}")
    return content, f"{found} (random images, in batches of {BATCH_SIZES})"


def main(args: list[str]) -> int:
    """Carry out the command."""
    parser = OptionParser("export", str(__doc__))
    parser.add_argument("--run", type=Path, required=True, help="run folder")
    text = "onnx (by default), or torch, which is a program of torch.export"
    parser.add_argument("--format", choices=FILES, default="onnx", help=text)
    text = "file; by default model.onnx or model.pt2 in the run folder"
    parser.add_argument("--output", type=Path, help=text)
    options = parser.parse_args(args)
    path, onnx = options.output or options.run / FILES[options.format], options.format == "onnx"
    if onnx and not all(map(find_spec, PACKAGES)):
        raise UsageError(f"--format onnx needs python -m pip install {' '.join(PACKAGES)}")
    precision = read_record(options.run).precision
    if not path.parent.is_dir():
        raise UsageError(f"--output {path}: its folder does not exist")
    try:
        check_regular(path)
    except NotRegularError as error:
        raise UsageError(f"--output {error}") from error
    content, found = export(options.run, onnx)
    write_whole(path, content)
    print(f"{path}, in float32; the run was trained in {precision}: {found}")
    return 0

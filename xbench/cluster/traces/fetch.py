"""Download of public traces: the files, their addresses, and their SHA-256.

xbench ships no trace. A file is downloaded under another name in the same folder. It gets its own name only if its
bytes have the listed hash, so a file of that name is always whole and always the same. The addresses name commits, not
branches. The hashes of `itp`, `philly` and `pollux` come from the files that the tests of the loaders read; that of
`alibaba` comes from its own README.
"""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from xbench.errors import SpecError, XbenchError, unknown
from xbench.scratch import part_file

TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 20

_ADAPTDL = "https://raw.githubusercontent.com/petuum/adaptdl/de25dcc90c350b8ade3a710e437a651a8d2efae6/simulator/"
_ELASTICFLOW = (
    "https://raw.githubusercontent.com/microsoft/elasticflow-traces/277ed24d0e908c31a1c98145819e2e3853d8ac00/data/"
)
_PAI = "https://aliopentrace.oss-cn-beijing.aliyuncs.com/v2020GPUTraces/"


@dataclass(frozen=True)
class PublicFile:
    """One file: its path in the folder of its trace, its address, and the hash of its bytes."""

    path: str
    url: str
    sha256: str


@dataclass(frozen=True)
class PublicTrace:
    """A trace that can be fetched. `opens`: kind and path in its folder, as `load_trace` takes them."""

    name: str
    summary: str
    licence: str
    opens: tuple[str, str]
    files: tuple[PublicFile, ...]

    def spec(self, folder: Path) -> str:
        """Argument of `load_trace` once it has been fetched to `folder`."""
        kind, path = self.opens
        return f"{kind}:{folder / self.name / path}"


_POLLUX = {
    "bert/placements.csv": "982811b611bc8447a078289939a2ccafc1f76c06e1e8ebcc4f4866a8e8fcdc0f",
    "bert/scalability.csv": "d3fac874d45f501b8126cd1a5238f9f53eec4a1ac17cc1a5133f1a17fc891943",
    "cifar10/placements.csv": "e77d1d8781e2e48c3952580bdf705f3be4f27cbbdcd0a2087eb152224a271b6b",
    "cifar10/scalability.csv": "d4bd0dd8ab0df8ce76bbd788b210637dd204937cd4a18f112577f2a812634152",
    "deepspeech2/placements.csv": "0908c53bfc20123ad60ad6c4984cfcdf53a623773f4e44e9f01d58305e5379b7",
    "deepspeech2/scalability.csv": "d49ed2ecb5f3b3f1204ef2200eb8a0f36e373830ae54833e2318085f7d237316",
    "imagenet/placements.csv": "ac3d88937f40680c367ec83c7610eda088b8d60806e15cf3a4699fa1d15cb1e8",
    "imagenet/scalability.csv": "ca4970f3461c816237daaa4f37635cf07e78ee7a78df87788543b6e7b094e681",
    "ncf/placements.csv": "012f861bd2acc57f5f7d09c7878082905ba0150660b9f5aeae9291d025527874",
    "ncf/scalability.csv": "2c773498098fbaedbbb90d21b1b765876896b7ec0a37b543bbdcbf0ef7f066a4",
    "workloads/workload-1.csv": "0bff9c3a36b52c7025484b666d788001b1478cc4d84be409ca04b28f58f9d162",
    "workloads/workload-2.csv": "83bec266667ec209a202c10975ab321e52eb4989e5ba420d18003ed03cf15c4e",
    "workloads/workload-3.csv": "d76d5d1e3f9143b5453083de5c7a4c6576e884b41e86434a624b08f2c4277dc0",
    "workloads/workload-4.csv": "22c400f59637ba0fc2c9be3b491f67e0765d1bf33d0a57d76101d770e4443f21",
    "workloads/workload-5.csv": "4761ea418f2cb618f79e1dcfc003d24de2810ec8d0af2ecf8895690d088c3930",
    "workloads/workload-6.csv": "d6517c4d57c72e4f362f9e99f285e4f7fee0348913287033f11f02f5cb88f074",
    "yolov3/placements.csv": "6ffceb8996e3fd57e47e550fdffc21eec7d7e34de1d806d8b3568734eaec0013",
    "yolov3/scalability.csv": "feb460a4afaa48073fbd3387b7aa610b414166b0e68ff66d4374a73ed4b930bc",
}
_ALL = (
    PublicTrace(
        "itp", "69,351 jobs of ten Microsoft ITP clusters, 2021", "MIT", ("itp", "raw-traces.tar.gz"),
        (PublicFile("raw-traces.tar.gz", _ELASTICFLOW + "raw-traces.tar.gz",
                    "67398e1a89245c50ae0881bf997e6cda0c95f9f47980af5bc56d67998965669f"),),
    ),
    PublicTrace(
        "philly", "82,247 jobs of Microsoft Philly, 2017, as the Pollux artifact reduced them",
        "CC-BY-4.0 (the source data)", ("philly", "philly.csv"),
        (PublicFile("philly.csv", _ADAPTDL + "traces/philly.csv",
                    "ebffb3dd1589bdf4e7bcd74496201c5ded1d557d498ee14f560463f37ec353da"),),
    ),
    PublicTrace(
        "pollux", "six workloads of 160 jobs, and the measured steps of their six applications",
        "Apache-2.0", ("pollux", ""),
        tuple(
            PublicFile(path, _ADAPTDL + (path if path.startswith("workloads/") else f"traces/{path}"), sha256)
            for path, sha256 in _POLLUX.items()
        ),
    ),
    PublicTrace(
        "alibaba", "tasks of Alibaba PAI, July and August 2020", "see github.com/alibaba/clusterdata",
        ("alibaba", "pai_task_table.tar.gz"),
        (PublicFile("pai_task_table.tar.gz", _PAI + "pai_task_table.tar.gz",
                    "cd1d6dc3215d2a8607ccf6b6dd952b5db776df86926c73259fea7c1499ac40e5"),),
    ),
)  # fmt: skip
PUBLIC: Mapping[str, PublicTrace] = {trace.name: trace for trace in _ALL}


def fetch(name: str, folder: Path, known: Mapping[str, PublicTrace] = PUBLIC) -> list[Path]:
    """Fetch a public trace to `folder`/`name`; returns its files, in order. Whole files are not fetched again.

    Raises SpecError for an unknown name, and XbenchError if a file cannot be reached or written, or has another hash.
    """
    if name not in known:
        raise unknown("public trace", name, known, listing="xbench list traces")
    paths = []
    for file in known[name].files:
        path = folder / name / file.path
        if not path.is_file():
            _download(file, path)
        elif _sha256(path) != file.sha256:
            raise SpecError(
                f"{str(path)!r} is another file than the one that was published, and is left as it is",
                hint="move it away, or name another --folder",
            )
        paths.append(path)
    return paths


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _download(file: PublicFile, path: Path) -> None:
    """Download a file, and give it its name if the hash is right. It never leaves a partial file."""
    by_hand = f"bring {file.url} here by other means and put it at {path}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = part_file(path)
    except OSError as error:
        raise XbenchError(f"{path} cannot be written: {error.strerror or error}") from None
    try:
        digest = hashlib.sha256()
        with os.fdopen(handle, "wb") as writer, urllib.request.urlopen(file.url, timeout=TIMEOUT_S) as reader:
            while chunk := reader.read(_CHUNK_BYTES):
                digest.update(chunk)
                writer.write(chunk)
        if digest.hexdigest() != file.sha256:
            raise XbenchError(
                f"{file.url} is not the file that was published: its SHA-256 is {digest.hexdigest()} and not "
                f"{file.sha256}"
            )
        os.replace(partial, path)
    except urllib.error.HTTPError as error:
        raise XbenchError(f"{file.url} cannot be fetched: {error.code} {error.reason}", hint=by_hand) from None
    except urllib.error.URLError as error:
        raise XbenchError(f"{file.url} cannot be reached: {error.reason}", hint=by_hand) from None
    except OSError as error:
        raise XbenchError(f"{file.url} cannot be fetched: {error.strerror or error}", hint=by_hand) from None
    finally:
        if os.path.exists(partial):
            os.unlink(partial)

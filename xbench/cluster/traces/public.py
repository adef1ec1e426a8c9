"""The public traces: pooch fetches a file when it is first needed, and checks its SHA-256.

Files are kept in the folder that XBENCH_TRACES names, else in the user's cache. The addresses name commits, not
branches. `itp` is MIT, `philly` CC-BY-4.0 (the source data), `pollux` Apache-2.0.
"""

from __future__ import annotations

from pathlib import Path

import pooch

from xbench.errors import XbenchError

_ADAPTDL = "https://raw.githubusercontent.com/petuum/adaptdl/de25dcc90c350b8ade3a710e437a651a8d2efae6/simulator/"
_ELASTICFLOW = (
    "https://raw.githubusercontent.com/microsoft/elasticflow-traces/277ed24d0e908c31a1c98145819e2e3853d8ac00/data/"
)
_FILES = {
    "itp/raw-traces.tar.gz": "67398e1a89245c50ae0881bf997e6cda0c95f9f47980af5bc56d67998965669f",
    "philly/philly.csv": "ebffb3dd1589bdf4e7bcd74496201c5ded1d557d498ee14f560463f37ec353da",
    "pollux/bert/placements.csv": "982811b611bc8447a078289939a2ccafc1f76c06e1e8ebcc4f4866a8e8fcdc0f",
    "pollux/bert/scalability.csv": "d3fac874d45f501b8126cd1a5238f9f53eec4a1ac17cc1a5133f1a17fc891943",
    "pollux/cifar10/placements.csv": "e77d1d8781e2e48c3952580bdf705f3be4f27cbbdcd0a2087eb152224a271b6b",
    "pollux/cifar10/scalability.csv": "d4bd0dd8ab0df8ce76bbd788b210637dd204937cd4a18f112577f2a812634152",
    "pollux/deepspeech2/placements.csv": "0908c53bfc20123ad60ad6c4984cfcdf53a623773f4e44e9f01d58305e5379b7",
    "pollux/deepspeech2/scalability.csv": "d49ed2ecb5f3b3f1204ef2200eb8a0f36e373830ae54833e2318085f7d237316",
    "pollux/imagenet/placements.csv": "ac3d88937f40680c367ec83c7610eda088b8d60806e15cf3a4699fa1d15cb1e8",
    "pollux/imagenet/scalability.csv": "ca4970f3461c816237daaa4f37635cf07e78ee7a78df87788543b6e7b094e681",
    "pollux/ncf/placements.csv": "012f861bd2acc57f5f7d09c7878082905ba0150660b9f5aeae9291d025527874",
    "pollux/ncf/scalability.csv": "2c773498098fbaedbbb90d21b1b765876896b7ec0a37b543bbdcbf0ef7f066a4",
    "pollux/workloads/workload-1.csv": "0bff9c3a36b52c7025484b666d788001b1478cc4d84be409ca04b28f58f9d162",
    "pollux/workloads/workload-2.csv": "83bec266667ec209a202c10975ab321e52eb4989e5ba420d18003ed03cf15c4e",
    "pollux/workloads/workload-3.csv": "d76d5d1e3f9143b5453083de5c7a4c6576e884b41e86434a624b08f2c4277dc0",
    "pollux/workloads/workload-4.csv": "22c400f59637ba0fc2c9be3b491f67e0765d1bf33d0a57d76101d770e4443f21",
    "pollux/workloads/workload-5.csv": "4761ea418f2cb618f79e1dcfc003d24de2810ec8d0af2ecf8895690d088c3930",
    "pollux/workloads/workload-6.csv": "d6517c4d57c72e4f362f9e99f285e4f7fee0348913287033f11f02f5cb88f074",
    "pollux/yolov3/placements.csv": "6ffceb8996e3fd57e47e550fdffc21eec7d7e34de1d806d8b3568734eaec0013",
    "pollux/yolov3/scalability.csv": "feb460a4afaa48073fbd3387b7aa610b414166b0e68ff66d4374a73ed4b930bc",
}
PUBLIC = {"itp": "raw-traces.tar.gz", "philly": "philly.csv", "pollux": ""}
"""What the loader of each kind reads, in the folder of its name; empty: the folder itself."""


def public_path(kind: str) -> Path:
    """The path that the loader of a public trace takes, once its files are there.

    Raises XbenchError for a file that cannot be fetched or has another hash.
    """
    store = pooch.create(pooch.os_cache("xbench"), base_url="", registry=_FILES, env="XBENCH_TRACES")
    for file in _FILES:
        if file.startswith(f"{kind}/"):
            store.urls[file] = _url(file)
            try:
                store.fetch(file)
            except (OSError, ValueError) as error:  # ValueError: another hash
                raise XbenchError(
                    f"{store.urls[file]} cannot be fetched: {error}",
                    hint=f"bring it here by other means and put it at {store.abspath / file}",
                ) from None
    return Path(store.abspath) / kind / PUBLIC[kind]


def _url(file: str) -> str:
    """Address of a file of `_FILES`."""
    kind, path = file.split("/", 1)
    if kind == "itp":
        return _ELASTICFLOW + path
    return _ADAPTDL + (path if path.startswith("workloads/") else f"traces/{path}")

"""Your own model and its data in xbench: `xbench compare examples/train_loader.py:make --modes ddp,auto`."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Noise(Dataset):
    """Samples that a worker process makes, as it would read and decode them."""

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(256, generator=generator), index % 10


def make():
    """A factory takes no arguments and returns (model, loader, loss); a batch of the loader is (inputs, targets)."""
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))
    data = Noise()
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data), num_workers=1, drop_last=True)
    return model, loader, nn.functional.cross_entropy

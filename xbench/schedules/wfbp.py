"""wfbp: wait-free backpropagation (Zhang et al., Poseidon, ATC 2017; Awan et al., S-Caffe, PPoPP 2017).

One collective per tensor is launched as soon as its gradient is ready, in ready order on one link: start[j] =
max(ready[j], end[j-1]), end[j] = start[j] + T(bytes[j]). It hides the most when latency is zero. With hundreds of small
tensors it pays the latency hundreds of times. Without a plan, the ready order is learnt from the first step.
"""

from __future__ import annotations

from xbench.schedules.base import Overlapped


class Wfbp(Overlapped):
    """One bucket per tensor."""

"""The measuring half of `xbench regress`: what is launched, of which tree, in which order, and what is kept of it.

| file | what it holds |
| --- | --- |
| `protocol` | the order that a tree's own xbench is given, and its answer: versioned |
| `answering`, `looking` | one order carried out: one launch of the ranks; the workload and the plans before it |
| `rank` | one rank of such a launch |
| `counting` | what a step hands to collectives, and the most memory that it holds |
| `trees` | revisions of a git repository, checked out beside the working tree and removed again |
| `sides` | one tree as something to give orders to, in processes of its own |
| `course` | how long a launch is, and how many pairs of them fit the budget |
| `figures` | from an answer to the measurements of the suite's cases |
| `turns` | two launches that are alive at once and take turns |
| `measuring` | looks, first launches, and pairs in A-B-B-A order |
| `asked`, `check`, `record`, `baselines` | the flows, what they are asked for, and where they keep it |

    check → sides → `python -m xbench regress launch ORDER ANSWER` in the tree → ranks

Each launch is a process of the tree's own xbench, so base and head share no memory, no imports and no cache but the
machine's. What this package writes is judged by `xbench.regress`.
"""
